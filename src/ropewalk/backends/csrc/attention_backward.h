// Gradients of attention by recomputation: weights are formed again from the saved logarithms of their sums.
//
// A task is some keys of one key head, met by all queries, so that the gradients of keys and values have one owner. The
// gradient of the queries is written apart for each task and summed by the caller. Products over keys and features are
// those of attention_tiles.h; products over columns read queries and gradients as rows of features.
#pragma once
#include "attention_tiles.h"

namespace {

using ropewalk::AttentionBackward;

template <int Count>
struct Vectors {
    static constexpr int count = Count;
};

struct BackwardScratch {
    Scratch q, g;              // of queries, keys and the queries' gradient; of the result's gradient and values
    Unit *q_rows, *g_rows;     // a row of features for each unit of columns
    float* grads;              // of the weights, then of the logits
    Unit *weights_by_columns, *grads_by_columns, *grads_by_keys;  // in pairs
    float *of_keys, *of_values;

    template <typename In>
    int64_t part(const AttentionBackward& job, char* memory) {
        int64_t used = q.part<In>(job.forward, memory);
        const auto take = [&](int64_t words) {
            char* const here = memory ? memory + used : nullptr;
            used += padded(4 * words, 64);
            return here;
        };
        const auto units = [&](int64_t words) { return reinterpret_cast<Unit*>(take(words)); };
        g = q;
        g.queries = units(q.units * q.columns);
        g.keys = units(q.units * tile);
        q_rows = units(q.features * q.columns);
        g_rows = units(q.features * q.columns);
        grads = reinterpret_cast<float*>(take(tile * group_columns));
        weights_by_columns = units(tile * group_columns);
        grads_by_columns = units(tile * group_columns);
        grads_by_keys = units(tile * group_columns);
        of_keys = reinterpret_cast<float*>(take(job.chunk * q.features));
        of_values = reinterpret_cast<float*>(take(job.chunk * q.features));
        return used;
    }
};

// Queries, or gradients like them: a row of features for each unit of columns, zeros behind the last.
template <typename In, typename T>
void take_rows(const Attention& job, const Task& task, const Rows& from, const Scratch& s, Unit* to) {
    const int64_t columns = columns_of(job, task), size = job.head_dim, stride = from.strides.feature;
    const auto row = [&](int64_t column) {
        const Column at = column_of(job, task, column);
        return reinterpret_cast<const T*>(from.data) + place(from, task.batch, at.head, at.query);
    };
    T* const buffer = static_cast<T*>(s.buffer);
    for (int64_t column = 0; column < s.columns; column += In::per_unit, to += s.features) {
        if (column >= columns) {
            std::memset(to, 0, s.features * sizeof(Unit));
        } else if constexpr (In::per_unit == 1) {
            fetch<InFloats>(row(column), stride, size, to, s.features, buffer);
        } else {
            const T* both[2];
            for (int i = 0; i < 2; ++i) {
                T* const copy = buffer + i * size;
                if (column + i >= columns)
                    std::memset(copy, 0, size * sizeof(T));
                else if (both[i] = row(column + i); stride == 1)
                    continue;
                else
                    gather(both[i], copy, stride, size);
                both[i] = copy;
            }
            pair_rows(both[0], both[1], to, size);
            std::memset(to + size, 0, (s.features - size) * sizeof(Unit));
        }
    }
}

// to[key][f] += sum over columns of weights[key][column] * rows[column][f], for W vectors of features.
template <typename In, int W>
inline void add_columns(const Unit* rows, const Unit* weights, int64_t width, float* to, int64_t features) {
    constexpr int N = broadcasts_at_once;
    Floats acc[N][W];
    multiply<In>(rows, weights, width / In::per_unit, 1, width / In::per_unit, acc, features);
    for (int n = 0; n < N; ++n)
        for (int w = 0; w < W; ++w) {
            float* const sum = to + n * features + w * lanes;
            put(sum, Floats::load(sum) + acc[n][w]);
        }
}

template <typename In>
void add_all_columns(const Unit* rows, const Unit* weights, int64_t width, int64_t keys, float* to, int64_t features) {
    for (int64_t i = 0; i < keys; i += broadcasts_at_once) {
        const Unit* const from = weights + i * (width / In::per_unit);
        int64_t f = 0;
        for (; f + 2 * lanes <= features; f += 2 * lanes)
            add_columns<In, 2>(rows + f, from, width, to + i * features + f, features);
        for (; f < features; f += lanes) add_columns<In, 1>(rows + f, from, width, to + i * features + f, features);
    }
}

// What one group of columns adds to the gradients of a tile's keys and values, and of its own queries. In `m` values
// are the keys once more, as take_values lays them; a group's maximum is log2 of its sum, its total what is taken from
// the gradients of its weights.
template <typename In, int R>
void meet_back(const Attention& job, const Meeting& m, const Tile& values, const Group& g, const Unit* g_queries,
               const Unit* q_rows, const Unit* g_rows, float* of_keys, float* of_values, const BackwardScratch& s) {
    constexpr int N = broadcasts_at_once, width = R * lanes;
    const int64_t units = (job.head_dim + In::per_unit - 1) / In::per_unit, features = s.q.features;
    const int64_t whole = padded(m.end - m.begin, N);
    float *const weights = s.q.weights, *const grads = s.grads;
    for (int64_t i = 0; i < whole; i += N) {
        Floats acc[N][R];
        multiply<In>(g.queries, m.keys.data + (m.begin + i) * m.keys.stride, m.keys.stride, 1, units, acc);
        for (int n = 0; n < N; ++n)
            for (int r = 0; r < R; ++r) put(weights + (i + n) * width + r * lanes, acc[n][r]);
        multiply<In>(g_queries, values.data + (m.begin + i) * values.stride, values.stride, 1, units, acc);
        for (int n = 0; n < N; ++n)
            for (int r = 0; r < R; ++r) put(grads + (i + n) * width + r * lanes, acc[n][r]);
    }
    const bool capped = job.softcap > 0.0f;
    const Floats cap = Floats::of(job.softcap), of_cap = Floats::of(2.0f * log2_of_e / job.softcap);
    const Floats one = Floats::of(1.0f), to_2 = Floats::of(log2_of_e);
    for (int r = 0; r < R; ++r) {
        const Floats scale = Floats::load(g.scales + r * lanes), shift = Floats::load(g.maximum + r * lanes);
        const Floats less = Floats::load(g.total + r * lanes);
        const Floats low = Floats::load(g.low + r * lanes), high = Floats::load(g.high + r * lanes);
        for (int64_t i = 0; i < whole; i += 2) {
            Floats weight[2], grad[2];
            for (int two = 0; two < 2; ++two) {
                const int64_t at = (i + two) * width + r * lanes;
                Floats logit = Floats::load(weights + at) * scale, slope = scale;
                if (capped) {
                    const Floats tanh = tanh_of(logit * of_cap);
                    logit = cap * tanh;
                    slope = slope * (one - tanh * tanh);
                }
                if (m.masked)
                    logit = seen_from(logit, Floats::of(static_cast<float>(m.first + m.begin + i + two)), low, high);
                weight[two] = power_of_2(multiply_subtract(logit, to_2, shift));
                grad[two] = weight[two] * (Floats::load(grads + at) - less) * slope;
                if constexpr (In::per_unit == 1) {
                    put(weights + at, weight[two]);
                    put(grads + at, grad[two]);
                } else {
                    In::put_row(reinterpret_cast<bf16*>(s.weights_by_columns) + at, weight[two]);
                    In::put_row(reinterpret_cast<bf16*>(s.grads_by_columns) + at, grad[two]);
                }
            }
            if constexpr (In::per_unit == 2)
                In::put_pairs(reinterpret_cast<float*>(s.grads_by_keys) + i / 2 * width + r * lanes, grad[0], grad[1]);
        }
    }
    constexpr bool pairs = In::per_unit == 2;
    const Unit* const by_columns = pairs ? s.weights_by_columns : reinterpret_cast<const Unit*>(weights);
    const Unit* const grads_by_columns = pairs ? s.grads_by_columns : reinterpret_cast<const Unit*>(grads);
    const Unit* const grads_by_keys = pairs ? s.grads_by_keys : reinterpret_cast<const Unit*>(grads);
    add_all_columns<In>(g_rows, by_columns, width, whole, of_values + m.begin * features, features);
    add_all_columns<In>(q_rows, grads_by_columns, width, whole, of_keys + m.begin * features, features);
    const int64_t count = (m.end - m.begin + In::per_unit - 1) / In::per_unit;
    const Unit* const from = m.values.data + m.begin / In::per_unit * m.values.stride;
    for (int64_t f = 0; f < job.head_dim; f += N) {
        Floats acc[N][R];
        multiply<In>(grads_by_keys, from + f, 1, m.values.stride, count, acc);
        for (int n = 0; n < N; ++n)
            for (int r = 0; r < R; ++r) {
                float* const sum = g.sums + ((f + n) * R + r) * lanes;
                put(sum, Floats::load(sum) + acc[n][r]);
            }
    }
}

// The queries' gradient of one task, from sums in columns.
inline void give_queries(const AttentionBackward& job, const Task& task, int64_t chunk, const Scratch& s) {
    const Attention& forward = job.forward;
    const int64_t columns = columns_of(forward, task);
    for (int64_t first = 0; first < columns; first += group_columns) {
        const int64_t width = width_of(columns, first);
        for (int64_t begin = 0; begin < width; begin += lanes) {
            for (int64_t f = 0; f < s.features; f += lanes)
                transpose(reinterpret_cast<const Unit*>(s.sums + first * s.features + f * width + begin), width,
                          s.rows + f, s.features);
            for (int64_t lane = 0; lane < lanes && first + begin + lane < columns; ++lane) {
                const Column at = column_of(forward, task, first + begin + lane);
                const int64_t row = (chunk * forward.batch + task.batch) * forward.queries + at.query;
                std::memcpy(job.of_queries + (row * forward.heads + at.head) * forward.head_dim, s.rows + lane * s.features,
                            forward.head_dim * sizeof(float));
            }
        }
    }
}

template <typename T>
inline void give_keys(const Rows& to, const Task& task, int64_t first, int64_t count, const float* from, int64_t features,
                      int64_t size) {
    const int64_t stride = to.strides.feature;
    for (int64_t i = 0; i < count; ++i, from += features) {
        T* const y = reinterpret_cast<T*>(to.data) + place(to, task.batch, task.kv_head, first + i);
        int64_t f = 0;
        if (stride == 1)
            for (; f + 2 * lanes <= size; f += 2 * lanes)
                store(y + f, Floats::load(from + f), Floats::load(from + f + lanes), false);
        for (; f < size; ++f) narrow(from[f], y[f * stride]);
    }
}

template <typename In, typename T>
void attend_back_task(const AttentionBackward& job, int64_t number, char* memory) {
    const Attention& forward = job.forward;
    const Region& region = forward.region[0];
    BackwardScratch s;
    s.part<In>(job, memory);
    const int64_t chunk = number % job.chunks, head = number / job.chunks;
    const int64_t from = chunk * job.chunk, to = from + job.chunk < forward.keys ? from + job.chunk : forward.keys;
    std::memset(s.of_keys, 0, job.chunk * s.q.features * sizeof(float));
    std::memset(s.of_values, 0, job.chunk * s.q.features * sizeof(float));
    Region of_grads = region;  // the result's gradient in place of queries, values in place of keys
    of_grads.q = forward.out;
    of_grads.k = forward.v;
    Attention of_keys = forward;  // keys in place of values
    of_keys.v = region.k;
    Task task{head / forward.kv_heads, head % forward.kv_heads, 0, 0};
    for (; task.first < forward.queries; task.first = task.last) {
        task.last = task.first + forward.block < forward.queries ? task.first + forward.block : forward.queries;
        int64_t low = to, high = from;
        for (int64_t i = task.first; i < task.last; ++i) {
            const Span span = span_of(forward, region, task.batch, i);
            if (span.low >= span.high) continue;
            low = span.low < low ? span.low : low;
            high = span.high > high ? span.high : high;
        }
        low = low / broadcasts_at_once * broadcasts_at_once;
        low = low > from ? low : from;
        high = high < to ? high : to;
        if (low >= high) continue;
        const int64_t columns = columns_of(forward, task);
        take_queries<In, T>(forward, task, region, s.q);
        take_queries<In, T>(forward, task, of_grads, s.g);
        take_rows<In, T>(forward, task, region.q, s.q, s.q_rows);
        take_rows<In, T>(forward, task, forward.out, s.q, s.g_rows);
        std::memset(s.q.sums, 0, s.q.features * s.q.columns * sizeof(float));
        for (int64_t column = 0; column < s.q.columns; ++column) {
            const bool real = column < columns;
            const Column at = column_of(forward, task, real ? column : 0);
            const int64_t row = (task.batch * forward.heads + at.head) * forward.queries + at.query;
            const float sum = real ? job.log_sums[row] : 0.0f;
            s.q.scales[column] = real ? forward.scale.at(task.batch, at.query) : 1.0f;
            s.q.maximum[column] = sum == -__builtin_inff() ? 0.0f : sum * log2_of_e;  // that query sees nothing
            s.q.total[column] = real ? job.less[row] : 0.0f;
        }
        for (int64_t first = low; first < high; first += tile) {
            const int64_t count = (first + tile < high ? first + tile : high) - first;
            Meeting m{take_keys<In, T>(forward, task, region, first, count, s.q),
                      take_values<In, T>(of_keys, task, first, count, s.q), first, 0, 0, false, false};
            const Tile values = take_keys<In, T>(forward, task, of_grads, first, count, s.g);
            for (int64_t at = 0; at < columns; at += group_columns) {
                const int64_t width = width_of(columns, at);
                const Extent& extent = s.q.extents[at / group_columns];
                const int64_t begin = extent.least_low - first, end = extent.most_high - first;
                m.begin = begin > 0 ? begin / broadcasts_at_once * broadcasts_at_once : 0;
                m.end = end < count ? end : count;
                if (m.begin >= m.end) continue;
                const int64_t whole = m.begin + padded(m.end - m.begin, broadcasts_at_once);
                m.masked = extent.most_low > first + m.begin || extent.least_high < first + whole;
                const Group g{s.q.queries + at * s.q.units, s.q.sums + at * s.q.features, s.q.maximum + at,
                              s.q.total + at, s.q.scales + at, s.q.low + at, s.q.high + at};
                const Unit* const g_queries = s.g.queries + at * s.q.units;
                const int64_t rows = at / In::per_unit * s.q.features, key = (first - from) * s.q.features;
                const auto meet_as = [&](auto vectors) {
                    meet_back<In, decltype(vectors)::count>(forward, m, values, g, g_queries, s.q_rows + rows,
                                                            s.g_rows + rows, s.of_keys + key, s.of_values + key, s);
                };
                if (width == lanes) meet_as(Vectors<1>{});
                if constexpr (vectors_at_once > 1)
                    if (width == 2 * lanes) meet_as(Vectors<2>{});
                if constexpr (vectors_at_once > 2)
                    if (width == 3 * lanes) meet_as(Vectors<3>{});
            }
        }
        give_queries(job, task, chunk, s.q);
    }
    give_keys<T>(job.of_keys, task, from, to - from, s.of_keys, s.q.features, forward.head_dim);
    give_keys<T>(job.of_values, task, from, to - from, s.of_values, s.q.features, forward.head_dim);
}

}  // namespace
