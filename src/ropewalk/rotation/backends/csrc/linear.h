// What one call of the linear kernel asks for: few rows times the matrices that read them, as in decoding.
#pragma once
#include "job.h"

namespace ropewalk {

// out[row][n] = bias[n] + sum over features of x[row][f] weight[n][f].
struct Matrix {
    const char *weight = nullptr, *bias = nullptr;  // [outputs, features], features contiguous; [outputs], null: none
    char* out = nullptr;                            // [rows, outputs]
    int64_t outputs = 0, step = 0;                  // elements between the rows of the weight
};

constexpr int most_matrices = 4;

struct Linear {
    Dtype dtype = Dtype::float32;
    const float* x = nullptr;  // [rows, features], whatever the dtype
    int64_t rows = 0, features = 0;
    int matrices = 0;
    Matrix matrix[most_matrices];
};

}  // namespace ropewalk
