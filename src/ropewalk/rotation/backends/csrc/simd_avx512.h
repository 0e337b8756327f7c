// AVX-512 vectors: 16 floats or 8 doubles. bf16 stores use the BF16 instructions where they are compiled in.
#pragma once
#include <immintrin.h>

#include "numbers.h"

namespace {

struct Floats {
    using scalar = float;
    static constexpr int width = 16;
    __m512 v;
    static Floats of(float x) { return {_mm512_set1_ps(x)}; }
    static Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static Floats load(const bf16* p) {
        return {_mm512_castsi512_ps(_mm512_slli_epi32(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16))};
    }
    static Floats load(const f16* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    // p[0], p[0], p[1], p[1], ... p[7], p[7]
    static Floats load_twice(const float* p) {
        const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
        return {_mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(p)))};
    }
    Floats swapped() const { return {_mm512_permute_ps(v, 0xB1)}; }
    double sum() const { return _mm512_reduce_add_ps(v); }
};
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats multiply_subtract(Floats a, Floats b, Floats c) { return {_mm512_fmsub_ps(a.v, b.v, c.v)}; }
// even lanes a * b - c, odd lanes a * b + c
inline Floats alternate(Floats a, Floats b, Floats c) { return {_mm512_fmaddsub_ps(a.v, b.v, c.v)}; }

inline void store(float* p, Floats a, Floats b, bool stream) {
    if (stream) {
        _mm512_stream_ps(p, a.v);
        _mm512_stream_ps(p + 16, b.v);
    } else {
        _mm512_storeu_ps(p, a.v);
        _mm512_storeu_ps(p + 16, b.v);
    }
}
inline void store_line(void* p, __m512i line, bool stream) {
    if (stream)
        _mm512_stream_si512(static_cast<__m512i*>(p), line);
    else
        _mm512_storeu_si512(p, line);
}
// bf16 in the upper half of each 32-bit lane, for numbers that are no NaN.
inline __m512i rounded(Floats x) {
    const __m512i bits = _mm512_castps_si512(x.v);
    const __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}
inline Floats quiet(Floats x) {  // NaNs whose upper half is one too
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    return {_mm512_mask_mov_ps(x.v, is_nan, _mm512_set1_ps(__builtin_nanf("")))};
}
inline bool is_any_nan(Floats a, Floats b) {
    return __builtin_expect(_mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q), 0) != 0;
}
#ifdef __AVX512BF16__
// The instructions for bf16 flush subnormal numbers to zero: those few take the longer way.
inline bool is_none_subnormal(Floats a, Floats b) {
    return __builtin_expect(!(_mm512_fpclass_ps_mask(a.v, 0x20) | _mm512_fpclass_ps_mask(b.v, 0x20)), 1);
}
#endif
inline void store(bf16* p, Floats a, Floats b, bool stream) {
#ifdef __AVX512BF16__
    if (is_none_subnormal(a, b)) return store_line(p, (__m512i)_mm512_cvtne2ps_pbh(b.v, a.v), stream);
#endif
    if (is_any_nan(a, b)) a = quiet(a), b = quiet(b);
    const __m512i mixed = _mm512_packus_epi32(_mm512_srli_epi32(rounded(a), 16), _mm512_srli_epi32(rounded(b), 16));
    store_line(p, _mm512_permutexvar_epi64(_mm512_set_epi64(7, 5, 3, 1, 6, 4, 2, 0), mixed), stream);
}

// 16 pairs of neighbours, as two vectors.
inline void load_pairs(const bf16* p, Floats& even, Floats& odd) {
    const __m512i both = _mm512_loadu_si512(p);
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_epi32(both, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}
#ifdef __AVX512BF16__
alignas(64) constexpr uint16_t neighbours[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                                 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
#endif
inline void store_pairs(bf16* p, Floats even, Floats odd, bool stream) {
#ifdef __AVX512BF16__
    if (is_none_subnormal(even, odd)) {
        const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh(odd.v, even.v);
        return store_line(p, _mm512_permutexvar_epi16(_mm512_load_si512(neighbours), halves), stream);
    }
#endif
    if (is_any_nan(even, odd)) even = quiet(even), odd = quiet(odd);
    store_line(p, _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(rounded(even), 16), rounded(odd)), stream);
}
#ifdef __AVX512BF16__
// Twice 16 numbers; here in their own order.
template <typename T>
inline void load_packed(const T* p, Floats& a, Floats& b) { a = Floats::load(p), b = Floats::load(p + 16); }
inline void store_packed(bf16* p, Floats a, Floats b, bool stream) { store(p, a, b, stream); }
#else
// Twice 16 numbers, the even places and the odd ones, so that bf16 is widened and narrowed within 32-bit words.
inline void load_packed(const bf16* p, Floats& a, Floats& b) { load_pairs(p, a, b); }
inline void load_packed(const float* p, Floats& a, Floats& b) {
    const __m512 x = _mm512_loadu_ps(p), y = _mm512_loadu_ps(p + 16);
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    a.v = _mm512_permutex2var_ps(x, even, y);
    b.v = _mm512_permutex2var_ps(x, _mm512_add_epi32(even, _mm512_set1_epi32(1)), y);
}
inline void store_packed(bf16* p, Floats a, Floats b, bool stream) { store_pairs(p, a, b, stream); }
#endif
inline void store(f16* p, Floats a, Floats b, bool stream) {
    const __m256i low = _mm512_cvtps_ph(a.v, 0), high = _mm512_cvtps_ph(b.v, 0);
    store_line(p, _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), stream);
}

struct Doubles {
    using scalar = double;
    static constexpr int width = 8;
    __m512d v;
    static Doubles of(double x) { return {_mm512_set1_pd(x)}; }
    static Doubles load(const double* p) { return {_mm512_loadu_pd(p)}; }
    static Doubles load_twice(const double* p) {
        const __m512i twice = _mm512_set_epi64(3, 3, 2, 2, 1, 1, 0, 0);
        return {_mm512_permutexvar_pd(twice, _mm512_castpd256_pd512(_mm256_loadu_pd(p)))};
    }
    Doubles swapped() const { return {_mm512_permute_pd(v, 0x55)}; }
    double sum() const { return _mm512_reduce_add_pd(v); }
};
inline Doubles operator+(Doubles a, Doubles b) { return {_mm512_add_pd(a.v, b.v)}; }
inline Doubles operator*(Doubles a, Doubles b) { return {_mm512_mul_pd(a.v, b.v)}; }
inline Doubles multiply_add(Doubles a, Doubles b, Doubles c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }
inline Doubles multiply_subtract(Doubles a, Doubles b, Doubles c) { return {_mm512_fmsub_pd(a.v, b.v, c.v)}; }
inline Doubles alternate(Doubles a, Doubles b, Doubles c) { return {_mm512_fmaddsub_pd(a.v, b.v, c.v)}; }
inline void store(double* p, Doubles a, Doubles b, bool stream) {
    if (stream) {
        _mm512_stream_pd(p, a.v);
        _mm512_stream_pd(p + 8, b.v);
    } else {
        _mm512_storeu_pd(p, a.v);
        _mm512_storeu_pd(p + 8, b.v);
    }
}
inline void put(float* p, Floats a) { _mm512_storeu_ps(p, a.v); }
inline void put(double* p, Doubles a) { _mm512_storeu_pd(p, a.v); }
inline void fence() { _mm_sfence(); }

// More that attention needs.
constexpr int vectors_at_once = 3, broadcasts_at_once = 8;  // 24 sums, 3 vectors and a broadcast in 32 registers
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats largest(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }  // b where either is NaN
inline bool any_above(Floats a, Floats b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }
// 2^x: a polynomial of the part behind the point, and the exponent; 0 for -infinity, NaN for NaN.
inline Floats power_of_2(Floats x) {
    const Floats r = {_mm512_reduce_ps(x.v, 0x09)};
    return {_mm512_scalef_ps(power_of_part(r).v, x.v)};
}
// The sum of each of 16 rows of 16 numbers.
inline Floats sums_of_rows(const float* rows) {
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; ++i) {
        const __m512 x = _mm512_loadu_ps(rows + 32 * i), y = _mm512_loadu_ps(rows + 32 * i + 16);
        a[i] = _mm512_add_ps(_mm512_unpacklo_ps(x, y), _mm512_unpackhi_ps(x, y));
    }
    for (int i = 0; i < 4; ++i) {
        const __m512d x = _mm512_castps_pd(a[2 * i]), y = _mm512_castps_pd(a[2 * i + 1]);
        b[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    }
    const auto joined = [](__m512 x, __m512 y) {
        return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
    };
    for (int i = 0; i < 2; ++i) c[i] = joined(b[2 * i], b[2 * i + 1]);
    return {joined(c[0], c[1])};
}
// `score` where low <= key < high, else -infinity.
inline Floats seen_from(Floats score, Floats key, Floats low, Floats high) {
    const __mmask16 seen = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(low.v, key.v, _CMP_LE_OQ), key.v, high.v, _CMP_LT_OQ);
    return {_mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()), seen, score.v)};
}
// A square of 16 x 16 units; `from` and `to` are the units between rows.
inline void transpose(const uint32_t* x, int64_t from, uint32_t* y, int64_t to) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(x + i * from);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; ++j) {
            a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
            a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
        }
    for (int i = 0; i < 16; i += 8)
        for (int j = 0; j < 4; ++j) {
            b[i + j] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0x88);
            b[i + j + 4] = _mm512_shuffle_i32x4(a[i + j], a[i + j + 4], 0xdd);
        }
    for (int j = 0; j < 8; ++j) {
        const int row = j < 4 ? j : j;
        _mm512_storeu_si512(y + row * to, _mm512_shuffle_i32x4(b[j], b[j + 8], 0x88));
        _mm512_storeu_si512(y + (row + 8) * to, _mm512_shuffle_i32x4(b[j], b[j + 8], 0xdd));
    }
}

}  // namespace
