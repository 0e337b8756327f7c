// The row-wise kernels' part of the Python module. ropewalk/backends/cpu_rowwise.py is its caller; sizes and dtypes are
// checked again, as in module.cpp.
#include "rowwise.h"

#include "bindings.h"
#include "tensor.h"
#include "threads.h"

namespace ropewalk {
namespace {

Dtype half_type_of(const View& view) {
    for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16})
        if (view.is(number_type(dtype))) return dtype;
    view.fail("has another dtype than the kernel reads");
}

// gate, up, out: contiguous, of one shape.
void swiglu(int threads, nb::handle gate, nb::handle up, nb::handle out) {
    const View gates(gate, "gate"), ups(up, "up"), outs(out, "out");
    SwiGLU job;
    job.dtype = half_type_of(gates);
    ups.of(job.dtype).with_shape_of(gates);
    outs.of(job.dtype).with_shape_of(gates);
    job.count = gates.contiguous_count();
    ups.contiguous_count();
    outs.contiguous_count();
    job.gate = gates.data();
    job.up = ups.data();
    job.out = outs.data();
    const int64_t bytes = 3 * job.count * item_size(job.dtype);
    const Kernels& kernels = kernels_in_use();
    unlocked(bytes, [&] {
        parallel((job.count + swiglu_block - 1) / swiglu_block, threads_for(bytes, threads),
                 [&](int64_t begin, int64_t end) { kernels.swiglu(job, begin, end); });
    });
}

// x, added, sum, out: contiguous [..., size]; weight: contiguous [size]. added and sum are None together.
void sum_norm(int threads, nb::handle x, nb::handle added, nb::handle weight, double eps, nb::handle sum, nb::handle out) {
    const View xs(x, "x"), weights(weight, "weight"), outs(out, "out");
    SumNorm job;
    job.dtype = half_type_of(outs);
    xs.of(Dtype::float32);
    if (xs.dims() < 1) xs.fail("must have features");
    const int64_t count = xs.contiguous_count();
    job.size = xs.size(-1);
    job.rows = job.size ? count / job.size : 0;
    weights.of(job.dtype).with_dims(1);
    if (weights.contiguous_count() != job.size) weights.fail("must have one number for each feature");
    outs.with_shape_of(xs).contiguous_count();
    if (added.is_none() != sum.is_none()) outs.fail("needs both `added` and `sum`, or neither");
    if (!added.is_none()) {
        const View more(added, "added"), sums(sum, "sum");
        more.of(job.dtype).with_shape_of(xs).contiguous_count();
        sums.of(Dtype::float32).with_shape_of(xs).contiguous_count();
        job.added = more.data();
        job.sum = sums.data<float>();
    }
    job.x = xs.data<const float>();
    job.weight = weights.data();
    job.out = outs.data();
    job.eps = eps;
    const int64_t bytes = count * (8 + 2 * item_size(job.dtype));
    const Kernels& kernels = kernels_in_use();
    unlocked(bytes, [&] {
        parallel(job.rows, threads_for(bytes, threads),
                 [&](int64_t begin, int64_t end) { kernels.sum_norm(job, begin, end); });
    });
}

// logits: contiguous [rows, some], those of tokens from `first` on; targets: int64 [rows]; state: contiguous float32 [3, rows].
void log_sum(int threads, nb::handle logits, nb::handle targets, int64_t first, nb::handle state) {
    const View given(logits, "logits"), wanted(targets, "targets"), kept(state, "state");
    LogSum job;
    job.dtype = half_type_of(given);
    given.with_dims(2).contiguous_count();
    job.rows = given.size(0);
    job.some = given.size(1);
    job.first = first;
    wanted.of(int64_type).with_dims(1);
    if (wanted.contiguous_count() != job.rows) wanted.fail("must have one token for each row");
    kept.of(Dtype::float32).with_dims(2);
    if (kept.size(0) != 3 || kept.size(1) != job.rows) kept.fail("must have three numbers for each row");
    kept.contiguous_count();
    job.logits = given.data();
    job.targets = wanted.data<const int64_t>();
    job.largest = kept.data<float>();
    job.sum = job.largest + job.rows;
    job.of_target = job.sum + job.rows;
    const int64_t bytes = job.rows * job.some * item_size(job.dtype);
    const Kernels& kernels = kernels_in_use();
    unlocked(bytes, [&] {
        parallel(job.rows, threads_for(bytes, threads),
                 [&](int64_t begin, int64_t end) { kernels.log_sum(job, begin, end); });
    });
}

}  // namespace

void define_rowwise(nb::module_& module) {
    module.def("swiglu", &swiglu);
    module.def("sum_norm", &sum_norm, nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg());
    module.def("log_sum", &log_sum);
}

}  // namespace ropewalk
