// The attention kernel's part of the Python module: reads tensors, cuts the work into tasks, hands them to threads.
// ropewalk/rotation/backends/cpu.py is its caller; sizes and dtypes are checked again, as in module.cpp.
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

OfQueries of_queries(const View& x, const Attention& job) {
    x.of(int64_type).with_dims(2);
    if ((x.size(0) != 1 && x.size(0) != job.batch) || x.size(1) != job.queries) x.fail("must be [batch or 1, queries]");
    return {x.data<int64_t>(), x.shared(0), x.shared(1)};
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
    region.low = of_queries(low, job);
    region.high = of_queries(high, job);
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

void run(const Attention& job, int threads) {
    const Kernels& kernels = kernels_in_use();
    const std::vector<int64_t> costs = costs_of(job);
    std::vector<int64_t> order(costs.size());
    std::iota(order.begin(), order.end(), 0);
    // The longest first, so that no thread begins one when the others end.
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return costs[a] > costs[b]; });
    // A second thread costs some microseconds, in which one core does about this many multiplications.
    const int64_t work = std::accumulate(costs.begin(), costs.end(), int64_t{0}) * job.groups() * job.head_dim;
    const int64_t used = std::min<int64_t>(
        {threads, static_cast<int64_t>(order.size()), 1 + work / (int64_t{1} << 18)});
    const int64_t bytes = (kernels.attend_bytes(job) + 63) / 64 * 64;  // of each thread
    struct Memory {
        char* const start;
        ~Memory() { std::free(start); }
    } memory{static_cast<char*>(std::malloc(used * bytes + 63))};
    if (!memory.start) throw std::bad_alloc();
    char* const aligned = memory.start + (64 - reinterpret_cast<uintptr_t>(memory.start) % 64) % 64;
    std::atomic<size_t> next{0};
    parallel(used, static_cast<int>(used), [&](int64_t begin, int64_t end) {
        for (int64_t thread = begin; thread < end; ++thread)
            for (size_t i = next++; i < order.size(); i = next++) kernels.attend(job, order[i], aligned + thread * bytes);
    });
}

// out, v and each region's q and k: [batch, heads, tokens, head_dim]; sinks: float32 [heads] or None; regions: see
// add_region.
void attend(int threads, nb::handle out, nb::handle v, float scale, float softcap, nb::handle sinks, nb::tuple regions) {
    Attention job;
    const View to(out, "out"), values(v, "v");
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
    job.scale = scale;
    job.softcap = softcap;
    job.block = std::min(job.queries, std::max<int64_t>(1, task_columns / std::max<int64_t>(1, job.groups())));
    if (!sinks.is_none()) {
        const View given(sinks, "sinks");
        given.of(Dtype::float32).with_dims(1);
        if (given.contiguous_count() != job.heads) given.fail("must have one logit for each head");
        job.sinks = given.data<const float>();
    }
    for (nb::handle region : regions) add_region(job, nb::borrow<nb::tuple>(region));
    if (to.count() == 0) return;
    nb::gil_scoped_release release;
    run(job, threads);
}

}  // namespace

void define_attention(nb::module_& module) {
    module.def("attend", &attend, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(),
               nb::arg());
}

}  // namespace ropewalk
