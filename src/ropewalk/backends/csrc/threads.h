// Work shared among threads: PyTorch's own OpenMP team where it has one, so that no second pool fights for the cores.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

namespace ropewalk {

// Calls work(begin, end) on pieces of 0 .. units - 1, at most `threads` at a time, `threads` pieces or a few more.
void parallel(int64_t units, int threads, const std::function<void(int64_t, int64_t)>& work);

// "openmp" or "std::thread".
const char* threads_from();

}  // namespace ropewalk
