// AVX2 vectors with FMA and F16C: 8 floats or 4 doubles.
#pragma once
#include <immintrin.h>

#include "numbers.h"

namespace {

struct Floats {
    using scalar = float;
    static constexpr int width = 8;
    __m256 v;
    static Floats of(float x) { return {_mm256_set1_ps(x)}; }
    static Floats load(const float* p) { return {_mm256_loadu_ps(p)}; }
    static Floats load(const bf16* p) {
        return {_mm256_castsi256_ps(_mm256_slli_epi32(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))), 16))};
    }
    static Floats load(const f16* p) {
        return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    // p[0], p[0], p[1], p[1], p[2], p[2], p[3], p[3]
    static Floats load_twice(const float* p) {
        const __m256i twice = _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0);
        return {_mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), twice)};
    }
    Floats swapped() const { return {_mm256_permute_ps(v, 0xB1)}; }
    double sum() const {
        __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
        s = _mm_add_ps(s, _mm_movehl_ps(s, s));
        return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
    }
};
inline Floats operator+(Floats a, Floats b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats multiply_subtract(Floats a, Floats b, Floats c) { return {_mm256_fmsub_ps(a.v, b.v, c.v)}; }
inline Floats alternate(Floats a, Floats b, Floats c) { return {_mm256_fmaddsub_ps(a.v, b.v, c.v)}; }

inline void store(float* p, Floats a, Floats b, bool stream) {
    if (stream) {
        _mm256_stream_ps(p, a.v);
        _mm256_stream_ps(p + 8, b.v);
    } else {
        _mm256_storeu_ps(p, a.v);
        _mm256_storeu_ps(p + 8, b.v);
    }
}
inline void store_half_line(void* p, __m256i half, bool stream) {
    if (stream)
        _mm256_stream_si256(static_cast<__m256i*>(p), half);
    else
        _mm256_storeu_si256(static_cast<__m256i*>(p), half);
}
// bf16 in the upper half of each 32-bit lane, for numbers that are no NaN.
inline __m256i rounded(Floats x) {
    const __m256i bits = _mm256_castps_si256(x.v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}
inline Floats quiet(Floats x) {  // NaNs whose upper half is one too
    const __m256 is_nan = _mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q);
    return {_mm256_blendv_ps(x.v, _mm256_set1_ps(__builtin_nanf("")), is_nan)};
}
inline bool is_any_nan(Floats a, Floats b) {
    return __builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q)), 0) != 0;
}
inline __m256i packed(Floats a, Floats b) {  // 4 of a, 4 of b, and the same again
    if (is_any_nan(a, b)) a = quiet(a), b = quiet(b);
    return _mm256_packus_epi32(_mm256_srli_epi32(rounded(a), 16), _mm256_srli_epi32(rounded(b), 16));
}
inline void store(bf16* p, Floats a, Floats b, bool stream) {
    store_half_line(p, _mm256_permute4x64_epi64(packed(a, b), 0xD8), stream);
}

// 8 pairs of neighbours, as two vectors.
inline void load_pairs(const bf16* p, Floats& even, Floats& odd) {
    const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    even.v = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    odd.v = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
}
inline void store_pairs(bf16* p, Floats even, Floats odd, bool stream) {
    if (is_any_nan(even, odd)) even = quiet(even), odd = quiet(odd);
    // All 16 are rounded at once: the upper halves, plus 1 if the lower half is above 0x8000, or equal and the upper odd.
    const __m256i first = _mm256_castps_si256(even.v), second = _mm256_castps_si256(odd.v);
    const __m256i upper = _mm256_blend_epi16(_mm256_srli_epi32(first, 16), second, 0xAA);
    const __m256i lower = _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xAA);
    const __m256i above = _mm256_xor_si256(lower, _mm256_set1_epi16(-0x8000));  // of 0x8000, signed
    const __m256i is_odd = _mm256_and_si256(upper, _mm256_set1_epi16(1));
    const __m256i up = _mm256_cmpgt_epi16(_mm256_adds_epi16(above, is_odd), _mm256_setzero_si256());
    store_half_line(p, _mm256_sub_epi16(upper, up), stream);
}

// Twice 8 numbers, the even places and the odd ones, so that bf16 is widened and narrowed within 32-bit words.
inline void load_packed(const bf16* p, Floats& a, Floats& b) { load_pairs(p, a, b); }
inline void load_packed(const float* p, Floats& a, Floats& b) {
    const __m256 x = _mm256_loadu_ps(p), y = _mm256_loadu_ps(p + 8);
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0x88));
    const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(x, y, 0xDD));
    a.v = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xD8));
    b.v = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xD8));
}
inline void store_packed(bf16* p, Floats a, Floats b, bool stream) { store_pairs(p, a, b, stream); }
inline void store(f16* p, Floats a, Floats b, bool stream) {
    store_half_line(p, _mm256_set_m128i(_mm256_cvtps_ph(b.v, 0), _mm256_cvtps_ph(a.v, 0)), stream);
}

struct Doubles {
    using scalar = double;
    static constexpr int width = 4;
    __m256d v;
    static Doubles of(double x) { return {_mm256_set1_pd(x)}; }
    static Doubles load(const double* p) { return {_mm256_loadu_pd(p)}; }
    static Doubles load_twice(const double* p) {
        return {_mm256_permute4x64_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p)), 0x50)};
    }
    Doubles swapped() const { return {_mm256_permute_pd(v, 0x5)}; }
    double sum() const {
        const __m128d s = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
        return _mm_cvtsd_f64(_mm_add_sd(s, _mm_unpackhi_pd(s, s)));
    }
};
inline Doubles operator+(Doubles a, Doubles b) { return {_mm256_add_pd(a.v, b.v)}; }
inline Doubles operator*(Doubles a, Doubles b) { return {_mm256_mul_pd(a.v, b.v)}; }
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }
inline Doubles multiply_subtract(Doubles a, Doubles b, Doubles c) { return {_mm256_fmsub_pd(a.v, b.v, c.v)}; }
inline Doubles alternate(Doubles a, Doubles b, Doubles c) { return {_mm256_fmaddsub_pd(a.v, b.v, c.v)}; }
inline void store(double* p, Doubles a, Doubles b, bool stream) {
    if (stream) {
        _mm256_stream_pd(p, a.v);
        _mm256_stream_pd(p + 4, b.v);
    } else {
        _mm256_storeu_pd(p, a.v);
        _mm256_storeu_pd(p + 4, b.v);
    }
}
inline void put(float* p, Floats a) { _mm256_storeu_ps(p, a.v); }
inline void put(double* p, Doubles a) { _mm256_storeu_pd(p, a.v); }
inline void fence() { _mm_sfence(); }

// More that attention needs.
constexpr int vectors_at_once = 3, broadcasts_at_once = 4;  // 12 sums, 3 vectors and a broadcast in 16 registers
inline Floats operator-(Floats a, Floats b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Floats largest(Floats a, Floats b) { return {_mm256_max_ps(a.v, b.v)}; }  // b where either is NaN
inline bool any_above(Floats a, Floats b) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) != 0; }
// 2^x: a polynomial of the part behind the point, and the exponent; 0 below 2^-126, NaN for NaN.
inline Floats power_of_2(Floats x) {
    const __m256 bounded = _mm256_min_ps(_mm256_set1_ps(128.0f), _mm256_max_ps(_mm256_set1_ps(-127.0f), x.v));
    const __m256 whole = _mm256_floor_ps(bounded);
    const Floats p = power_of_part(Floats{_mm256_sub_ps(bounded, whole)});
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    return p * Floats{_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}
// The sum of each of 8 rows of 8 numbers.
inline Floats sums_of_rows(const float* rows) {
    __m256 a[4];
    for (int i = 0; i < 4; ++i) a[i] = _mm256_hadd_ps(_mm256_loadu_ps(rows + 16 * i), _mm256_loadu_ps(rows + 16 * i + 8));
    const __m256 low = _mm256_hadd_ps(a[0], a[1]), high = _mm256_hadd_ps(a[2], a[3]);
    return {_mm256_add_ps(_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31))};
}
// `score` where low <= key < high, else -infinity.
inline Floats seen_from(Floats score, Floats key, Floats low, Floats high) {
    const __m256 seen = _mm256_and_ps(_mm256_cmp_ps(low.v, key.v, _CMP_LE_OQ), _mm256_cmp_ps(key.v, high.v, _CMP_LT_OQ));
    return {_mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), score.v, seen)};
}
// A square of 8 x 8 units; `from` and `to` are the units between rows.
inline void transpose(const uint32_t* x, int64_t from, uint32_t* y, int64_t to) {
    __m256 a[8], b[8];
    for (int i = 0; i < 8; ++i) a[i] = _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i * from)));
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; ++j) {
            a[i + 2 * j] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0x44);
            a[i + 2 * j + 1] = _mm256_shuffle_ps(b[i + j], b[i + j + 2], 0xee);
        }
    for (int j = 0; j < 4; ++j) {
        _mm256_storeu_ps(reinterpret_cast<float*>(y + j * to), _mm256_permute2f128_ps(a[j], a[j + 4], 0x20));
        _mm256_storeu_ps(reinterpret_cast<float*>(y + (j + 4) * to), _mm256_permute2f128_ps(a[j], a[j + 4], 0x31));
    }
}

}  // namespace
