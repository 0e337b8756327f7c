#include "simd_portable.h"

#include "kernels.h"

const ropewalk::Kernels& ropewalk::portable_kernels() {
    static constexpr Kernels kernels{"portable", rotate, norm_backward, tables};
    return kernels;
}
