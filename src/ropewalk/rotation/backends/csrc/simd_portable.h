// Vectors in plain C++ for every other processor: short arrays that the compiler vectorizes.
#pragma once
#include "numbers.h"

namespace {

template <typename T, int Width>
struct Array {
    using scalar = T;
    static constexpr int width = Width;
    T v[Width];
    static Array of(T x) {
        Array r;
        for (int i = 0; i < Width; ++i) r.v[i] = x;
        return r;
    }
    template <typename S>
    static Array load(const S* p) {
        Array r;
        for (int i = 0; i < Width; ++i) r.v[i] = widen(p[i]);
        return r;
    }
    static Array load_twice(const T* p) {
        Array r;
        for (int i = 0; i < Width; ++i) r.v[i] = p[i / 2];
        return r;
    }
    Array swapped() const {
        Array r;
        for (int i = 0; i < Width; ++i) r.v[i] = v[i ^ 1];
        return r;
    }
    double sum() const {
        T s = 0;
        for (int i = 0; i < Width; ++i) s += v[i];
        return s;
    }
};
template <typename T, int W>
inline Array<T, W> operator+(Array<T, W> a, Array<T, W> b) {
    for (int i = 0; i < W; ++i) a.v[i] += b.v[i];
    return a;
}
template <typename T, int W>
inline Array<T, W> operator*(Array<T, W> a, Array<T, W> b) {
    for (int i = 0; i < W; ++i) a.v[i] *= b.v[i];
    return a;
}
template <typename T, int W>
inline Array<T, W> multiply_add(Array<T, W> a, Array<T, W> b, Array<T, W> c) {
    for (int i = 0; i < W; ++i) a.v[i] = a.v[i] * b.v[i] + c.v[i];
    return a;
}
template <typename T, int W>
inline Array<T, W> multiply_subtract(Array<T, W> a, Array<T, W> b, Array<T, W> c) {
    for (int i = 0; i < W; ++i) a.v[i] = a.v[i] * b.v[i] - c.v[i];
    return a;
}
template <typename T, int W>
inline Array<T, W> alternate(Array<T, W> a, Array<T, W> b, Array<T, W> c) {
    for (int i = 0; i < W; i += 2) {
        a.v[i] = a.v[i] * b.v[i] - c.v[i];
        a.v[i + 1] = a.v[i + 1] * b.v[i + 1] + c.v[i + 1];
    }
    return a;
}
template <typename S, typename T, int W>
inline void store(S* p, Array<T, W> a, Array<T, W> b, bool) {
    for (int i = 0; i < W; ++i) narrow(a.v[i], p[i]);
    for (int i = 0; i < W; ++i) narrow(b.v[i], p[W + i]);
}
// Twice W numbers in the order that suits the processor; here their own.
template <typename S, typename T, int W>
inline void load_packed(const S* p, Array<T, W>& a, Array<T, W>& b) {
    a = Array<T, W>::load(p);
    b = Array<T, W>::load(p + W);
}
template <typename T, int W>
inline void store_packed(bf16* p, Array<T, W> a, Array<T, W> b, bool stream) {
    store(p, a, b, stream);
}
// W pairs of neighbours, as two vectors.
template <typename T, int W>
inline void load_pairs(const bf16* p, Array<T, W>& even, Array<T, W>& odd) {
    for (int i = 0; i < W; ++i) even.v[i] = widen(p[2 * i]), odd.v[i] = widen(p[2 * i + 1]);
}
template <typename T, int W>
inline void store_pairs(bf16* p, Array<T, W> even, Array<T, W> odd, bool) {
    for (int i = 0; i < W; ++i) narrow(even.v[i], p[2 * i]), narrow(odd.v[i], p[2 * i + 1]);
}
template <typename T, int W>
inline void put(T* p, Array<T, W> a) {
    std::memcpy(p, a.v, sizeof a.v);
}
inline void fence() {}

using Floats = Array<float, 8>;
using Doubles = Array<double, 4>;


// More that attention needs.
constexpr int vectors_at_once = 1, broadcasts_at_once = 4;
inline Floats operator-(Floats a, Floats b) {
    for (int i = 0; i < Floats::width; ++i) a.v[i] -= b.v[i];
    return a;
}
inline Floats operator/(Floats a, Floats b) {
    for (int i = 0; i < Floats::width; ++i) a.v[i] /= b.v[i];
    return a;
}
inline Floats largest(Floats a, Floats b) {  // b where either is NaN
    for (int i = 0; i < Floats::width; ++i) a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
    return a;
}
inline bool any_above(Floats a, Floats b) {
    bool any = false;
    for (int i = 0; i < Floats::width; ++i) any = any || a.v[i] > b.v[i];
    return any;
}
// 2^x: a polynomial of the part behind the point, and the exponent; 0 below 2^-126, NaN for NaN.
inline Floats power_of_2(Floats x) {
    Floats part, power;
    for (int i = 0; i < Floats::width; ++i) {
        const float below = x.v[i] > 128.0f ? 128.0f : x.v[i], bounded = below < -127.0f ? -127.0f : below;
        const bool is_nan = bounded != bounded;
        const int towards_zero = static_cast<int>(is_nan ? 0.0f : bounded);
        const int whole = towards_zero - (static_cast<float>(towards_zero) > bounded);
        part.v[i] = bounded - static_cast<float>(whole);
        power.v[i] = from_bits(static_cast<uint32_t>(whole + 127) << 23);
    }
    return power_of_part(part) * power;
}
// The sum of each of 8 rows of 8 numbers.
inline Floats sums_of_rows(const float* rows) {
    Floats sums;
    for (int i = 0; i < Floats::width; ++i) sums.v[i] = static_cast<float>(Floats::load(rows + i * Floats::width).sum());
    return sums;
}
// `score` where low <= key < high, else -infinity.
inline Floats seen_from(Floats score, Floats key, Floats low, Floats high) {
    for (int i = 0; i < Floats::width; ++i)
        score.v[i] = low.v[i] <= key.v[i] && key.v[i] < high.v[i] ? score.v[i] : -__builtin_inff();
    return score;
}
// A square of 8 x 8 units; `from` and `to` are the units between rows.
inline void transpose(const uint32_t* x, int64_t from, uint32_t* y, int64_t to) {
    for (int i = 0; i < Floats::width; ++i)
        for (int j = 0; j < Floats::width; ++j) y[j * to + i] = x[i * from + j];
}

}  // namespace
