// The attention kernel of one instruction set: which form serves a call.
#pragma once
#include "attention_few.h"
#include "attention_tiles.h"

namespace {

#ifdef __AVX512BF16__
using InHalves = InPairs;
#else
using InHalves = InFloats;
#endif

template <typename In>
int64_t bytes_for(const Attention& job) {
    Scratch s;
    return is_few(job, In::per_unit) ? s.part<InFloats>(job, nullptr) : s.part<In>(job, nullptr);
}
int64_t attend_bytes(const Attention& job) {
    return job.dtype == Dtype::bfloat16 ? bytes_for<InHalves>(job) : bytes_for<InFloats>(job);
}

template <typename In, typename T>
void attend_as(const Attention& job, int64_t number, char* memory) {
    Scratch s;
    const Task task = task_of(job, number);
    if (is_few(job, In::per_unit)) {
        s.part<InFloats>(job, memory);
        attend_few<T>(job, task, s);
    } else {
        s.part<In>(job, memory);
        attend_task<In, T>(job, task, s);
    }
}
void attend(const Attention& job, int64_t number, char* memory) {
    switch (job.dtype) {
        case Dtype::float32: return attend_as<InFloats, float>(job, number, memory);
        case Dtype::bfloat16: return attend_as<InHalves, bf16>(job, number, memory);
        case Dtype::float16: return attend_as<InFloats, f16>(job, number, memory);
        case Dtype::float64: return;
    }
}

}  // namespace
