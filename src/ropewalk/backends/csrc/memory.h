// Fresh memory in huge pages: zeroing and mapping 4 KiB at a time costs more than the arithmetic on it.
#pragma once
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ropewalk {

// Asks the kernel for 2 MiB pages inside [start, start + bytes), which must not have been touched; false if it cannot.
inline bool use_huge_pages(uintptr_t start, int64_t bytes) {
#if defined(__linux__)
    constexpr uintptr_t page = uintptr_t{2} << 20;
    const uintptr_t first = (start + page - 1) & ~(page - 1), last = (start + static_cast<uintptr_t>(bytes)) & ~(page - 1);
    return first < last && madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE) == 0;
#else
    (void)start, (void)bytes;
    return false;
#endif
}

}  // namespace ropewalk
