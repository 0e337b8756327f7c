// Work shared among threads: PyTorch's own OpenMP team where it has one, so that no second pool fights for the cores.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>

namespace ropewalk {

// Calls work(begin, end) on pieces of 0 .. units - 1, at most `threads` at a time, `threads` pieces or a few more.
void parallel(int64_t units, int threads, const std::function<void(int64_t, int64_t)>& work);

// A second thread costs some microseconds, in which one core moves about this much.
constexpr int64_t bytes_per_thread = int64_t{128} << 10;

inline int threads_for(int64_t bytes, int threads) {
    const int64_t worth = 1 + bytes / bytes_per_thread;
    return worth < threads ? static_cast<int>(worth) : threads;
}

// "openmp" or "std::thread".
const char* threads_from();

}  // namespace ropewalk
