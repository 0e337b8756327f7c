// What one call of the attention kernel asks for: tensors as pointers and strides, counted in elements.
#pragma once
#include "job.h"

namespace ropewalk {

// [batch, heads, rows, features].
struct Rows {
    char* data = nullptr;
    Strides strides{};
};

// int64 [batch or 1, queries]; the strides are 0 where one number serves all.
struct OfQueries {
    const int64_t* data = nullptr;
    int64_t batch = 0, query = 0;
    int64_t at(int64_t b, int64_t i) const { return data[b * batch + i * query]; }
};

// Keys low <= j < high of each query, with queries and keys that are rotated only for this region.
struct Region {
    Rows q, k;
    OfQueries low, high;
    // cos and sin that rotate the keys when they are loaded, features contiguous; null: keys are rotated already
    const float *cos = nullptr, *sin = nullptr;
    int64_t table_batch = 0, table_row = 0, pairs = 0;
    bool interleaved = false;
    float factor = 1.0f;  // of the keys that are rotated here
};

constexpr int most_regions = 8;

struct Attention {
    Dtype dtype = Dtype::float32;
    int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, head_dim = 0;
    int regions = 0;
    Region region[most_regions];
    Rows v, out;
    float scale = 1.0f;            // of the logits, positive
    const float* sinks = nullptr;  // [heads]: a logit that takes weight and gives nothing; null: none
    float softcap = 0.0f;          // logits become softcap * tanh(logit / softcap); 0: none
    int64_t block = 1;             // queries of one task

    int64_t groups() const { return heads / kv_heads; }
    int64_t blocks() const { return (queries + block - 1) / block; }
    int64_t tasks() const { return batch * kv_heads * blocks(); }
};

// Some queries of one key head, with all query heads that share it.
struct Task {
    int64_t batch, kv_head, first, last;
};

inline Task task_of(const Attention& job, int64_t number) {
    const int64_t block = number % job.blocks(), rest = number / job.blocks(), first = block * job.block;
    const int64_t last = first + job.block < job.queries ? first + job.block : job.queries;
    return {rest / job.kv_heads, rest % job.kv_heads, first, last};
}

// The keys low .. high - 1 that a query meets in a region; 0 .. 0 for none.
struct Span {
    int64_t low, high;
};
inline Span span_of(const Attention& job, const Region& region, int64_t b, int64_t i) {
    const int64_t low = region.low.at(b, i), high = region.high.at(b, i);
    const Span span{low > 0 ? low : 0, high < job.keys ? high : job.keys};
    return span.low < span.high ? span : Span{0, 0};
}

constexpr int64_t tile = 64;           // keys that are scored before their values are summed
constexpr int64_t task_columns = 192;  // queries times heads of one task, about
constexpr int64_t most_keys = int64_t{1} << 24;  // indices of keys are compared as floats

}  // namespace ropewalk
