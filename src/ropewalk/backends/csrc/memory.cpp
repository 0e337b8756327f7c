#include "memory.h"

#if defined(__linux__)
#include <sys/mman.h>

#include <mutex>
#include <vector>
#endif

namespace ropewalk {

#if defined(__linux__)

namespace {

constexpr uintptr_t page = uintptr_t{2} << 20;
constexpr uintptr_t most_kept = uintptr_t{256} << 20;

uintptr_t in_pages(int64_t bytes) { return (static_cast<uintptr_t>(bytes) + page - 1) & ~(page - 1); }

struct Block {
    void* start;
    uintptr_t bytes;
};

// Never destroyed: tensors may be freed after the process's last static object.
struct Kept {
    std::mutex mutex;
    std::vector<Block> blocks;  // oldest first
    uintptr_t bytes = 0;

    Block remove(size_t i) {
        const Block block = blocks[i];
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i));
        bytes -= block.bytes;
        return block;
    }
};

Kept& kept() {
    static Kept* const found = new Kept;
    return *found;
}

}  // namespace

bool use_huge_pages(uintptr_t start, int64_t bytes) {
    const uintptr_t first = (start + page - 1) & ~(page - 1);
    const uintptr_t last = (start + static_cast<uintptr_t>(bytes)) & ~(page - 1);
    return first < last && madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE) == 0;
}

void* take_memory(int64_t bytes) {
    const uintptr_t size = in_pages(bytes);
    // A lock that is held elsewhere (or was, when this process was forked) is not waited for: new memory serves as well.
    if (std::unique_lock lock(kept().mutex, std::try_to_lock); lock) {
        for (size_t i = kept().blocks.size(); i-- > 0;)
            if (kept().blocks[i].bytes == size) return kept().remove(i).start;
    }
    void* const mapped = mmap(nullptr, size + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped), start = (begin + page - 1) & ~(page - 1);
    if (start > begin) munmap(mapped, start - begin);
    if (begin + page > start) munmap(reinterpret_cast<void*>(start + size), begin + page - start);
    madvise(reinterpret_cast<void*>(start), size, MADV_HUGEPAGE);
    return reinterpret_cast<void*>(start);
}

void put_back(void* start, int64_t bytes) {
    const uintptr_t size = in_pages(bytes);
    if (std::unique_lock lock(kept().mutex, std::try_to_lock); lock && size <= most_kept) {
        while (kept().bytes + size > most_kept) {
            const Block oldest = kept().remove(0);
            munmap(oldest.start, oldest.bytes);
        }
        if (madvise(start, size, MADV_FREE) == 0) {
            kept().blocks.push_back({start, size});
            kept().bytes += size;
            return;
        }
    }
    munmap(start, size);
}

int64_t release_memory() {
    const std::lock_guard lock(kept().mutex);
    const uintptr_t bytes = kept().bytes;
    while (!kept().blocks.empty()) {
        const Block block = kept().remove(0);
        munmap(block.start, block.bytes);
    }
    return static_cast<int64_t>(bytes);
}

#else

bool use_huge_pages(uintptr_t, int64_t) { return false; }
void* take_memory(int64_t) { return nullptr; }
void put_back(void*, int64_t) {}
int64_t release_memory() { return 0; }

#endif

}  // namespace ropewalk
