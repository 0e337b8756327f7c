#include "simd_neon.h"

#include "attention_kernels.h"

const ropewalk::Kernels& ropewalk::neon_bf16_kernels() {
    static constexpr Kernels kernels{"neon_bf16", rotate, tables, attend_bytes, attend};
    return kernels;
}
