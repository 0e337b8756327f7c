// Many queries against tiles of keys: both products fill the lanes of vectors with columns.
#pragma once
#include "attention_parts.h"

namespace {

// One tile of keys as a group of columns meets it: rows `begin .. end - 1` of it, which begin at key `first`.
struct Meeting {
    Tile keys, values;
    int64_t first, begin, end;
    bool masked;    // whether some column does not see all these keys
    bool careful;   // whether a value that is not seen could spoil others: infinite, or NaN
};

// What a group of columns keeps from tile to tile.
struct Group {
    const Unit* queries;
    float *sums, *maximum, *total, *scales, *low, *high;
};

template <int R>
inline void rescale(const Group& g, int64_t features, const Floats (&largest_here)[R]) {
    Floats old[R], fresh[R];
    bool grown = false;
    for (int r = 0; r < R; ++r) {
        old[r] = Floats::load(g.maximum + r * lanes);
        grown = grown || any_above(largest_here[r], old[r] + Floats::of(lazily));
    }
    if (!grown) return;
    for (int r = 0; r < R; ++r) {
        fresh[r] = largest(largest_here[r], old[r]);
        put(g.maximum + r * lanes, fresh[r]);
        fresh[r] = power_of_2(old[r] - fresh[r]);
        put(g.total + r * lanes, Floats::load(g.total + r * lanes) * fresh[r]);
    }
    for (int64_t f = 0; f < features; ++f)
        for (int r = 0; r < R; ++r) {
            float* const sum = g.sums + (f * R + r) * lanes;
            put(sum, Floats::load(sum) * fresh[r]);
        }
}

// A weight of 0 times an infinite value is NaN: here such keys are passed over, one by one.
template <typename In, typename T>
void add_carefully(const Attention& job, const Task& task, const Meeting& m, const float* weights, int width,
                   float* sums) {
    const T* const v = reinterpret_cast<const T*>(job.v.data) + place(job.v, task.batch, task.kv_head, m.first);
    for (int64_t key = m.begin; key < m.end; ++key)
        for (int column = 0; column < width; ++column) {
            const int64_t row = key - m.begin;
            float weight;
            if constexpr (In::per_unit == 1)
                weight = weights[row * width + column];
            else
                weight = widen(reinterpret_cast<const bf16*>(weights)[(row / 2 * width + column) * 2 + row % 2]);
            if (weight == 0.0f) continue;
            for (int64_t f = 0; f < job.head_dim; ++f)
                sums[f * width + column] +=
                    weight * widen(v[key * job.v.strides.token + f * job.v.strides.feature]);
        }
}

#ifdef __AVX512BF16__
// Two keys' products of one vector of columns, R vectors apart, to units of weights. At `numbers` stand scales, shifts
// and sums of weights, R vectors of each. All is read through pointers that the compiler knows nothing of: what it
// would keep in registers would push the sums of the next products out.
template <int R>
inline __attribute__((always_inline)) void weigh_pair(const float* products, float* numbers, float* to) {
    constexpr int width = R * lanes;
    const float* p = InPairs::polynomial;
    const auto weight = [&](int key) __attribute__((always_inline)) {
        __asm__("" : "+r"(p), "+r"(products), "+r"(numbers));
        const Floats scale = Floats::load(numbers), shift = Floats::load(numbers + width);
        return InPairs::power_of_2(multiply_subtract(scale, Floats::load(products + key * width), shift), p);
    };
    const Floats a = weight(0), b = weight(1);
    put(numbers + 2 * width, Floats::load(numbers + 2 * width) + (a + b));
    InPairs::put_pairs(to, a, b);
}

// Weights of keys that all columns see, by the maximum so far: those of a block of keys between the products of the
// next one, which leave half of the processor's pipes idle. False, and nothing is changed, where a logit may lie so far
// above the maximum that the sums must be scaled first.
template <int R>
inline bool weigh_at_once(const Meeting& m, const Group& g, int64_t units, float* weights) {
    constexpr int N = broadcasts_at_once, width = R * lanes, parts = N / 2 * R;
    constexpr float most = 256.0f * keys_at_once<InPairs>;  // the sum where each weight is 2^lazily
    alignas(64) float products[N * width], numbers[3 * width];
    for (int r = 0; r < width; r += lanes) {
        const Floats shift = Floats::load(g.maximum + r);
        if (any_above(Floats::of(0.5f * nothing_yet), shift)) return false;
        put(numbers + r, Floats::load(g.scales + r) * Floats::of(log2_of_e));
        put(numbers + width + r, shift);
        put(numbers + 2 * width + r, Floats::of(0.0f));
    }
    int64_t steps[parts];
    for (int part = 0; part < parts; ++part) steps[part] = units * (part + 1) / parts - units * part / parts;
    for (int64_t i = m.begin; i < m.end; i += N) {
        Floats acc[N][R];
        for (int n = 0; n < N; ++n)
            for (int r = 0; r < R; ++r) acc[n][r] = Floats::of(0.0f);
        const Unit *left = g.queries, *from = m.keys.data + i * m.keys.stride;
        if (i == m.begin) {
            multiply_more<InPairs>(left, from, m.keys.stride, 1, units, acc);
        } else {
            const int64_t* step = steps;
#pragma GCC unroll 1
            for (int n = 0; n < N; n += 2)
#pragma GCC unroll 1
                for (int r = 0; r < R; ++r, weights += lanes) {
                    multiply_more<InPairs>(left, from, m.keys.stride, 1, *step++, acc);
                    weigh_pair<R>(products + n * width + r * lanes, numbers + r * lanes, weights);
                }
        }
        for (int n = 0; n < N; ++n)
            for (int r = 0; r < R; ++r) put(products + n * width + r * lanes, acc[n][r]);
    }
    for (int n = 0; n < N; n += 2)
        for (int r = 0; r < R; ++r, weights += lanes)
            weigh_pair<R>(products + n * width + r * lanes, numbers + r * lanes, weights);
    for (int r = 0; r < width; r += lanes)
        if (any_above(Floats::load(numbers + 2 * width + r), Floats::of(most))) return false;
    for (int r = 0; r < width; r += lanes)
        put(g.total + r, Floats::load(g.total + r) + Floats::load(numbers + 2 * width + r));
    return true;
}
#endif

// Weighted values of `count` units of keys, added to the sums.
template <typename In, int R>
inline void add_values(const Attention& job, const Meeting& m, const Group& g, const float* weights, int64_t count) {
    constexpr int N = broadcasts_at_once;
    const Unit* const from = m.values.data + m.begin / In::per_unit * m.values.stride;
    for (int64_t f = 0; f < job.head_dim; f += N) {
        Floats acc[N][R];
        multiply<In>(reinterpret_cast<const Unit*>(weights), from + f, 1, m.values.stride, count, acc);
        for (int n = 0; n < N; ++n)
            for (int r = 0; r < R; ++r) {
                float* const sum = g.sums + ((f + n) * R + r) * lanes;
                put(sum, Floats::load(sum) + acc[n][r]);
            }
    }
}

// Not inlined: its loops need all registers.
template <typename In, typename T, int R>
__attribute__((noinline)) void meet(const Attention& job, const Task& task, const Meeting& m, const Group& g,
                                    const Scratch& s) {
    constexpr int N = broadcasts_at_once, width = R * lanes;
    const int64_t units = (job.head_dim + In::per_unit - 1) / In::per_unit, whole = padded(m.end - m.begin, N);
    float* const weights = s.weights;
#ifdef __AVX512BF16__
    if constexpr (In::per_unit == 2) {
        const bool plain = !m.masked && !(job.softcap > 0.0f) && whole == m.end - m.begin;
        if (plain && weigh_at_once<R>(m, g, units, weights)) return add_values<In, R>(job, m, g, weights, whole / 2);
    }
#endif
    Floats best[R], scale[R], shift[R], total[R];
    for (int r = 0; r < R; ++r) {
        best[r] = Floats::of(nothing_yet);
        scale[r] = Floats::load(g.scales + r * lanes);
    }
    for (int64_t i = 0; i < whole; i += N) {
        Floats acc[N][R];
        multiply<In>(g.queries, m.keys.data + (m.begin + i) * m.keys.stride, m.keys.stride, 1, units, acc);
        for (int n = 0; n < N; ++n)
            for (int r = 0; r < R; ++r) {
                best[r] = largest(best[r], acc[n][r]);
                put(weights + (i + n) * width + r * lanes, acc[n][r]);
            }
    }
    if (m.masked || job.softcap > 0.0f) {
        const Floats cap = Floats::of(job.softcap), of_cap = Floats::of(2.0f * log2_of_e / job.softcap);
        for (int r = 0; r < R; ++r) {
            best[r] = Floats::of(nothing_yet);
            const Floats low = Floats::load(g.low + r * lanes), high = Floats::load(g.high + r * lanes);
            for (int64_t i = 0; i < whole; ++i) {
                float* const at = weights + i * width + r * lanes;
                Floats score = Floats::load(at);
                if (job.softcap > 0.0f) score = cap * tanh_of(score * (scale[r] * of_cap));
                if (m.masked) score = seen_from(score, Floats::of(static_cast<float>(m.first + m.begin + i)), low, high);
                best[r] = largest(best[r], score);
                put(at, score);
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        scale[r] = (job.softcap > 0.0f ? Floats::of(1.0f) : scale[r]) * Floats::of(log2_of_e);
        best[r] = best[r] * scale[r];
        total[r] = Floats::of(0.0f);
    }
    rescale<R>(g, s.features, best);
    for (int r = 0; r < R; ++r) shift[r] = Floats::load(g.maximum + r * lanes);
    int64_t count = m.end - m.begin;
    if constexpr (In::per_unit == 1) {
        for (int64_t i = 0; i < count; ++i)
            for (int r = 0; r < R; ++r) {
                float* const at = weights + i * width + r * lanes;
                const Floats weight = power_of_2(multiply_subtract(Floats::load(at), scale[r], shift[r]));
                total[r] = total[r] + weight;
                put(at, weight);
            }
    } else {
        count = (count + 1) / 2;
        for (int64_t i = 0; i < count; ++i)
            for (int r = 0; r < R; ++r) {
                const float* const at = weights + 2 * i * width + r * lanes;
                const Floats a = power_of_2(multiply_subtract(Floats::load(at), scale[r], shift[r]));
                const Floats b = power_of_2(multiply_subtract(Floats::load(at + width), scale[r], shift[r]));
                total[r] = total[r] + (a + b);
                In::put_pairs(weights + i * width + r * lanes, a, b);
            }
    }
    for (int r = 0; r < R; ++r) put(g.total + r * lanes, Floats::load(g.total + r * lanes) + total[r]);
    if (m.careful) return add_carefully<In, T>(job, task, m, weights, width, g.sums);
    add_values<In, R>(job, m, g, weights, count);
}

// Rows of the result, from sums in columns.
template <typename T>
void give(const Attention& job, const Task& task, const Scratch& s) {
    const int64_t columns = columns_of(job, task);
    for (int64_t first = 0; first < columns; first += group_columns) {
        const int64_t width = width_of(columns, first);
        for (int64_t begin = 0; begin < width; begin += lanes) {
            for (int64_t f = 0; f < s.features; f += lanes)
                transpose(reinterpret_cast<const Unit*>(s.sums + first * s.features + f * width + begin), width,
                          s.rows + f, s.features);
            for (int64_t lane = 0; lane < lanes && first + begin + lane < columns; ++lane) {
                const int64_t column = first + begin + lane;
                give_row<T>(job, task, column, s, reinterpret_cast<const float*>(s.rows + lane * s.features));
            }
        }
    }
}

template <typename In, typename T>
void attend_task(const Attention& job, const Task& task, const Scratch& s) {
    constexpr int64_t step = keys_at_once<In>;
    const int64_t columns = columns_of(job, task);
    begin_columns(job, task, columns, s);
    for (int number = 0; number < job.regions; ++number) {
        const Region& region = job.region[number];
        int64_t low = job.keys, high = 0;
        for (int64_t i = task.first; i < task.last; ++i) {
            const Span span = span_of(job, region, task.batch, i);
            if (span.low >= span.high) continue;
            low = span.low < low ? span.low : low;
            high = span.high > high ? span.high : high;
        }
        if (low >= high) continue;
        take_queries<In, T>(job, task, region, s);
        for (int64_t first = low / broadcasts_at_once * broadcasts_at_once; first < high; first += step) {
            const int64_t count = (first + step < high ? first + step : high) - first;
            Meeting m{take_keys<In, T>(job, task, region, first, count, s),
                      take_values<In, T>(job, task, first, count, s), first, 0, 0, false, false};
            int infinite = -1;  // not known yet
            for (int64_t at = 0; at < columns; at += group_columns) {
                const int64_t width = width_of(columns, at);
                const Extent& extent = s.extents[at / group_columns];
                const int64_t begin = extent.least_low - first, end = extent.most_high - first;
                m.begin = begin > 0 ? begin / broadcasts_at_once * broadcasts_at_once : 0;
                m.end = end < count ? end : count;
                if (m.begin >= m.end) continue;
                const int64_t whole = m.begin + padded(m.end - m.begin, broadcasts_at_once);
                m.masked = extent.most_low > first + m.begin || extent.least_high < first + whole;
                if (m.masked && infinite < 0) infinite = any_infinite<T>(job, task, first, count);
                m.careful = m.masked && infinite > 0;
                const Group g{s.queries + at * s.units, s.sums + at * s.features, s.maximum + at, s.total + at,
                              s.scales + at, s.low + at, s.high + at};
                static_assert(vectors_at_once <= 3, "one case for each width");
                if (width == lanes) meet<In, T, 1>(job, task, m, g, s);
                if constexpr (vectors_at_once > 1)
                    if (width == 2 * lanes) meet<In, T, 2>(job, task, m, g, s);
                if constexpr (vectors_at_once > 2)
                    if (width == 3 * lanes) meet<In, T, 3>(job, task, m, g, s);
            }
        }
    }
    give<T>(job, task, s);
}

}  // namespace
