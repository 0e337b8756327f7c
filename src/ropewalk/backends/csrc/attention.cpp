// The attention kernel's part of the Python module: reads tensors, cuts the work into tasks, hands them to threads.
// ropewalk/backends/cpu.py is its caller; sizes and dtypes are checked again, as in module.cpp.
#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <numeric>
#include <vector>

#include "bindings.h"
#include "tensor.h"
#include "threads.h"

namespace ropewalk {
namespace {

Rows rows_of(const View& x) {
    x.with_dims(4);
    return {x.data(), {x.stride(0), x.stride(2), x.stride(1), x.stride(3)}};
}

template <typename T>
OfQueries<T> of_queries(const View& x, const Attention& job) {
    x.with_dims(2);
    if ((x.size(0) != 1 && x.size(0) != job.batch) || x.size(1) != job.queries) x.fail("must be [batch or 1, queries]");
    return {x.data<T>(), x.shared(0), x.shared(1)};
}

// (q, k, low, high, tables); tables: None, or (cos, sin, interleaved, factor) that rotate the keys.
void add_region(Attention& job, const nb::tuple& given) {
    const View q(given[0], "q"), k(given[1], "k"), low(given[2], "low"), high(given[3], "high");
    if (job.regions == most_regions) q.fail("has too many regions");
    Region& region = job.region[job.regions++];
    region.q = rows_of(q.of(job.dtype));
    region.k = rows_of(k.of(job.dtype));
    const bool q_fits = q.size(0) == job.batch && q.size(1) == job.heads && q.size(2) == job.queries;
    if (!q_fits || q.size(3) != job.head_dim) q.fail("does not fit the result");
    const bool k_fits = k.size(0) == job.batch && k.size(1) == job.kv_heads && k.size(2) == job.keys;
    if (!k_fits || k.size(3) != job.head_dim) k.fail("does not fit the values");
    region.low = of_queries<int64_t>(low.of(int64_type), job);
    region.high = of_queries<int64_t>(high.of(int64_type), job);
    if (given[4].is_none()) return;
    const auto tables = nb::borrow<nb::tuple>(given[4]);
    const View cos(tables[0], "cos"), sin(tables[1], "sin");
    cos.of(Dtype::float32).with_dims(2, 3).with_contiguous_rows();
    sin.of(Dtype::float32).with_shape_of(cos).with_strides_of(cos);
    const bool fits = cos.size(-2) == job.keys && 2 * cos.size(-1) <= job.head_dim &&
                      (cos.dims() == 2 || cos.size(0) == 1 || cos.size(0) == job.batch);
    if (!fits) cos.fail("does not fit the keys that it turns");
    region.cos = cos.data<const float>();
    region.sin = sin.data<const float>();
    region.table_batch = cos.dims() == 3 ? cos.shared(0) : 0;
    region.table_row = cos.stride(-2);
    region.pairs = cos.size(-1);
    region.interleaved = nb::cast<bool>(tables[2]);
    region.factor = nb::cast<float>(tables[3]);
}

// How many keys all queries of each task meet.
std::vector<int64_t> costs_of(const Attention& job) {
    std::vector<int64_t> costs(job.tasks(), 0);
    for (int64_t number = 0; number < job.tasks(); ++number) {
        const Task task = task_of(job, number);
        for (int r = 0; r < job.regions; ++r)
            for (int64_t i = task.first; i < task.last; ++i) {
                const Span span = span_of(job, job.region[r], task.batch, i);
                costs[number] += span.high - span.low;
            }
    }
    return costs;
}

// Tasks of these costs, with `bytes` of memory for each thread; `work` is how many multiplications they are.
template <typename Run>
void run(const std::vector<int64_t>& costs, int64_t work, int64_t bytes, int threads, const Run& task) {
    std::vector<int64_t> order(costs.size());
    std::iota(order.begin(), order.end(), 0);
    // The longest first, so that no thread begins one when the others end.
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return costs[a] > costs[b]; });
    // A second thread costs some microseconds, in which one core does about this many multiplications.
    const int64_t used = std::min<int64_t>(
        {threads, static_cast<int64_t>(order.size()), 1 + work / (int64_t{1} << 18)});
    bytes = (bytes + 63) / 64 * 64;
    struct Memory {
        char* const start;
        ~Memory() { std::free(start); }
    } memory{static_cast<char*>(std::malloc(used * bytes + 63))};
    if (!memory.start) throw std::bad_alloc();
    char* const aligned = memory.start + (64 - reinterpret_cast<uintptr_t>(memory.start) % 64) % 64;
    std::atomic<size_t> next{0};
    parallel(used, static_cast<int>(used), [&](int64_t begin, int64_t end) {
        for (int64_t thread = begin; thread < end; ++thread)
            for (size_t i = next++; i < order.size(); i = next++) task(order[i], aligned + thread * bytes);
    });
}

int64_t work_of(const Attention& job, const std::vector<int64_t>& costs) {
    return std::accumulate(costs.begin(), costs.end(), int64_t{0}) * job.groups() * job.head_dim;
}

// The call with this result (or its gradient) and these values; `constant` stores a scale of one number.
void begin_job(Attention& job, const View& to, const View& values, nb::handle scale, float softcap, float& constant) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16})
        if (to.is(number_type(dtype))) job.dtype = dtype;
    job.out = rows_of(to.of(job.dtype));
    job.v = rows_of(values.of(job.dtype));
    job.batch = to.size(0);
    job.heads = to.size(1);
    job.queries = to.size(2);
    job.head_dim = to.size(3);
    job.kv_heads = values.size(1);
    job.keys = values.size(2);
    if (values.size(0) != job.batch || values.size(3) != job.head_dim) values.fail("does not fit the result");
    if (job.keys >= most_keys) values.fail("has too many keys");
    if (job.kv_heads < 1 || job.heads % job.kv_heads) values.fail("must have a head for each group of queries");
    if (nb::isinstance<nb::float_>(scale)) {
        constant = nb::cast<float>(scale);
        job.scale.data = &constant;
    } else {
        job.scale = of_queries<float>(View(scale, "scale").of(Dtype::float32), job);
    }
    job.softcap = softcap;
    job.block = std::min(job.queries, std::max<int64_t>(1, task_columns / std::max<int64_t>(1, job.groups())));
}

// A float32 tensor of one number for each query of each head.
float* of_rows(const View& x, const Attention& job) {
    x.of(Dtype::float32).with_dims(3);
    if (x.size(0) != job.batch || x.size(1) != job.heads || x.size(2) != job.queries) x.fail("must be [batch, heads, queries]");
    x.contiguous_count();
    return x.data<float>();
}

// out, v and each region's q and k: [batch, heads, tokens, head_dim]; scale: a float, or float32 [batch or 1,
// queries]; sinks: float32 [heads] or None; log_sums: float32 [batch, heads, queries] or None; regions: see add_region.
void attend(int threads, nb::handle out, nb::handle v, nb::handle scale, float softcap, nb::handle sinks,
            nb::handle log_sums, nb::tuple regions) {
    Attention job;
    float constant = 0.0f;
    const View to(out, "out"), values(v, "v");
    begin_job(job, to, values, scale, softcap, constant);
    if (!sinks.is_none()) {
        const View given(sinks, "sinks");
        given.of(Dtype::float32).with_dims(1);
        if (given.contiguous_count() != job.heads) given.fail("must have one logit for each head");
        job.sinks = given.data<const float>();
    }
    if (!log_sums.is_none()) job.log_sums = of_rows(View(log_sums, "log_sums"), job);
    for (nb::handle region : regions) add_region(job, nb::borrow<nb::tuple>(region));
    if (to.count() == 0) return;
    nb::gil_scoped_release release;
    const Kernels& kernels = kernels_in_use();
    const std::vector<int64_t> costs = costs_of(job);
    run(costs, work_of(job, costs), kernels.attend_bytes(job), threads,
        [&](int64_t number, char* memory) { kernels.attend(job, number, memory); });
}

// How many keys of each task all queries meet.
std::vector<int64_t> costs_of(const AttentionBackward& job) {
    const Attention& forward = job.forward;
    std::vector<int64_t> costs(job.tasks(), 0);
    for (int64_t number = 0; number < job.tasks(); ++number) {
        const int64_t from = number % job.chunks * job.chunk, batch = number / job.chunks / forward.kv_heads;
        for (int64_t i = 0; i < forward.queries; ++i) {
            const Span span = span_of(forward, forward.region[0], batch, i);
            costs[number] += std::max<int64_t>(0, std::min(span.high, from + job.chunk) - std::max(span.low, from));
        }
    }
    return costs;
}

// Gradients of a call with one region. of_queries: float32 zeros [chunks, batch, queries, heads, head_dim]; of_keys and
// of_values like k and v; grad: the result's gradient; log_sums and less: float32 [batch, heads, queries]; region: see
// add_region, without tables; chunk: keys of one task, a multiple of `tile`.
void attend_backward(int threads, nb::handle of_queries, nb::handle of_keys, nb::handle of_values, nb::handle grad,
                     nb::handle v, nb::handle scale, float softcap, nb::handle log_sums, nb::handle less, int64_t chunk,
                     nb::tuple region) {
    AttentionBackward job;
    Attention& forward = job.forward;
    float constant = 0.0f;
    const View given(grad, "grad"), values(v, "v"), to_q(of_queries, "of_queries"), to_k(of_keys, "of_keys"),
        to_v(of_values, "of_values");
    begin_job(forward, given, values, scale, softcap, constant);
    add_region(forward, region);
    if (forward.region[0].cos) given.fail("has no backward through keys that are turned in the kernel");
    if (chunk < tile || chunk % tile) given.fail("needs chunks of whole tiles");
    job.chunk = chunk;
    job.chunks = (forward.keys + chunk - 1) / chunk;
    job.of_keys = rows_of(to_k.of(forward.dtype).with_shape_of(values));
    job.of_values = rows_of(to_v.of(forward.dtype).with_shape_of(values));
    to_q.of(Dtype::float32).with_dims(5);
    const int64_t shape[] = {job.chunks, forward.batch, forward.queries, forward.heads, forward.head_dim};
    for (int i = 0; i < 5; ++i)
        if (to_q.size(i) != shape[i]) to_q.fail("must be [chunks, batch, queries, heads, head_dim]");
    to_q.contiguous_count();
    job.of_queries = to_q.data<float>();
    job.log_sums = of_rows(View(log_sums, "log_sums"), forward);
    job.less = of_rows(View(less, "less"), forward);
    if (values.count() == 0) return;
    if (forward.queries == 0) forward.block = 1;
    nb::gil_scoped_release release;
    const Kernels& kernels = kernels_in_use();
    const std::vector<int64_t> costs = costs_of(job);
    run(costs, work_of(forward, costs), kernels.attend_back_bytes(job), threads,
        [&](int64_t number, char* memory) { kernels.attend_back(job, number, memory); });
}

}  // namespace

void define_attention(nb::module_& module) {
    module.def("attend", &attend, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
               nb::arg().none(), nb::arg());
    module.def("attend_backward", &attend_backward);
}

}  // namespace ropewalk
