// SwiGLU, RMSNorm of a sum, and log-sum-exp in parts: written once over the vectors of an instruction set. What is no
// whole pair of vectors goes through a buffer. Half types alone: in float32 torch's own operations serve. As in kernels.h, everything has internal linkage.
#pragma once
#include "attention_parts.h"
#include "rowwise.h"

namespace {

using ropewalk::LogSum;
using ropewalk::SumNorm;
using ropewalk::SwiGLU;

constexpr int64_t two = 2 * lanes;  // numbers that are stored together

inline Floats silu(Floats x) { return x / (Floats::of(1.0f) + power_of_2(x * Floats::of(-log2_of_e))); }

template <typename T>
inline void gated(const T* gate, const T* up, T* out) {
    const auto one = [&](int64_t at) { return silu(Floats::load(gate + at)) * Floats::load(up + at); };
    store(out, one(0), one(lanes), false);
}

template <typename T>
void swiglu_as(const SwiGLU& job, int64_t begin, int64_t end) {
    const T* const gate = reinterpret_cast<const T*>(job.gate);
    const T* const up = reinterpret_cast<const T*>(job.up);
    T* const out = reinterpret_cast<T*>(job.out);
    int64_t at = begin * ropewalk::swiglu_block;
    const int64_t past = end * ropewalk::swiglu_block, stop = past < job.count ? past : job.count;
    for (; at + two <= stop; at += two) gated(gate + at, up + at, out + at);
    if (at == stop) return;
    T few[3][two] = {};
    std::memcpy(few[0], gate + at, (stop - at) * sizeof(T));
    std::memcpy(few[1], up + at, (stop - at) * sizeof(T));
    gated(few[0], few[1], few[2]);
    std::memcpy(out + at, few[2], (stop - at) * sizeof(T));
}

void swiglu(const SwiGLU& job, int64_t begin, int64_t end) {
    if (job.dtype == Dtype::bfloat16) return swiglu_as<bf16>(job, begin, end);
    swiglu_as<f16>(job, begin, end);
}

// The sum of squares of x + added, which is written where `sum` is not null.
template <typename T>
inline double squares(const float* x, const T* added, float* sum, int64_t size) {
    Floats first = Floats::of(0.0f), second = first;
    int64_t at = 0;
    for (; at + two <= size; at += two) {
        Floats a = Floats::load(x + at), b = Floats::load(x + at + lanes);
        if (added) {
            a = a + Floats::load(added + at);
            b = b + Floats::load(added + at + lanes);
            store(sum + at, a, b, false);
        }
        first = multiply_add(a, a, first);
        second = multiply_add(b, b, second);
    }
    double total = (first + second).sum();
    for (; at < size; ++at) {
        float a = x[at];
        if (added) sum[at] = a = a + widen(added[at]);
        total += double{a} * a;
    }
    return total;
}

template <typename T>
void sum_norm_as(const SumNorm& job, int64_t begin, int64_t end) {
    const T* const weight = reinterpret_cast<const T*>(job.weight);
    for (int64_t row = begin; row < end; ++row) {
        const int64_t start = row * job.size;
        const float* x = job.x + start;
        const T* const added = job.added ? reinterpret_cast<const T*>(job.added) + start : nullptr;
        float* const sum = job.added ? job.sum + start : nullptr;
        T* const out = reinterpret_cast<T*>(job.out) + start;
        const double mean = squares(x, added, sum, job.size) / static_cast<double>(job.size);
        const float scale = static_cast<float>(1.0 / std::sqrt(mean + job.eps));
        if (added) x = sum;
        const Floats scales = Floats::of(scale);
        int64_t at = 0;
        const auto one = [&](int64_t i) { return Floats::load(x + i) * scales * Floats::load(weight + i); };
        for (; at + two <= job.size; at += two) store(out + at, one(at), one(at + lanes), false);
        for (; at < job.size; ++at) narrow(x[at] * scale * widen(weight[at]), out[at]);
    }
}

void sum_norm(const SumNorm& job, int64_t begin, int64_t end) {
    if (job.dtype == Dtype::bfloat16) return sum_norm_as<bf16>(job, begin, end);
    sum_norm_as<f16>(job, begin, end);
}

constexpr int at_once = 4;  // vectors, so that their sums do not wait for each other

template <typename T>
void log_sum_as(const LogSum& job, int64_t begin, int64_t end) {
    const int64_t whole = job.some / (at_once * lanes) * (at_once * lanes);
    for (int64_t row = begin; row < end; ++row) {
        const T* const logits = reinterpret_cast<const T*>(job.logits) + row * job.some;
        Floats most[at_once], sums[at_once];
        for (int i = 0; i < at_once; ++i) {
            most[i] = Floats::of(job.largest[row]);
            sums[i] = Floats::of(0.0f);
        }
        for (int64_t at = 0; at < whole; at += at_once * lanes)
            for (int i = 0; i < at_once; ++i) most[i] = largest(Floats::load(logits + at + i * lanes), most[i]);
        float each[lanes];
        put(each, largest(largest(most[0], most[1]), largest(most[2], most[3])));
        float high = each[0];
        for (int i = 1; i < lanes; ++i) high = each[i] > high ? each[i] : high;
        for (int64_t at = whole; at < job.some; ++at) high = widen(logits[at]) > high ? widen(logits[at]) : high;

        const float from = high == -__builtin_inff() ? 0.0f : high;  // where no logit is finite
        const Floats highest = Floats::of(from), unit = Floats::of(log2_of_e);
        for (int64_t at = 0; at < whole; at += at_once * lanes)
            for (int i = 0; i < at_once; ++i)
                sums[i] = sums[i] + power_of_2((Floats::load(logits + at + i * lanes) - highest) * unit);
        double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])).sum();
        for (int64_t at = whole; at < job.some; ++at) sum += std::exp(widen(logits[at]) - from);
        const float before = job.largest[row];
        if (before != high) job.sum[row] *= std::exp(before - high);
        job.sum[row] += static_cast<float>(sum);
        job.largest[row] = high;
        const int64_t target = job.targets[row] - job.first;
        if (0 <= target && target < job.some) job.of_target[row] = widen(logits[target]);
    }
}

void log_sum(const LogSum& job, int64_t begin, int64_t end) {
    if (job.dtype == Dtype::bfloat16) return log_sum_as<bf16>(job, begin, end);
    log_sum_as<f16>(job, begin, end);
}

}  // namespace
