#include "simd_neon.h"

#include "attention_kernels.h"

const ropewalk::Kernels& ropewalk::neon_kernels() {
    static constexpr Kernels kernels{"neon", rotate, tables, attend_bytes, attend};
    return kernels;
}
