// The linear kernel's part of the Python module. ropewalk/rotation/backends/cpu.py is its caller; sizes and dtypes are
// checked again, as in module.cpp.
#include "linear.h"

#include <vector>

#include "bindings.h"
#include "numbers.h"
#include "tensor.h"
#include "threads.h"

namespace ropewalk {
namespace {

template <typename T>
void widen_all(const T* from, int64_t count, float* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = widen(from[i]);
}

// x: contiguous [..., features]; matrices: (weight, bias or None, out) each, out contiguous [..., outputs].
void linear(int threads, nb::handle x, nb::tuple matrices) {
    const View given(x, "x");
    Linear job;
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16})
        if (given.is(number_type(dtype))) job.dtype = dtype;
    given.of(job.dtype);
    if (given.dims() < 1) given.fail("must have features");
    const int64_t count = given.contiguous_count();
    job.features = given.size(-1);
    job.rows = job.features ? count / job.features : 0;
    int64_t outputs = 0;
    for (nb::handle each : matrices) {
        const auto parts = nb::borrow<nb::tuple>(each);
        const View weight(parts[0], "weight"), out(parts[2], "out");
        if (job.matrices == most_matrices) weight.fail("is one matrix too many");
        Matrix& matrix = job.matrix[job.matrices++];
        weight.of(job.dtype).with_dims(2).with_contiguous_rows();
        if (weight.size(1) != job.features) weight.fail("does not fit the features");
        matrix.outputs = weight.size(0);
        matrix.weight = weight.data();
        matrix.step = weight.stride(0);
        out.of(job.dtype);
        if (out.dims() < 1 || out.size(-1) != matrix.outputs || out.contiguous_count() != job.rows * matrix.outputs)
            out.fail("does not fit x and the weight");
        matrix.out = out.data();
        outputs += matrix.outputs;
        if (parts[1].is_none()) continue;
        const View bias(parts[1], "bias");
        bias.of(job.dtype).with_dims(1);
        if (bias.contiguous_count() != matrix.outputs) bias.fail("must have one number for each output");
        matrix.bias = bias.data();
    }
    if (job.rows == 0) return;
    std::vector<float> wide;
    job.x = given.data<const float>();
    if (job.dtype != Dtype::float32) {
        wide.resize(static_cast<size_t>(count));
        if (job.dtype == Dtype::bfloat16)
            widen_all(given.data<const bf16>(), count, wide.data());
        else
            widen_all(given.data<const f16>(), count, wide.data());
        job.x = wide.data();
    }
    const Kernels& kernels = kernels_in_use();
    const int64_t bytes = outputs * job.features * item_size(job.dtype);
    unlocked(bytes, [&] {
        parallel(outputs, threads_for(bytes, threads),
                 [&](int64_t begin, int64_t end) { kernels.linear(job, begin, end); });
    });
}

}  // namespace

void define_linear(nb::module_& module) {
    module.def("linear", &linear);
}

}  // namespace ropewalk
