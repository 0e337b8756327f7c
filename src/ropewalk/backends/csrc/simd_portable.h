// Vectors in plain C++ for every other processor: short arrays that the compiler turns into what it has.
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
inline void fence() {}

using Floats = Array<float, 8>;
using Doubles = Array<double, 4>;

}  // namespace
