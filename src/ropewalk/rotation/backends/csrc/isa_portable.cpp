#include "simd_portable.h"

#include "attention_kernels.h"
#include "linear_kernels.h"

const ropewalk::Kernels& ropewalk::portable_kernels() {
    static constexpr Kernels kernels{"portable", rotate, tables, attend_bytes, attend, linear};
    return kernels;
}
