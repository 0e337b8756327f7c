// Few queries, as in decoding: features in the lanes, so that keys and values are read as they lie and no lane is idle.
#pragma once
#include "attention_parts.h"

namespace {

constexpr int columns_at_once = 4;
constexpr int features_at_once = vectors_at_once > 1 && lanes == 16 ? 4 : 2;  // vectors of sums for each column

// Whether so few columns meet each key that lanes full of columns would be idle for the most part.
inline bool is_few(const Attention& job, int per_unit) {
    return job.queries * job.groups() * 2 * per_unit <= lanes;
}

// Logits of up to 4 columns against `count` keys, a row of `tile` floats for each column; `rows` holds their products.
template <int C, typename K>
inline void score(const float* q, int64_t units, const K* k, int64_t stride, int64_t count, float* logits, float* rows) {
    for (int64_t first = 0; first < count; first += lanes) {
        for (int64_t i = 0; i < lanes; ++i) {
            const K* const key = k + (first + i < count ? first + i : count - 1) * stride;
            Floats acc[C];
            for (int c = 0; c < C; ++c) acc[c] = Floats::of(0.0f);
            for (int64_t f = 0; f < units; f += lanes) {
                const Floats x = Floats::load(key + f);
                for (int c = 0; c < C; ++c) acc[c] = multiply_add(x, Floats::load(q + c * units + f), acc[c]);
            }
            for (int c = 0; c < C; ++c) put(rows + (c * lanes + i) * lanes, acc[c]);
        }
        for (int c = 0; c < C; ++c) put(logits + c * tile + first, sums_of_rows(rows + c * lanes * lanes));
    }
}

// sums[c][f] += weights[c][key] * v[key][f] for `Vectors` vectors of features.
template <int C, int Vectors, typename V>
inline void add_values(const V* v, int64_t stride, int64_t count, const float* weights, float* sums, int64_t features) {
    Floats acc[C][Vectors];
    for (int c = 0; c < C; ++c)
        for (int i = 0; i < Vectors; ++i) acc[c][i] = Floats::of(0.0f);
    for (int64_t key = 0; key < count; ++key, v += stride) {
        Floats x[Vectors];
        for (int i = 0; i < Vectors; ++i) x[i] = Floats::load(v + i * lanes);
        for (int c = 0; c < C; ++c) {
            const Floats weight = Floats::of(weights[c * tile + key]);
            for (int i = 0; i < Vectors; ++i) acc[c][i] = multiply_add(weight, x[i], acc[c][i]);
        }
    }
    for (int c = 0; c < C; ++c)
        for (int i = 0; i < Vectors; ++i) {
            float* const sum = sums + c * features + i * lanes;
            put(sum, Floats::load(sum) + acc[c][i]);
        }
}

// A tile of keys and values, rows of whole vectors of features.
template <typename K, typename V>
struct Run {
    const K* keys;
    const V* values;
    int64_t key_stride, value_stride, first, count;
    bool masked, careful;
};

// Logits to weights, of one column; its total and, where the maximum grew, its sums follow.
inline void weigh(const Attention& job, int64_t first, int64_t count, bool masked, int64_t column, float* logits,
                  const Scratch& s) {
    float ascending[lanes];
    for (int i = 0; i < lanes; ++i) ascending[i] = static_cast<float>(first + i);
    const bool capped = job.softcap > 0.0f;
    const Floats scale = Floats::of(s.scales[column] * (capped ? 2.0f * log2_of_e / job.softcap : log2_of_e));
    const Floats cap = Floats::of(job.softcap * log2_of_e);
    const int64_t whole = padded(count, lanes);
    const Floats low = Floats::of(s.low[column]);
    const float end = static_cast<float>(first + count);
    const Floats high = Floats::of(s.high[column] < end ? s.high[column] : end);
    Floats best = Floats::of(nothing_yet);
    for (int64_t i = 0; i < whole; i += lanes) {
        Floats logit = Floats::load(logits + i) * scale;
        if (capped) logit = cap * tanh_of(logit);
        if (masked || i + lanes > count)
            logit = seen_from(logit, Floats::load(ascending) + Floats::of(static_cast<float>(i)), low, high);
        best = largest(best, logit);
        put(logits + i, logit);
    }
    float of_lanes[lanes], most = nothing_yet;
    put(of_lanes, best);
    for (int i = 0; i < lanes; ++i) most = of_lanes[i] > most ? of_lanes[i] : most;
    if (most > s.maximum[column] + lazily) {
        const Floats less = power_of_2(Floats::of(s.maximum[column] - most));
        put(of_lanes, less);
        s.maximum[column] = most;
        s.total[column] *= of_lanes[0];
        float* const sums = s.sums + column * s.features;
        for (int64_t f = 0; f < s.features; f += lanes) put(sums + f, Floats::load(sums + f) * less);
    }
    const Floats shift = Floats::of(s.maximum[column]);
    Floats total = Floats::of(0.0f);
    for (int64_t i = 0; i < whole; i += lanes) {
        const Floats weight = power_of_2(Floats::load(logits + i) - shift);
        total = total + weight;
        put(logits + i, weight);
    }
    s.total[column] += static_cast<float>(total.sum());
}

template <int C, typename K, typename V>
void meet_few(const Attention& job, const Run<K, V>& run, int64_t column, const Scratch& s) {
    float *const logits = s.weights, *const sums = s.sums + column * s.features;
    score<C>(reinterpret_cast<const float*>(s.queries) + column * s.units, s.units, run.keys, run.key_stride, run.count,
             logits, logits + C * tile);
    for (int c = 0; c < C; ++c) weigh(job, run.first, run.count, run.masked, column + c, logits + c * tile, s);
    if (run.careful) {  // a weight of 0 times an infinite value is NaN
        for (int c = 0; c < C; ++c)
            for (int64_t key = 0; key < run.count; ++key)
                if (const float weight = logits[c * tile + key]; weight != 0.0f)
                    for (int64_t f = 0; f < s.features; ++f)
                        sums[c * s.features + f] += weight * widen(run.values[key * run.value_stride + f]);
        return;
    }
    constexpr int64_t step = features_at_once * lanes;
    int64_t f = 0;
    for (; f + step <= s.features; f += step)
        add_values<C, features_at_once>(run.values + f, run.value_stride, run.count, logits, sums + f, s.features);
    for (; f < s.features; f += lanes)
        add_values<C, 1>(run.values + f, run.value_stride, run.count, logits, sums + f, s.features);
}

template <typename K, typename V>
void meet_all(const Attention& job, const Run<K, V>& run, int64_t columns, const Scratch& s) {
    int64_t column = 0;
    for (; column + 4 <= columns; column += 4) meet_few<4>(job, run, column, s);
    if (columns - column == 3) meet_few<3>(job, run, column, s);
    if (columns - column == 2) meet_few<2>(job, run, column, s);
    if (columns - column == 1) meet_few<1>(job, run, column, s);
}

template <typename T>
void attend_few(const Attention& job, const Task& task, const Scratch& s) {
    const int64_t columns = columns_of(job, task), size = job.head_dim;
    begin_columns(job, task, columns, s);
    const bool whole = size % lanes == 0;
    const Strides &of_v = job.v.strides;
    for (int number = 0; number < job.regions; ++number) {
        const Region& region = job.region[number];
        Span all{job.keys, 0}, every{0, job.keys};  // keys that some column sees, and that each sees
        for (int64_t column = 0; column < columns; ++column) {
            const Column at = column_of(job, task, column);
            const Span span = span_of(job, region, task.batch, at.query);
            s.low[column] = static_cast<float>(span.low);
            s.high[column] = static_cast<float>(span.high);
            every.low = span.low > every.low ? span.low : every.low;
            every.high = span.high < every.high ? span.high : every.high;
            if (span.low < span.high) {
                all.low = span.low < all.low ? span.low : all.low;
                all.high = span.high > all.high ? span.high : all.high;
            }
            const T* const q = reinterpret_cast<const T*>(region.q.data) + place(region.q, task.batch, at.head, at.query);
            fetch<InFloats>(q, region.q.strides.feature, size, s.queries + column * s.units, s.units,
                            static_cast<T*>(s.buffer));
        }
        const Strides& of_k = region.k.strides;
        const bool keys_lie = whole && !region.cos && of_k.feature == 1, values_lie = whole && of_v.feature == 1;
        for (int64_t first = all.low; first < all.high; first += tile) {
            const int64_t count = (first + tile < all.high ? first + tile : all.high) - first;
            const bool masked = every.low > first || every.high < first + count;
            const bool careful = masked && any_infinite<T>(job, task, first, count);
            const T* const k = reinterpret_cast<const T*>(region.k.data) + place(region.k, task.batch, task.kv_head, first);
            const T* const v = reinterpret_cast<const T*>(job.v.data) + place(job.v, task.batch, task.kv_head, first);
            if (keys_lie && values_lie) {
                meet_all(job, Run<T, T>{k, v, of_k.token, of_v.token, first, count, masked, careful}, columns, s);
                continue;
            }
            copy_keys<InFloats, T>(job, task, region, first, count, s);
            if (values_lie) {
                meet_all(job, Run<float, T>{reinterpret_cast<const float*>(s.keys), v, s.units, of_v.token, first, count,
                                            masked, careful}, columns, s);
                continue;
            }
            copy_values<T>(job, task, first, count, s);
            meet_all(job, Run<float, float>{reinterpret_cast<const float*>(s.keys), reinterpret_cast<const float*>(s.values),
                                            s.units, s.features, first, count, masked, careful}, columns, s);
        }
    }
    for (int64_t column = 0; column < columns; ++column)
        give_row<T>(job, task, column, s, s.sums + column * s.features);
}

}  // namespace
