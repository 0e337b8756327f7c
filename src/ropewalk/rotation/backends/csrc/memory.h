// Memory of large results in huge pages: mapping and zeroing small pages one by one costs more than the arithmetic.
#pragma once
#include <cstdint>

namespace ropewalk {

// Asks the kernel for 2 MiB pages inside [start, start + bytes), which must not have been touched; false if it cannot.
bool use_huge_pages(uintptr_t start, int64_t bytes);

}  // namespace ropewalk
