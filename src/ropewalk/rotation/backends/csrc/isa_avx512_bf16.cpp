#include "simd_avx512.h"

#include "attention_kernels.h"

const ropewalk::Kernels& ropewalk::avx512_bf16_kernels() {
    static constexpr Kernels kernels{"avx512_bf16", rotate, tables, attend_bytes, attend};
    return kernels;
}
