// Arm's Advanced SIMD vectors (aarch64): 4 floats or 2 doubles. bf16 stores use the BF16 instructions where they are
// compiled in.
#pragma once
#include <arm_neon.h>

#include "numbers.h"

namespace {

struct Floats {
    using scalar = float;
    static constexpr int width = 4;
    float32x4_t v;
    static Floats of(float x) { return {vdupq_n_f32(x)}; }
    static Floats load(const float* p) { return {vld1q_f32(p)}; }
    static Floats load(const bf16* p) {
        return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16))};
    }
    static Floats load(const f16* p) {
        return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))))};
    }
    // p[0], p[0], p[1], p[1]
    static Floats load_twice(const float* p) {
        const float32x2_t two = vld1_f32(p);
        return {vcombine_f32(vdup_lane_f32(two, 0), vdup_lane_f32(two, 1))};
    }
    Floats swapped() const { return {vrev64q_f32(v)}; }
    double sum() const { return vaddvq_f32(v); }
};
inline Floats operator+(Floats a, Floats b) { return {vaddq_f32(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {vmulq_f32(a.v, b.v)}; }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
inline Floats multiply_subtract(Floats a, Floats b, Floats c) { return {vfmaq_f32(vnegq_f32(c.v), a.v, b.v)}; }
inline Floats alternate(Floats a, Floats b, Floats c) {
    const uint32x4_t even = vreinterpretq_u32_u64(vdupq_n_u64(0x80000000u));
    return {vfmaq_f32(vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(c.v), even)), a.v, b.v)};
}

inline void store(float* p, Floats a, Floats b, bool) {
    vst1q_f32(p, a.v);
    vst1q_f32(p + 4, b.v);
}
#ifdef __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
inline uint16x8_t halves(Floats a, Floats b) {
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(a.v), b.v));
}
#else
inline uint32x4_t rounded(Floats x) {  // bf16 in the upper half of each lane
    const uint32x4_t bits = vreinterpretq_u32_f32(x.v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    return vbslq_u32(vceqq_f32(x.v, x.v), up, vdupq_n_u32(0x7fc00000));
}
inline uint16x8_t halves(Floats a, Floats b) {
    return vshrn_high_n_u32(vshrn_n_u32(rounded(a), 16), rounded(b), 16);
}
#endif
inline void store(bf16* p, Floats a, Floats b, bool) { vst1q_u16(reinterpret_cast<uint16_t*>(p), halves(a, b)); }
inline void store(f16* p, Floats a, Floats b, bool) {
    vst1q_u16(reinterpret_cast<uint16_t*>(p), vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(a.v), b.v)));
}

// Twice 4 numbers, in their own order.
template <typename T>
inline void load_packed(const T* p, Floats& a, Floats& b) { a = Floats::load(p), b = Floats::load(p + 4); }
inline void store_packed(bf16* p, Floats a, Floats b, bool stream) { store(p, a, b, stream); }

// 4 pairs of neighbours, as two vectors.
inline void load_pairs(const bf16* p, Floats& even, Floats& odd) {
    const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(p)));
    even.v = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    odd.v = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000)));
}
inline void store_pairs(bf16* p, Floats even, Floats odd, bool) {
    const uint16x8_t apart = halves(even, odd);
    vst1q_u16(reinterpret_cast<uint16_t*>(p), vzip1q_u16(apart, vextq_u16(apart, apart, 4)));
}

struct Doubles {
    using scalar = double;
    static constexpr int width = 2;
    float64x2_t v;
    static Doubles of(double x) { return {vdupq_n_f64(x)}; }
    static Doubles load(const double* p) { return {vld1q_f64(p)}; }
    static Doubles load_twice(const double* p) { return {vdupq_n_f64(*p)}; }
    Doubles swapped() const { return {vextq_f64(v, v, 1)}; }
    double sum() const { return vaddvq_f64(v); }
};
inline Doubles operator+(Doubles a, Doubles b) { return {vaddq_f64(a.v, b.v)}; }
inline Doubles operator*(Doubles a, Doubles b) { return {vmulq_f64(a.v, b.v)}; }
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) { return {vfmaq_f64(c.v, a.v, b.v)}; }
inline Doubles multiply_subtract(Doubles a, Doubles b, Doubles c) { return {vfmaq_f64(vnegq_f64(c.v), a.v, b.v)}; }
inline Doubles alternate(Doubles a, Doubles b, Doubles c) {
    const uint64x2_t even = vcombine_u64(vdup_n_u64(uint64_t{1} << 63), vdup_n_u64(0));
    return {vfmaq_f64(vreinterpretq_f64_u64(veorq_u64(vreinterpretq_u64_f64(c.v), even)), a.v, b.v)};
}
inline void store(double* p, Doubles a, Doubles b, bool) {
    vst1q_f64(p, a.v);
    vst1q_f64(p + 2, b.v);
}
inline void put(float* p, Floats a) { vst1q_f32(p, a.v); }
inline void put(double* p, Doubles a) { vst1q_f64(p, a.v); }
inline void fence() {}

// More that attention needs.
constexpr int vectors_at_once = 3, broadcasts_at_once = 8;  // 24 sums, 3 vectors and a broadcast in 32 registers
inline Floats operator-(Floats a, Floats b) { return {vsubq_f32(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {vdivq_f32(a.v, b.v)}; }
inline Floats largest(Floats a, Floats b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }  // b where either is NaN
inline bool any_above(Floats a, Floats b) { return vmaxvq_u32(vcgtq_f32(a.v, b.v)) != 0; }
// 2^x: a polynomial of the part behind the point, and the exponent; 0 below 2^-126, NaN for NaN.
inline Floats power_of_2(Floats x) {
    const float32x4_t bounded = vminq_f32(vdupq_n_f32(128.0f), vmaxq_f32(vdupq_n_f32(-127.0f), x.v));
    const float32x4_t whole = vrndmq_f32(bounded);
    const Floats p = power_of_part(Floats{vsubq_f32(bounded, whole)});
    const int32x4_t exponent = vaddq_s32(vcvtq_s32_f32(whole), vdupq_n_s32(127));
    return p * Floats{vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23))};
}
// The sum of each of 4 rows of 4 numbers.
inline Floats sums_of_rows(const float* rows) {
    const float32x4_t a = vpaddq_f32(vld1q_f32(rows), vld1q_f32(rows + 4));
    return {vpaddq_f32(a, vpaddq_f32(vld1q_f32(rows + 8), vld1q_f32(rows + 12)))};
}
// `score` where low <= key < high, else -infinity.
inline Floats seen_from(Floats score, Floats key, Floats low, Floats high) {
    const uint32x4_t seen = vandq_u32(vcleq_f32(low.v, key.v), vcltq_f32(key.v, high.v));
    return {vbslq_f32(seen, score.v, vdupq_n_f32(-__builtin_inff()))};
}
// A square of 4 x 4 units; `from` and `to` are the units between rows.
inline void transpose(const uint32_t* x, int64_t from, uint32_t* y, int64_t to) {
    const uint32x4x2_t a = vtrnq_u32(vld1q_u32(x), vld1q_u32(x + from));
    const uint32x4x2_t b = vtrnq_u32(vld1q_u32(x + 2 * from), vld1q_u32(x + 3 * from));
    for (int i = 0; i < 2; ++i) {
        vst1q_u32(y + i * to, vcombine_u32(vget_low_u32(a.val[i]), vget_low_u32(b.val[i])));
        vst1q_u32(y + (i + 2) * to, vcombine_u32(vget_high_u32(a.val[i]), vget_high_u32(b.val[i])));
    }
}

}  // namespace
