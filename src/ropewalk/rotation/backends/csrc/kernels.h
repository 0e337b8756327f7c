// The kernels, written once over the vectors of an instruction set. Each isa_*.cpp includes its vectors, then this.
// Everything here has internal linkage, and no library template is used: code for one instruction set must never
// be merged with another's by the linker.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "job.h"
#include "sincos.h"

namespace {

using ropewalk::Dtype;
using ropewalk::Kernels;
using ropewalk::Rotation;
using ropewalk::Side;
using ropewalk::Strides;
using ropewalk::Tables;
using ropewalk::token_block;

template <typename T>
struct ComputesIn {
    using Vector = Floats;
};
template <>
struct ComputesIn<double> {
    using Vector = Doubles;
};

// What all rows of a call share.
template <typename C>
struct Turning {
    int64_t head_dim, pairs;
    C cos_scale, sin_scale;
};

// Whether a row is turned as 32-bit words of two bf16 neighbours, or without a move across lanes.
template <typename In, typename Out>
constexpr bool both_bf16 = false;
template <>
constexpr bool both_bf16<bf16, bf16> = true;

// The tables of the chunk of pairs at `j`: cosines, then sines, `tables_of_chunk` vectors in all.
template <bool Interleaved, bool Packed>
constexpr int tables_of_chunk = Interleaved && Packed ? 2 : 4;
template <bool Interleaved, bool Packed, typename V, typename C = typename V::scalar>
inline void load_tables(const C* cos, const C* sin, int64_t j, const Turning<C>& turning, V* tables) {
    constexpr int W = V::width, half = tables_of_chunk<Interleaved, Packed> / 2;
    if constexpr (Interleaved && Packed) {
        tables[0] = V::load(cos + j), tables[1] = V::load(sin + j);
    } else if constexpr (Interleaved) {
        tables[0] = V::load_twice(cos + j), tables[1] = V::load_twice(cos + j + W / 2);
        tables[2] = V::load_twice(sin + j), tables[3] = V::load_twice(sin + j + W / 2);
    } else if constexpr (Packed) {
        load_packed(cos + j, tables[0], tables[1]);
        load_packed(sin + j, tables[2], tables[3]);
    } else {
        tables[0] = V::load(cos + j), tables[1] = V::load(cos + j + W);
        tables[2] = V::load(sin + j), tables[3] = V::load(sin + j + W);
    }
    for (int i = 0; i < half; ++i) {
        tables[i] = tables[i] * V::of(turning.cos_scale);
        tables[half + i] = tables[half + i] * V::of(turning.sin_scale);
    }
}

// The tables of all chunks of a token, for all its heads.
template <bool Interleaved, bool Packed, typename V, typename C = typename V::scalar>
inline void ready_tables(const C* cos, const C* sin, const Turning<C>& turning, C* ready) {
    constexpr int count = tables_of_chunk<Interleaved, Packed>;
    for (int64_t j = 0; j < turning.pairs; j += (Interleaved ? 1 : 2) * V::width) {
        V tables[count];
        load_tables<Interleaved, Packed>(cos, sin, j, turning, tables);
        for (int i = 0; i < count; ++i, ready += V::width) put(ready, tables[i]);
    }
}

// `pairs` pairs from features x to y, a multiple of 2 * width (half-split: b lies `apart` after a) or of width
// (interleaved). With Norm each feature is first multiplied by `r` and its weight. With Ready `cos` are `ready_tables`.
template <bool Interleaved, bool Norm, bool Ready = false, typename V, typename In, typename Out,
          typename C = typename V::scalar>
inline void turn_chunks(const In* x, Out* y, int64_t in_apart, int64_t out_apart, const C* cos, const C* sin,
                        const C* weight, int64_t pairs, const Turning<C>& turning, V r, bool stream) {
    constexpr int W = V::width;
    constexpr bool packed = both_bf16<In, Out> && !Norm;
    constexpr int count = tables_of_chunk<Interleaved, packed>;
    const auto feature = [&](int64_t at) {
        V v = V::load(x + at);
        if constexpr (Norm) v = v * (r * V::load(weight + at));
        return v;
    };
    for (int64_t j = 0; j < pairs; j += (Interleaved ? 1 : 2) * W) {
        V t[count];
        if constexpr (Ready)
            for (int i = 0; i < count; ++i, cos += W) t[i] = V::load(cos);
        else
            load_tables<Interleaved, packed>(cos, sin, j, turning, t);
        if constexpr (Interleaved && packed) {
            V even, odd;
            load_pairs(x + 2 * j, even, odd);
            store_pairs(y + 2 * j, multiply_subtract(even, t[0], odd * t[1]), multiply_add(odd, t[0], even * t[1]), stream);
        } else if constexpr (Interleaved) {
            const V x0 = feature(2 * j), x1 = feature(2 * j + W);
            store(y + 2 * j, alternate(x0, t[0], x0.swapped() * t[2]), alternate(x1, t[1], x1.swapped() * t[3]), stream);
        } else if constexpr (packed) {
            V a0, a1, b0, b1;
            load_packed(x + j, a0, a1);
            load_packed(x + in_apart + j, b0, b1);
            store_packed(y + j, multiply_subtract(a0, t[0], b0 * t[2]), multiply_subtract(a1, t[1], b1 * t[3]), stream);
            store_packed(y + out_apart + j, multiply_add(b0, t[0], a0 * t[2]), multiply_add(b1, t[1], a1 * t[3]), stream);
        } else {
            const V a0 = feature(j), a1 = feature(j + W);
            const V b0 = feature(in_apart + j), b1 = feature(in_apart + j + W);
            store(y + j, multiply_subtract(a0, t[0], b0 * t[2]), multiply_subtract(a1, t[1], b1 * t[3]), stream);
            store(y + out_apart + j, multiply_add(b0, t[0], a0 * t[2]), multiply_add(b1, t[1], a1 * t[3]), stream);
        }
    }
}

// The leading 2 * pairs features of one head, whatever their number: what is no whole chunk goes through a buffer.
template <bool Interleaved, bool Norm, typename V, typename In, typename Out, typename C = typename V::scalar>
inline void turn_row(const In* x, Out* y, const C* cos, const C* sin, const C* weight, const Turning<C>& turning,
                     V r, bool stream) {
    constexpr int chunk = (Interleaved ? 1 : 2) * V::width;
    const int64_t pairs = turning.pairs, whole = pairs / chunk * chunk, rest = pairs - whole;
    turn_chunks<Interleaved, Norm>(x, y, pairs, pairs, cos, sin, weight, whole, turning, r, stream);
    if (rest == 0) return;
    In xs[2 * chunk] = {};
    Out ys[2 * chunk];
    C cs[chunk] = {}, ss[chunk] = {}, ws[2 * chunk] = {};
    const int64_t first = Interleaved ? 2 * whole : whole, count = Interleaved ? 2 * rest : rest;
    std::memcpy(xs, x + first, count * sizeof(In));
    std::memcpy(cs, cos + whole, rest * sizeof(C));
    std::memcpy(ss, sin + whole, rest * sizeof(C));
    if (Norm) std::memcpy(ws, weight + first, count * sizeof(C));
    if (!Interleaved) {
        std::memcpy(xs + chunk, x + pairs + first, count * sizeof(In));
        if (Norm) std::memcpy(ws + chunk, weight + pairs + first, count * sizeof(C));
    }
    turn_chunks<Interleaved, Norm>(xs, ys, chunk, chunk, cs, ss, ws, chunk, turning, r, false);
    std::memcpy(y + first, ys, count * sizeof(Out));
    if (!Interleaved) std::memcpy(y + pairs + first, ys + chunk, count * sizeof(Out));
}

// The rotated features of one head, at their places in x and y. `weight` is for those of the whole head.
template <bool Interleaved, bool Norm, typename V, typename In, typename Out, typename C = typename V::scalar>
inline void turn_window(const Rotation& job, const In* x, Out* y, const C* cos, const C* sin, const C* weight, V r,
                        bool stream) {
    const Turning<C> turning{job.head_dim, job.pairs, static_cast<C>(job.cos_scale), static_cast<C>(job.sin_scale)};
    const int64_t at = job.first;
    turn_row<Interleaved, Norm>(x + at, y + at, cos, sin, Norm ? weight + at : nullptr, turning, r, stream);
}

// 1 / sqrt(mean(x^2) + eps) of one head.
template <typename V, typename T>
inline double inverse_rms(const T* x, int64_t size, double eps) {
    V squares = V::of(0);
    int64_t j = 0;
    for (; j + V::width <= size; j += V::width) {
        const V v = V::load(x + j);
        squares = multiply_add(v, v, squares);
    }
    double sum = squares.sum();
    for (; j < size; ++j) sum += static_cast<double>(widen(x[j])) * widen(x[j]);
    return 1.0 / std::sqrt(sum / static_cast<double>(size) + eps);
}

template <typename T>
inline void gather(const T* x, T* to, int64_t stride, int64_t size) {
    for (int64_t j = 0; j < size; ++j) to[j] = x[j * stride];
}
template <typename T>
inline void scatter(const T* from, T* y, int64_t stride, int64_t size) {
    for (int64_t j = 0; j < size; ++j) y[j * stride] = from[j];
}

// Rows for one head of features that lie apart, in and out.
template <typename T>
struct HeadRows {
    T *in = nullptr, *out = nullptr;
};

// One head of one token: normed if there is a weight, rotated, other features copied.
template <typename T, bool Interleaved>
inline void head(const Rotation& job, const Side& side, const T* x, char* out, int64_t row,
                 const HeadRows<T>& scratch) {
    using V = typename ComputesIn<T>::Vector;
    using C = typename V::scalar;
    const C *cos = static_cast<const C*>(job.cos) + row, *sin = static_cast<const C*>(job.sin) + row;
    const C* weight = static_cast<const C*>(side.weight);
    const int64_t size = job.head_dim, stride = side.out_strides.feature;
    if (side.in_strides.feature != 1) {
        gather(x, scratch.in, side.in_strides.feature, size);
        x = scratch.in;
    }
    const double r = weight ? inverse_rms<V>(x, size, job.eps) : 0.0;
    const int64_t first = job.first, turned = 2 * job.pairs;
    T *y = reinterpret_cast<T*>(out), *target = stride != 1 ? scratch.out : y;
    if (weight) {
        const V norm = V::of(static_cast<C>(r));
        turn_window<Interleaved, true>(job, x, target, cos, sin, weight, norm, side.stream);
        for (int64_t j = 0; j < first; ++j) narrow(widen(x[j]) * (static_cast<C>(r) * weight[j]), target[j]);
        for (int64_t j = first + turned; j < size; ++j) narrow(widen(x[j]) * (static_cast<C>(r) * weight[j]), target[j]);
    } else if (side.copied) {
        if (x != target) std::memcpy(target, x, size * sizeof(T));
    } else {
        if (turned) turn_window<Interleaved, false>(job, x, target, cos, sin, weight, V::of(0), side.stream);
        if (turned < size && x != target) {
            std::memcpy(target, x, first * sizeof(T));
            std::memcpy(target + first + turned, x + first + turned, (size - first - turned) * sizeof(T));
        }
    }
    if (target != y) scatter(target, y, stride, size);
}

// Calls visit(batch, token, head) for the units' tokens and a side's heads, in the order in which they lie in memory.
template <typename Visit>
inline void each_head(const Rotation& job, const Side& side, int64_t unit, const Visit& visit) {
    const int64_t blocks = (job.tokens + token_block - 1) / token_block;
    const int64_t b = unit / blocks, from = unit % blocks * token_block;
    const int64_t to = from + token_block < job.tokens ? from + token_block : job.tokens;
    if (side.in_strides.head > side.in_strides.token) {
        for (int64_t h = 0; h < side.heads; ++h)
            for (int64_t t = from; t < to; ++t) visit(b, t, h);
    } else {
        for (int64_t t = from; t < to; ++t)
            for (int64_t h = 0; h < side.heads; ++h) visit(b, t, h);
    }
}

inline int64_t row_of(const Rotation& job, int64_t b, int64_t t, int64_t h) {
    return b * job.table_batch + t * job.table_token + h * job.table_head;
}
inline int64_t offset(const Strides& s, int64_t b, int64_t t, int64_t h) {
    return b * s.batch + t * s.token + h * s.head;
}

// Only the rotation: nothing else becomes of these heads.
inline bool is_only_turned(const Side& side) {
    return !side.weight && !side.copied && !side.slots && side.in_strides.feature == 1 &&
           side.out_strides.feature == 1;
}

// A unit of such heads. The heads of a token share their tables, made ready once, if the token's heads follow each other.
template <typename T, bool Interleaved>
inline void turn_unit(const Rotation& job, const Side& side, int64_t unit) {
    using V = typename ComputesIn<T>::Vector;
    using C = typename V::scalar;
    constexpr int chunk = (Interleaved ? 1 : 2) * V::width, most_pairs = 256, least_heads = 4;
    alignas(64) C ready[4 * most_pairs];
    const Turning<C> turning{job.head_dim, job.pairs, static_cast<C>(job.cos_scale), static_cast<C>(job.sin_scale)};
    const bool share = job.table_head == 0 && side.heads >= least_heads && side.in_strides.head <= side.in_strides.token &&
                       job.pairs <= most_pairs && job.pairs % chunk == 0;
    const int64_t turned = 2 * job.pairs, after = job.first + turned, rest = job.head_dim - after;
    each_head(job, side, unit, [&](int64_t b, int64_t t, int64_t h) {
        const T* x = reinterpret_cast<const T*>(side.in) + offset(side.in_strides, b, t, h);
        T* y = reinterpret_cast<T*>(side.out) + offset(side.out_strides, b, t, h);
        const int64_t row = row_of(job, b, t, h);
        const C *cos = static_cast<const C*>(job.cos) + row, *sin = static_cast<const C*>(job.sin) + row;
        if (share) {
            if (h == 0) ready_tables<Interleaved, both_bf16<T, T>, V>(cos, sin, turning, ready);
            turn_chunks<Interleaved, false, true>(x + job.first, y + job.first, job.pairs, job.pairs, ready, ready,
                                                  static_cast<const C*>(nullptr), job.pairs, turning, V::of(0), side.stream);
        } else if (turned) {
            turn_row<Interleaved, false>(x + job.first, y + job.first, cos, sin, static_cast<const C*>(nullptr), turning,
                                         V::of(0), side.stream);
        }
        if (turned < job.head_dim && x != y) {
            std::memcpy(y, x, job.first * sizeof(T));
            std::memcpy(y + after, x + after, rest * sizeof(T));
        }
    });
}

template <typename T, bool Interleaved>
void rotate_units(const Rotation& job, int64_t begin, int64_t end) {
    HeadRows<T> scratch;
    bool streamed = false, needed = false;
    for (int i = 0; i < job.sides; ++i) {
        const Side& side = job.side[i];
        needed = needed || side.in_strides.feature != 1 || side.out_strides.feature != 1;
        streamed = streamed || side.stream;
    }
    char* memory = nullptr;
    if (needed) {
        memory = static_cast<char*>(std::malloc(job.head_dim * 2 * sizeof(T)));
        scratch.in = reinterpret_cast<T*>(memory);
        scratch.out = scratch.in + job.head_dim;
    }
    for (int64_t unit = begin; unit < end; ++unit) {
        for (int i = 0; i < job.sides; ++i) {
            const Side& side = job.side[i];
            if (is_only_turned(side)) {
                turn_unit<T, Interleaved>(job, side, unit);
                continue;
            }
            const T* in = reinterpret_cast<const T*>(side.in);
            const int64_t out_size = ropewalk::item_size(job.dtype);
            each_head(job, side, unit, [&](int64_t b, int64_t t, int64_t h) {
                const int64_t slot = side.slots ? side.slots[b * side.slot_batch + t * side.slot_token] : t;
                if (slot < 0) return;
                head<T, Interleaved>(job, side, in + offset(side.in_strides, b, t, h),
                                     side.out + out_size * offset(side.out_strides, b, slot, h), row_of(job, b, t, h),
                                     scratch);
            });
        }
    }
    if (streamed) fence();
    std::free(memory);
}

template <typename T>
void rotate_as(const Rotation& job, int64_t begin, int64_t end) {
    job.interleaved ? rotate_units<T, true>(job, begin, end) : rotate_units<T, false>(job, begin, end);
}
void rotate(const Rotation& job, int64_t begin, int64_t end) {
    switch (job.dtype) {
        case Dtype::float64: return rotate_as<double>(job, begin, end);
        case Dtype::float32: return rotate_as<float>(job, begin, end);
        case Dtype::bfloat16: return rotate_as<bf16>(job, begin, end);
        case Dtype::float16: return rotate_as<f16>(job, begin, end);
    }
}

}  // namespace
