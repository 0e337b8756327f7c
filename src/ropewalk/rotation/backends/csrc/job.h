// What one call asks of the kernels: tensors as pointers and strides, counted in elements.
#pragma once
#include <cstdint>

namespace ropewalk {

enum class Dtype : int { float64 = 0, float32 = 1, bfloat16 = 2, float16 = 3 };

constexpr int64_t item_size(Dtype dtype) { return dtype == Dtype::float64 ? 8 : dtype == Dtype::float32 ? 4 : 2; }

struct Strides {
    int64_t batch, token, head, feature;
};

// One tensor of a call: queries, keys, or values that are only copied into a cache.
struct Side {
    const char* in = nullptr;
    char* out = nullptr;
    int64_t heads = 0;
    Strides in_strides{}, out_strides{};
    const int64_t* slots = nullptr;  // where each token goes in `out`; negative: nowhere
    int64_t slot_batch = 0, slot_token = 0;
    const void* weight = nullptr;    // RMSNorm's, in the compute dtype; null: no norm
    bool copied = false;             // neither norm nor rotation
    bool stream = false;             // write past the caches
};

struct Rotation {
    Dtype dtype = Dtype::float32;
    bool interleaved = false;
    int64_t first = 0;                          // the first rotated feature
    int64_t batch = 0, tokens = 0, head_dim = 0, pairs = 0;
    const void *cos = nullptr, *sin = nullptr;  // in the compute dtype, features contiguous
    int64_t table_batch = 0, table_token = 0, table_head = 0;
    double cos_scale = 1.0, sin_scale = 1.0;    // sin_scale is negative for the inverse
    double eps = 0.0;
    int sides = 0;
    Side side[3];
};

// cos and sin of positions times frequencies, formed in float64 and rounded once.
struct Tables {
    const void* positions = nullptr;  // [rows, axes]
    bool integral = true;             // int64 or float64 positions
    int64_t position_row = 0, position_axis = 0;
    const double* columns = nullptr;  // [pairs]
    const int32_t* axes = nullptr;    // which coordinate each pair follows; null: the only one
    int64_t rows = 0, pairs = 0;
    void *cos = nullptr, *sin = nullptr;
    bool doubles = false;             // write float64 tables
};

// Tokens are handed out in blocks, so that a table row is read once for all heads.
constexpr int64_t token_block = 16;

struct Attention;  // attention.h

// One instruction set's kernels. Units are blocks of tokens (rotations) or rows (tables), begin <= unit < end.
struct Kernels {
    const char* name;
    void (*rotate)(const Rotation&, int64_t begin, int64_t end);
    void (*tables)(const Tables&, int64_t begin, int64_t end);
    // The bytes that one thread needs for any task of this call; and one of them, by its number.
    int64_t (*attend_bytes)(const Attention&);
    void (*attend)(const Attention&, int64_t number, char* memory);
};

// Of the instruction set that is in use.
const Kernels& kernels_in_use();

inline int64_t blocks_of(const Rotation& job) {
    return job.batch * ((job.tokens + token_block - 1) / token_block);
}

const Kernels& portable_kernels();
#ifdef ROPEWALK_X86
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_bf16_kernels();
#endif
#ifdef ROPEWALK_ARM
const Kernels& neon_kernels();
const Kernels& neon_bf16_kernels();
#endif

}  // namespace ropewalk
