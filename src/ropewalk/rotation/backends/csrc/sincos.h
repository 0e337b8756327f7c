// cos and sin of many float64 angles at once, and the tables made of them.
#pragma once
#include <cmath>
#include <cstring>

#include "job.h"

namespace {

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
// Payne and Hanek are not needed below this: two parts of pi/2 leave an error of 2^-60 radians.
constexpr double largest_reduced = 1e9;

// Minimax polynomials on [-pi/4, pi/4]: the coefficients of fdlibm's __kernel_sin and __kernel_cos (Sun, 1993).
inline void sincos(const double* angles, double* cos, double* sin, int64_t count) {
    constexpr double two_over_pi = 0x1.45f306dc9c883p-1, half_pi = 0x1.921fb54442d18p+0, half_pi_rest = 0x1.1a62633145c07p-54;
    constexpr double magic = 0x1.8p52;  // adding it leaves the nearest integer in the last bits
    constexpr double s1 = -1.66666666666666324348e-01, s2 = 8.33333333332248946124e-03, s3 = -1.98412698298579493134e-04,
                     s4 = 2.75573137070700676789e-06, s5 = -2.50507602534068634195e-08, s6 = 1.58969099521155010221e-10;
    constexpr double c1 = 4.16666666666666019037e-02, c2 = -1.38888888888741095749e-03, c3 = 2.48015872894767294178e-05,
                     c4 = -2.75573143513906633035e-07, c5 = 2.08757232129817482790e-09, c6 = -1.13596475577881948265e-11;
#pragma GCC ivdep
    for (int64_t j = 0; j < count; ++j) {
        const double shifted = angles[j] * two_over_pi + magic, turns = shifted - magic;
        int64_t quarter;
        std::memcpy(&quarter, &shifted, sizeof quarter);
        const double r = __builtin_fma(-turns, half_pi_rest, __builtin_fma(-turns, half_pi, angles[j]));
        const double z = r * r, z2 = z * z;
        const double odd = s1 + z * (s2 + z * (s3 + z * (s4 + z * (s5 + z * s6))));
        const double even = c1 + z * (c2 + z * (c3 + z * (c4 + z * (c5 + z * c6))));
        const double s = r + r * z * odd;
        const double head = 1.0 - 0.5 * z, c = head + ((1.0 - head - 0.5 * z) + z2 * even);
        const bool swap = quarter & 1;
        const double cos_part = swap ? s : c, sin_part = swap ? c : s;
        cos[j] = (quarter + 1) & 2 ? -cos_part : cos_part;
        sin[j] = quarter & 2 ? -sin_part : sin_part;
    }
}
#else
constexpr double largest_reduced = -1.0;  // without fused multiply-add the library's functions serve
inline void sincos(const double*, double*, double*, int64_t) {}
#endif

template <typename Out>
void tables_as(const ropewalk::Tables& job, int64_t begin, int64_t end) {
    constexpr int64_t step = 64;
    double angles[step], cos[step], sin[step];
    for (int64_t row = begin; row < end; ++row) {
        const auto position = [&](int64_t axis) {
            const int64_t at = row * job.position_row + axis * job.position_axis;
            return job.integral ? static_cast<double>(static_cast<const int64_t*>(job.positions)[at])
                                : static_cast<const double*>(job.positions)[at];
        };
        const double only = job.axes ? 0.0 : position(0);
        const double* columns = job.columns;
        for (int64_t from = 0; from < job.pairs; from += step) {
            const int64_t count = job.pairs - from < step ? job.pairs - from : step;
            bool small = true;
            if (job.axes)
                for (int64_t j = 0; j < count; ++j) angles[j] = position(job.axes[from + j]) * columns[from + j];
            else
                for (int64_t j = 0; j < count; ++j) angles[j] = only * columns[from + j];
            for (int64_t j = 0; j < count; ++j) small &= std::fabs(angles[j]) <= largest_reduced;
            if (small) {
                sincos(angles, cos, sin, count);
            } else {
                for (int64_t j = 0; j < count; ++j) cos[j] = std::cos(angles[j]), sin[j] = std::sin(angles[j]);
            }
            Out *to_cos = static_cast<Out*>(job.cos) + row * job.pairs + from,
                *to_sin = static_cast<Out*>(job.sin) + row * job.pairs + from;
            for (int64_t j = 0; j < count; ++j) to_cos[j] = static_cast<Out>(cos[j]);
            for (int64_t j = 0; j < count; ++j) to_sin[j] = static_cast<Out>(sin[j]);
        }
    }
}

void tables(const ropewalk::Tables& job, int64_t begin, int64_t end) {
    job.doubles ? tables_as<double>(job, begin, end) : tables_as<float>(job, begin, end);
}

}  // namespace
