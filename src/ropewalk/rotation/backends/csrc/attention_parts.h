// Attention by tiles with an online softmax, written once over the vectors of an instruction set: what its forms share.
//
// A column is one query of one head; columns are the lanes of vectors, so that the softmax over keys is vertical.
// A unit is 32 bits: one float, or two neighbouring bf16 numbers where the processor multiplies those. Queries are kept
// transposed (a row of columns for each unit of features), keys are broadcast from where they lie, weights are a row of
// columns for each unit of keys, and values are broadcast: so both products are one loop, `multiply`.
// As in kernels.h, everything has internal linkage and no library template is used.
#pragma once
#include "attention.h"
#include "kernels.h"

namespace {

using ropewalk::Attention;
using ropewalk::Region;
using ropewalk::Rows;
using ropewalk::Span;
using ropewalk::span_of;
using ropewalk::Task;
using ropewalk::tile;
using Unit = uint32_t;

constexpr int lanes = Floats::width;
constexpr int group_columns = vectors_at_once * lanes;
constexpr float log2_of_e = 0x1.715476p+0f;
constexpr float nothing_yet = -3e38f;  // the largest logit so far, where no key was seen
constexpr float lazily = 8.0f;         // rescale where the maximum grew by more than 2^8

constexpr int64_t padded(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Products in float32.
struct InFloats {
    using Element = float;
    static constexpr int per_unit = 1;
    using Lanes = Floats;
    static Lanes load(const Unit* p) { return Floats::load(reinterpret_cast<const float*>(p)); }
    static Lanes broadcast(const Unit* p) { return Floats::of(from_bits(*p)); }
    static Floats multiply_add(Lanes a, Lanes b, Floats c) { return ::multiply_add(a, b, c); }
};

#ifdef __AVX512BF16__
// Products of neighbouring bf16 numbers, added in float32.
struct InPairs {
    using Element = bf16;
    static constexpr int per_unit = 2;
    using Lanes = __m512i;
    static Lanes load(const Unit* p) { return _mm512_loadu_si512(p); }
    static Lanes broadcast(const Unit* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
    static Floats multiply_add(Lanes a, Lanes b, Floats c) {
        return {_mm512_dpbf16_ps(c.v, (__m512bh)a, (__m512bh)b)};
    }
    // A minimax polynomial of 2^r for 0 <= r < 1, and 2^x by it for weights that are rounded to bf16: relative error
    // 7.5e-5 where that rounding's is 2e-3. `p`: where the polynomial lies.
    static constexpr float polynomial[] = {0x1.fff632p-1f, 0x1.64444cp-1f, 0x1.cefc4cp-3f, 0x1.3f96a4p-4f};
    static Floats power_of_2(Floats x, const float* p) {
        const Floats r = {_mm512_reduce_ps(x.v, 0x09)};
        Floats y = ::multiply_add(Floats::of(p[3]), r, Floats::of(p[2]));
        y = ::multiply_add(y, r, Floats::of(p[1]));
        y = ::multiply_add(y, r, Floats::of(p[0]));
        return {_mm512_scalef_ps(y.v, x.v)};
    }
    // Two weights of each column as one unit: a in the lower half.
    static void put_pairs(float* p, Floats a, Floats b) {
        const __m512i mixed = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                               6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        _mm512_storeu_si512(p, _mm512_permutexvar_epi16(mixed, (__m512i)_mm512_cvtne2ps_pbh(b.v, a.v)));
    }
};
#endif

// Keys of one tile of many queries; in pairs they take half of the memory.
template <typename In>
constexpr int64_t keys_at_once = In::per_unit * tile;

// acc[i][r] += sum over u of left[u][r] * from[i * apart + u * step].
template <typename In, int R, int N>
inline __attribute__((always_inline)) void multiply_more(const Unit*& left, const Unit*& from, int64_t apart,
                                                         int64_t step, int64_t count, Floats (&acc)[N][R]) {
    for (int64_t u = 0; u < count; ++u, left += R * lanes, from += step) {
        typename In::Lanes x[R];
        for (int r = 0; r < R; ++r) x[r] = In::load(left + r * lanes);
        for (int i = 0; i < N; ++i) {
            const auto value = In::broadcast(from + i * apart);
            for (int r = 0; r < R; ++r) acc[i][r] = In::multiply_add(x[r], value, acc[i][r]);
        }
    }
}

// The same, from zeros.
template <typename In, int R, int N>
inline __attribute__((always_inline)) void multiply(const Unit* left, const Unit* from, int64_t apart, int64_t step,
                                                    int64_t count, Floats (&acc)[N][R]) {
    for (int i = 0; i < N; ++i)
        for (int r = 0; r < R; ++r) acc[i][r] = Floats::of(0.0f);
    multiply_more<In>(left, from, apart, step, count, acc);
}

template <typename T>
inline void to_floats(const T* x, float* y, int64_t size) {
    int64_t j = 0;
    for (; j + 2 * lanes <= size; j += 2 * lanes) store(y + j, Floats::load(x + j), Floats::load(x + j + lanes), false);
    for (; j < size; ++j) y[j] = widen(x[j]);
}
inline void copy_row(const float* x, float* y, int64_t size) { std::memcpy(y, x, size * sizeof(float)); }
inline void copy_row(const bf16* x, bf16* y, int64_t size) { std::memcpy(y, x, size * sizeof(bf16)); }
inline void copy_row(const bf16* x, float* y, int64_t size) { to_floats(x, y, size); }
inline void copy_row(const f16* x, float* y, int64_t size) { to_floats(x, y, size); }

// A row of `units` whole units, zeros behind its `size` features.
template <typename In, typename T>
inline void fetch(const T* x, int64_t stride, int64_t size, Unit* to, int64_t units, T* buffer) {
    auto* const elements = reinterpret_cast<typename In::Element*>(to);
    if (stride != 1) gather(x, buffer, stride, size), x = buffer;
    copy_row(x, elements, size);
    const int64_t whole = units * In::per_unit;
    if (size < whole) std::memset(elements + size, 0, (whole - size) * sizeof *elements);
}

// The keys that a group of columns meets: each column begins and ends between these.
struct Extent {
    int64_t least_low, most_low, least_high, most_high;
};

// One thread's memory for one task after another.
struct Scratch {
    int64_t columns, units, features;  // units of a query, features of a value: whole blocks of both
    Unit *queries, *keys, *values, *rows;
    float *sums, *weights, *maximum, *total, *scales, *low, *high;
    Extent* extents;  // of each group
    void* buffer;

    // Parts `memory`, or with null counts how many bytes there are.
    template <typename In>
    int64_t part(const Attention& job, char* memory) {
        columns = padded(job.block * job.groups(), lanes);
        units = padded((job.head_dim + In::per_unit - 1) / In::per_unit, lanes);
        features = padded(job.head_dim, lanes > broadcasts_at_once ? lanes : broadcasts_at_once);
        int64_t used = 0;
        const auto take = [&](int64_t words) {
            char* const here = memory ? memory + used : nullptr;
            used += padded(4 * words, 64);
            return here;
        };
        queries = reinterpret_cast<Unit*>(take(units * columns));
        keys = reinterpret_cast<Unit*>(take(units * keys_at_once<In>));
        values = reinterpret_cast<Unit*>(take(features * keys_at_once<In>));
        rows = reinterpret_cast<Unit*>(take((units > features ? units : features) * lanes));
        sums = reinterpret_cast<float*>(take(features * columns));
        weights = reinterpret_cast<float*>(take(keys_at_once<In> * group_columns));
        const auto line = [&] { return reinterpret_cast<float*>(take(columns)); };
        maximum = line(), total = line(), scales = line(), low = line(), high = line();
        extents = reinterpret_cast<Extent*>(take(sizeof(Extent) / 4 * (columns / group_columns + 1)));
        buffer = take(2 * (units > features ? units : features));
        return used;
    }
};

// The query `i` and the head of a column.
struct Column {
    int64_t query, head;
};
inline Column column_of(const Attention& job, const Task& task, int64_t column) {
    const uint32_t groups = static_cast<uint32_t>(job.groups()), number = static_cast<uint32_t>(column);
    return {task.first + number / groups, task.kv_head * groups + number % groups};
}
inline int64_t columns_of(const Attention& job, const Task& task) { return (task.last - task.first) * job.groups(); }
inline int64_t place(const Rows& rows, int64_t b, int64_t head, int64_t row) {
    return offset(rows.strides, b, row, head);
}

// Columns are kept in groups of `group_columns`, each with all its units in a row; the last group may be narrower.
inline int64_t width_of(int64_t columns, int64_t first) {
    const int64_t rest = padded(columns - first, lanes);
    return rest < group_columns ? rest : group_columns;
}

template <typename In, typename T>
void take_queries(const Attention& job, const Task& task, const Region& region, const Scratch& s) {
    const int64_t columns = columns_of(job, task);
    const T* const q = reinterpret_cast<const T*>(region.q.data);
    for (int64_t first = 0; first < columns; first += group_columns) {
        const int64_t width = width_of(columns, first);
        Extent extent{job.keys, 0, job.keys, 0};
        for (int64_t begin = 0; begin < width; begin += lanes) {
            for (int64_t lane = 0; lane < lanes; ++lane) {
                const int64_t column = first + begin + lane;
                Unit* const row = s.rows + lane * s.units;
                if (column >= columns) {
                    std::memset(row, 0, s.units * sizeof(Unit));
                    s.low[column] = -1.0f;  // it sees all, so that it never asks for a mask
                    s.high[column] = 2.0f * ropewalk::most_keys;
                    continue;
                }
                const Column at = column_of(job, task, column);
                const Span span = span_of(job, region, task.batch, at.query);
                s.low[column] = static_cast<float>(span.low);
                s.high[column] = static_cast<float>(span.high);
                if (column + lanes < columns) {  // rows are far apart: prefetch those of the next vector
                    const Column later = column_of(job, task, column + lanes);
                    const T* const row = q + place(region.q, task.batch, later.head, later.query);
                    for (int64_t f = 0; f < job.head_dim; f += 64 / static_cast<int64_t>(sizeof(T)))
                        __builtin_prefetch(row + f * region.q.strides.feature);
                }
                extent.least_low = span.low < extent.least_low ? span.low : extent.least_low;
                extent.most_low = span.low > extent.most_low ? span.low : extent.most_low;
                extent.least_high = span.high < extent.least_high ? span.high : extent.least_high;
                extent.most_high = span.high > extent.most_high ? span.high : extent.most_high;
                fetch<In>(q + place(region.q, task.batch, at.head, at.query), region.q.strides.feature, job.head_dim,
                          row, s.units, static_cast<T*>(s.buffer));
            }
            for (int64_t u = 0; u < s.units; u += lanes)
                transpose(s.rows + u, s.units, s.queries + first * s.units + u * width + begin, width);
        }
        s.extents[first / group_columns] = extent;
    }
}

// Rows of units.
struct Tile {
    const Unit* data;
    int64_t stride;
};

// Copies `count` keys from `first` on into the scratch memory, rotated if the region has tables.
template <typename In, typename T>
void copy_keys(const Attention& job, const Task& task, const Region& region, int64_t first, int64_t count,
               const Scratch& s) {
    const Strides& strides = region.k.strides;
    const T* const k = reinterpret_cast<const T*>(region.k.data) + place(region.k, task.batch, task.kv_head, first);
    const Turning<float> turning{job.head_dim, region.pairs, region.factor, region.factor};
    const bool passed_on = 2 * region.pairs < s.units * In::per_unit;  // features that are not rotated
    for (int64_t i = 0; i < count; ++i) {
        Unit* const row = s.keys + i * s.units;
        const T* x = k + i * strides.token;
        if (!region.cos || passed_on || strides.feature != 1)
            fetch<In>(x, strides.feature, job.head_dim, row, s.units, static_cast<T*>(s.buffer));
        if (!region.cos) continue;
        if (strides.feature != 1) x = static_cast<T*>(s.buffer);
        const int64_t at = task.batch * region.table_batch + (first + i) * region.table_row;
        auto* const turned = reinterpret_cast<typename In::Element*>(row);
        const float *cos = region.cos + at, *sin = region.sin + at, *no_weight = nullptr;
        if (region.interleaved)
            turn_row<true, false>(x, turned, cos, sin, no_weight, turning, Floats::of(0), false);
        else
            turn_row<false, false>(x, turned, cos, sin, no_weight, turning, Floats::of(0), false);
    }
}

// `count` values from `first` on into the scratch memory, as floats.
template <typename T>
void copy_values(const Attention& job, const Task& task, int64_t first, int64_t count, const Scratch& s) {
    const Strides& strides = job.v.strides;
    const T* const v = reinterpret_cast<const T*>(job.v.data) + place(job.v, task.batch, task.kv_head, first);
    for (int64_t i = 0; i < count; ++i)
        fetch<InFloats>(v + i * strides.token, strides.feature, job.head_dim, s.values + i * s.features, s.features,
                        static_cast<T*>(s.buffer));
}

// `count` keys from `first` on: where they lie if they can be read there, else copied, with zeros behind them up to
// whole blocks.
template <typename In, typename T>
Tile take_keys(const Attention& job, const Task& task, const Region& region, int64_t first, int64_t count,
               const Scratch& s) {
    const Strides& strides = region.k.strides;
    const T* const k = reinterpret_cast<const T*>(region.k.data) + place(region.k, task.batch, task.kv_head, first);
    const bool as_it_lies = sizeof(T) == sizeof(typename In::Element) && !region.cos && strides.feature == 1 &&
                            strides.token == job.head_dim && job.head_dim % In::per_unit == 0 &&
                            count % broadcasts_at_once == 0 && reinterpret_cast<uintptr_t>(k) % sizeof(Unit) == 0;
    if (as_it_lies) return {reinterpret_cast<const Unit*>(k), job.head_dim / In::per_unit};
    copy_keys<In, T>(job, task, region, first, count, s);
    const int64_t whole = padded(count, broadcasts_at_once);
    std::memset(s.keys + count * s.units, 0, (whole - count) * s.units * sizeof(Unit));
    return {s.keys, s.units};
}

inline void pair_rows(const bf16* a, const bf16* b, Unit* to, int64_t size) {
    int64_t j = 0;
#ifdef __AVX512BF16__
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37,
                                         5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_or_si512(low, _mm512_set1_epi16(16));
    for (; j + 32 <= size; j += 32) {
        const __m512i x = _mm512_loadu_si512(a + j), y = _mm512_loadu_si512(b + j);
        _mm512_storeu_si512(to + j, _mm512_permutex2var_epi16(x, low, y));
        _mm512_storeu_si512(to + j + 16, _mm512_permutex2var_epi16(x, high, y));
    }
#endif
    for (; j < size; ++j) to[j] = Unit{a[j].bits} | Unit{b[j].bits} << 16;
}

// As take_keys: a row of features for each unit of keys, in bf16 for each pair of keys.
template <typename In, typename T>
Tile take_values(const Attention& job, const Task& task, int64_t first, int64_t count, const Scratch& s) {
    const Strides& strides = job.v.strides;
    const T* const v = reinterpret_cast<const T*>(job.v.data) + place(job.v, task.batch, task.kv_head, first);
    if constexpr (In::per_unit == 1) {
        const bool as_it_lies = sizeof(T) == sizeof(float) && strides.feature == 1 && strides.token == job.head_dim &&
                                job.head_dim % broadcasts_at_once == 0;
        if (as_it_lies) return {reinterpret_cast<const Unit*>(v), job.head_dim};
        copy_values<T>(job, task, first, count, s);
    } else {
        T* const buffer = static_cast<T*>(s.buffer);
        T* const zeros = buffer + 2 * job.head_dim;
        const auto row = [&](int64_t i, T* to) -> const T* {
            const T* const x = v + i * strides.token;
            if (strides.feature == 1) return x;
            gather(x, to, strides.feature, job.head_dim);
            return to;
        };
        if (count % 2) std::memset(zeros, 0, job.head_dim * sizeof(T));
        for (int64_t i = 0; i < count; i += 2) {
            Unit* const to = s.values + i / 2 * s.features;
            pair_rows(row(i, buffer), i + 1 < count ? row(i + 1, buffer + job.head_dim) : zeros, to, job.head_dim);
            std::memset(to + job.head_dim, 0, (s.features - job.head_dim) * sizeof(Unit));
        }
    }
    return {s.values, s.features};
}

// Whether any of these values is infinite or NaN.
template <typename T>
bool any_infinite(const Attention& job, const Task& task, int64_t first, int64_t count) {
    const Strides& strides = job.v.strides;
    const T* v = reinterpret_cast<const T*>(job.v.data) + place(job.v, task.batch, task.kv_head, first);
    Floats wrong = Floats::of(0.0f);
    float rest = 0.0f;
    for (int64_t i = 0; i < count; ++i, v += strides.token) {
        int64_t j = 0;
        if (strides.feature == 1)
            for (; j + lanes <= job.head_dim; j += lanes) {
                const Floats x = Floats::load(v + j);
                wrong = wrong + (x - x);
            }
        for (; j < job.head_dim; ++j) {
            const float x = widen(v[j * strides.feature]);
            rest += x - x;
        }
    }
    return wrong.sum() != 0.0 || rest != 0.0f;  // NaN
}

// What columns begin with: their scales, no sums, and a sink's logit as the first of the softmax.
inline void begin_columns(const Attention& job, const Task& task, int64_t columns, const Scratch& s) {
    std::memset(s.sums, 0, s.features * s.columns * sizeof(float));
    for (int64_t column = 0; column < s.columns; ++column) {
        const bool real = column < columns;
        const Column at = column_of(job, task, real ? column : 0);
        const bool sink = real && job.sinks && job.sinks[at.head] * log2_of_e > nothing_yet;
        s.scales[column] = real ? job.scale : 1.0f;
        s.maximum[column] = sink ? job.sinks[at.head] * log2_of_e : nothing_yet;
        s.total[column] = sink ? 1.0f : 0.0f;
    }
}

// tanh(z) of 2 z log2(e).
inline Floats tanh_of(Floats x) {
    const Floats one = Floats::of(1.0f);
    return one - Floats::of(2.0f) / (power_of_2(x) + one);
}

// A row of the result: a column's sums over its total.
template <typename T>
inline void give_row(const Attention& job, const Task& task, int64_t column, const Scratch& s, const float* sums) {
    const Column at = column_of(job, task, column);
    const float total = s.total[column];
    const int64_t size = job.head_dim, stride = job.out.strides.feature;
    const float share = total == 0.0f ? 0.0f : 1.0f / total;
    T* const y = reinterpret_cast<T*>(job.out.data) + place(job.out, task.batch, at.head, at.query);
    int64_t f = 0;
    if (stride == 1)
        for (const Floats shares = Floats::of(share); f + 2 * lanes <= size; f += 2 * lanes)
            store(y + f, Floats::load(sums + f) * shares, Floats::load(sums + f + lanes) * shares, false);
    for (; f < size; ++f) narrow(sums[f] * share, y[f * stride]);
}

}  // namespace
