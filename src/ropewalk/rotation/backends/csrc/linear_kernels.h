// Few rows times large matrices, whose weights are read from memory once: what counts is how fast they stream.
#pragma once
#include "attention_parts.h"
#include "linear.h"

namespace {

using ropewalk::Linear;
using ropewalk::Matrix;

// A matrix is read one row after the other: measured at twice the rate of four rows side by side. The sums of one row
// of x are the same bits with any other rows.
constexpr int rows_together = lanes == 16 ? 4 : 2, sums_each = 4;

template <int R, typename T>
inline void dot(const T* weight, const float* x, int64_t features, float* sums) {
    Floats acc[R][sums_each];
    for (int r = 0; r < R; ++r)
        for (int i = 0; i < sums_each; ++i) acc[r][i] = Floats::of(0.0f);
    int64_t f = 0;
    for (; f + sums_each * lanes <= features; f += sums_each * lanes)
        for (int i = 0; i < sums_each; ++i) {
            const Floats w = Floats::load(weight + f + i * lanes);
            for (int r = 0; r < R; ++r) acc[r][i] = multiply_add(w, Floats::load(x + r * features + f + i * lanes), acc[r][i]);
        }
    for (; f + lanes <= features; f += lanes) {
        const Floats w = Floats::load(weight + f);
        for (int r = 0; r < R; ++r) acc[r][0] = multiply_add(w, Floats::load(x + r * features + f), acc[r][0]);
    }
    for (int r = 0; r < R; ++r) {
        sums[r] = static_cast<float>(((acc[r][0] + acc[r][1]) + (acc[r][2] + acc[r][3])).sum());
        for (int64_t rest = f; rest < features; ++rest) sums[r] += widen(weight[rest]) * x[r * features + rest];
    }
}

template <typename T>
inline void output(const Linear& job, const Matrix& matrix, int64_t n) {
    const T* const weight = reinterpret_cast<const T*>(matrix.weight) + n * matrix.step;
    const float bias = matrix.bias ? widen(reinterpret_cast<const T*>(matrix.bias)[n]) : 0.0f;
    T* const out = reinterpret_cast<T*>(matrix.out) + n;
    float sums[rows_together];
    int64_t row = 0;
    const auto write = [&](int count) {
        for (int r = 0; r < count; ++r) narrow(sums[r] + bias, out[(row + r) * matrix.outputs]);
        row += count;
    };
    for (; row + rows_together <= job.rows; write(rows_together))
        dot<rows_together>(weight, job.x + row * job.features, job.features, sums);
    for (; row < job.rows; write(1)) dot<1>(weight, job.x + row * job.features, job.features, sums);
}

template <typename T>
void linear_as(const Linear& job, int64_t begin, int64_t end) {
    for (int m = 0; m < job.matrices && begin < end; ++m) {
        const Matrix& matrix = job.matrix[m];
        for (int64_t n = begin > 0 ? begin : 0; n < matrix.outputs && n < end; ++n) output<T>(job, matrix, n);
        begin -= matrix.outputs;
        end -= matrix.outputs;
    }
}
void linear(const Linear& job, int64_t begin, int64_t end) {
    switch (job.dtype) {
        case Dtype::float32: return linear_as<float>(job, begin, end);
        case Dtype::bfloat16: return linear_as<bf16>(job, begin, end);
        case Dtype::float16: return linear_as<f16>(job, begin, end);
        case Dtype::float64: return;
    }
}

}  // namespace
