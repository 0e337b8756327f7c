// Memory of large results: in huge pages, and taken up again after use. Mapping and zeroing fresh pages costs more than
// the arithmetic on them.
#pragma once
#include <cstdint>

namespace ropewalk {

// Asks the kernel for 2 MiB pages inside [start, start + bytes), which must not have been touched; false if it cannot.
bool use_huge_pages(uintptr_t start, int64_t bytes);

// Memory of at least `bytes` in huge pages, aligned to one, its contents anything; null where there is none to be had.
// `put_back` takes it again, from any thread: some is kept for the next result of the same size, marked as the system's
// to take whenever it is short of memory (MADV_FREE); the rest is unmapped.
void* take_memory(int64_t bytes);
void put_back(void* start, int64_t bytes);

// Unmaps all that is kept; returns how many bytes that was.
int64_t release_memory();

}  // namespace ropewalk
