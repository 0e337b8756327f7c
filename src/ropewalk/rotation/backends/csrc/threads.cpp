#include "threads.h"

#if defined(__unix__) || defined(__APPLE__)
#include <dlfcn.h>
#include <pthread.h>
#endif

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace ropewalk {
namespace {

using Team = void (*)(void (*)(void*), void*, unsigned, unsigned);

#if defined(__unix__)
// A forked child has no thread of its parent's team, and would wait for them for ever.
std::atomic<bool> forked{false};
const int watching_forks = pthread_atfork(nullptr, nullptr, [] { forked = true; });
#endif

// GOMP_parallel of the OpenMP runtime that PyTorch has loaded into the process; null without one.
Team team() {
#if defined(__unix__)
    static const Team found = reinterpret_cast<Team>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    return forked ? nullptr : found;
#else
    return nullptr;
#endif
}

// Pieces are drawn from a counter: whoever is late, or kept from its core, takes fewer.
struct Pieces {
    int64_t units, count;
    const std::function<void(int64_t, int64_t)>& work;
    std::atomic<int64_t> next{0};

    void run() {
        for (int64_t piece = next++; piece < count; piece = next++)
            work(piece * units / count, (piece + 1) * units / count);
    }
};

}  // namespace

const char* threads_from() { return team() ? "openmp" : "std::thread"; }

void parallel(int64_t units, int threads, const std::function<void(int64_t, int64_t)>& work) {
    const int64_t used = std::min<int64_t>(threads, units);
    if (used <= 1) {
        if (units > 0) work(0, units);
        return;
    }
    Pieces pieces{units, std::min<int64_t>(units, 8 * used), work};
    if (const Team openmp = team()) {
        openmp([](void* shared) { static_cast<Pieces*>(shared)->run(); }, &pieces, static_cast<unsigned>(used), 0);
        return;
    }
    std::vector<std::thread> others;
    try {
        for (int64_t i = 1; i < used; ++i) others.emplace_back([&pieces] { pieces.run(); });
    } catch (const std::system_error&) {
        // no more threads to be had: those that run take the pieces
    }
    pieces.run();
    for (std::thread& other : others) other.join();
}

}  // namespace ropewalk
