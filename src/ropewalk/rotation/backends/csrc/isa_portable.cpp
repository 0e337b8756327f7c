#include "simd_portable.h"

#include "attention_kernels.h"

const ropewalk::Kernels& ropewalk::portable_kernels() {
    static constexpr Kernels kernels{"portable", rotate, tables, attend_bytes, attend};
    return kernels;
}
