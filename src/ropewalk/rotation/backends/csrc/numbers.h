// 16-bit floating point numbers as bits, and their exact conversions.
#pragma once
#include <cstdint>
#include <cstring>

namespace {

struct bf16 {
    uint16_t bits;
};
struct f16 {
    uint16_t bits;
};
inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline double widen(double x) { return x; }
inline float widen(float x) { return x; }
inline float widen(bf16 x) { return from_bits(uint32_t{x.bits} << 16); }
inline float widen(f16 x) {
    const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16, rest = x.bits & 0x7fffu;
    if (rest >= 0x7c00u) return from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);  // infinity or NaN
    if (rest >= 0x400u) return from_bits(sign | ((rest << 13) + 0x38000000u));
    const float subnormal = static_cast<float>(rest) * 0x1p-24f;
    return sign ? -subnormal : subnormal;
}

// Round to nearest, ties to even.
inline void narrow(double x, double& out) { out = x; }
inline void narrow(float x, float& out) { out = x; }
inline void narrow(float x, bf16& out) {
    const uint32_t bits = bits_of(x);
    out.bits = x != x ? static_cast<uint16_t>(bits >> 16 | 0x40u)
                      : static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
inline void narrow(float x, f16& out) {
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    uint32_t half;
    if (rest > 0x7f800000u)
        half = 0x7e00u | (rest >> 13 & 0x3ffu);  // NaN
    else if (rest >= 0x477ff000u)
        half = 0x7c00u;  // rounds to infinity
    else if (rest >= 0x38800000u)
        half = (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13;
    else  // subnormal: adding 0.5 leaves the rounded count of 2^-24 in the last bits
        half = bits_of(from_bits(rest) + 0.5f) - bits_of(0.5f);
    out.bits = static_cast<uint16_t>(sign | half);
}

// A minimax polynomial of 2^r for 0 <= r < 1: relative error 1.5e-7 with its roundings.
template <typename V>
inline V power_of_part(V r) {
    V p = V::of(0x1.ec320ap-10f);
    p = multiply_add(p, r, V::of(0x1.26900cp-7f));
    p = multiply_add(p, r, V::of(0x1.c95446p-5f));
    p = multiply_add(p, r, V::of(0x1.ebd5a8p-3f));
    p = multiply_add(p, r, V::of(0x1.62e4f6p-1f));
    return multiply_add(p, r, V::of(0x1.fffffep-1f));
}

}  // namespace
