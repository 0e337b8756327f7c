#include "simd_avx2.h"

#include "attention_kernels.h"

const ropewalk::Kernels& ropewalk::avx2_kernels() {
    static constexpr Kernels kernels{"avx2", rotate, tables, attend_bytes, attend};
    return kernels;
}
