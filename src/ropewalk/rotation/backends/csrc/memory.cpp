#include "memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ropewalk {

#if defined(__linux__)

bool use_huge_pages(uintptr_t start, int64_t bytes) {
    constexpr uintptr_t page = uintptr_t{2} << 20;
    const uintptr_t first = (start + page - 1) & ~(page - 1);
    const uintptr_t last = (start + static_cast<uintptr_t>(bytes)) & ~(page - 1);
    return first < last && madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE) == 0;
}

#else

bool use_huge_pages(uintptr_t, int64_t) { return false; }

#endif

}  // namespace ropewalk
