// What one call of a row-wise kernel asks for: the parts of a layer in a half type that read each number once or twice.
#pragma once
#include "job.h"

namespace ropewalk {

constexpr int64_t swiglu_block = 4096;  // numbers of one unit

// out = gate / (1 + exp(-gate)) * up, rounded once.
struct SwiGLU {
    Dtype dtype = Dtype::bfloat16;
    const char *gate = nullptr, *up = nullptr;  // [count]
    char* out = nullptr;
    int64_t count = 0;
};

// sum = x + added; out = sum / sqrt(mean(sum^2) + eps) * weight, rounded once.
struct SumNorm {
    Dtype dtype = Dtype::bfloat16;                    // of added, weight and out
    const float* x = nullptr;                         // [rows, size]
    const char *added = nullptr, *weight = nullptr;   // [rows, size], null: nothing; [size]
    float* sum = nullptr;                             // [rows, size]; null where nothing is added
    char* out = nullptr;                              // [rows, size]
    int64_t rows = 0, size = 0;
    double eps = 0;
};

// Takes the logits of some of the vocabulary into each row's largest logit, sum of exp(logit - largest), and the logit of
// its target where that is among them.
struct LogSum {
    Dtype dtype = Dtype::bfloat16;
    const char* logits = nullptr;                        // [rows, some], contiguous
    const int64_t* targets = nullptr;                    // [rows]
    float *largest = nullptr, *sum = nullptr, *of_target = nullptr;  // [rows]
    int64_t rows = 0, some = 0, first = 0;               // the logits are those of tokens first .. first + some - 1
};

}  // namespace ropewalk
