// The Python module: reads tensors, chooses the instruction set, and hands blocks to threads.
// ropewalk/rotation/backends/cpu.py and ropewalk/rope/tables.py are its callers and have checked what a user can get wrong; here
// devices, dtypes and sizes are checked again, so that no call can read or write outside its tensors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#ifdef ROPEWALK_ARM
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#endif

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bindings.h"
#include "job.h"
#include "memory.h"
#include "tensor.h"
#include "threads.h"

using namespace ropewalk;

namespace {

#ifdef ROPEWALK_ARM
// Whether this processor has the BF16 instructions of Armv8.6.
bool has_arm_bf16() {
#if defined(__linux__)
    return getauxval(AT_HWCAP2) & (1ul << 14);  // HWCAP2_BF16
#elif defined(__APPLE__)
    int has = 0;
    size_t size = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) == 0 && has;
#else
    return false;
#endif
}
#endif

// Best first.
std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> found;
#ifdef ROPEWALK_X86
    __builtin_cpu_init();
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512 && __builtin_cpu_supports("avx512bf16")) found.push_back(&avx512_bf16_kernels());
    if (avx512) found.push_back(&avx512_kernels());
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        found.push_back(&avx2_kernels());
#endif
#ifdef ROPEWALK_ARM
    if (has_arm_bf16()) found.push_back(&neon_bf16_kernels());
    found.push_back(&neon_kernels());
#endif
    found.push_back(&portable_kernels());
    return found;
}

// For rotations, and for attention.
std::atomic<const Kernels*> chosen{nullptr}, of_products{nullptr};

// The best kernels. Intel's AVX512-BF16 multiplies at half of float32's rate: on one core of a Xeon, attention in bfloat16
// reaches 79 GFLOP/s with it, and 143 if the numbers are widened.
void use_best() {
    const std::vector<const Kernels*> found = runnable();
    chosen = of_products = found.front();
#ifdef ROPEWALK_X86
    if (found.front() == &avx512_bf16_kernels() && __builtin_cpu_is("intel")) of_products = &avx512_kernels();
#endif
}

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* kernels : runnable()) names.emplace_back(kernels->name);
    return names;
}

void use_instruction_set(const std::string& name) {
    for (const Kernels* kernels : runnable())
        if (name == kernels->name) {
            chosen = of_products = kernels;
            return;
        }
    throw nb::value_error(("this processor cannot run " + name).c_str());
}

std::string instruction_set() { return chosen.load()->name; }

// Layouts, as cpu.py numbers them.
enum Layout { bshd = 0, bhsd = 1, thd = 2 };

int dims_of(int layout) { return layout == thd ? 3 : 4; }
int token_dim(int layout) { return layout == thd ? 0 : layout == bshd ? 1 : 2; }
int head_dim_at(int layout) { return layout == bhsd ? 1 : layout == thd ? 1 : 2; }

Strides strides_of(const View& x, int layout) {
    return {layout == thd ? 0 : x.stride(0), x.stride(token_dim(layout)), x.stride(head_dim_at(layout)), x.stride(-1)};
}

Dtype dtype_of(const View& x) {
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::float16, Dtype::float64})
        if (x.is(number_type(dtype))) return dtype;
    x.fail("must be float64, float32, bfloat16 or float16");
}
Dtype compute_dtype(const Rotation& job) { return job.dtype == Dtype::float64 ? Dtype::float64 : Dtype::float32; }

// Writing past the caches pays where the result would not stay in them, and needs whole aligned lines.
constexpr int64_t streamed_from = int64_t{16} << 20;

bool streams(const Rotation& job, const Side& side) {
    const int64_t size = item_size(job.dtype), line = 64;
    if (side.in == side.out || side.copied || side.slots || side.out_strides.feature != 1) return false;
    if (job.batch * job.tokens * side.heads * job.head_dim * size < streamed_from) return false;
    const Strides& s = side.out_strides;
    const int64_t steps = (s.batch | s.token | s.head | job.first | (job.interleaved ? 2 * job.pairs : job.pairs)) * size;
    return (reinterpret_cast<uintptr_t>(side.out) | static_cast<uintptr_t>(steps)) % line == 0;
}

// The first arguments of every kernel: how to rotate. `where` is the layout, or a tuple of it and the first rotated
// feature.
struct Turn {
    int layout;
    bool interleaved;
    double cos_scale, sin_scale;
    int threads;
    int64_t first = 0;

    Turn(nb::handle where, bool interleaved, double cos_scale, double sin_scale, int threads)
        : interleaved(interleaved), cos_scale(cos_scale), sin_scale(sin_scale), threads(threads) {
        if (!nb::isinstance<nb::tuple>(where)) {
            layout = nb::cast<int>(where);
            return;
        }
        const auto given = nb::borrow<nb::tuple>(where);
        layout = nb::cast<int>(given[0]);
        first = nb::cast<int64_t>(given[1]);
    }
};

// The sizes that all tensors of a call share are those of `x`.
Rotation rotation(const Turn& turn, const View& x) {
    Rotation job;
    x.with_dims(dims_of(turn.layout));
    job.dtype = dtype_of(x);
    job.interleaved = turn.interleaved;
    job.first = turn.first;
    job.cos_scale = turn.cos_scale;
    job.sin_scale = turn.sin_scale;
    job.batch = turn.layout == thd ? 1 : x.size(0);
    job.tokens = x.size(token_dim(turn.layout));
    job.head_dim = x.size(-1);
    return job;
}

// `out` is a tensor like `in`, or a cache whose tokens have slots.
Side& add_side(Rotation& job, const Turn& turn, const View& in, const View& out, int out_layout) {
    const int layout = turn.layout;
    if (job.sides == 3) in.fail("is one tensor too many");
    Side& side = job.side[job.sides++];
    in.of(job.dtype).with_dims(dims_of(layout));
    out.of(job.dtype).with_dims(dims_of(out_layout));
    side.heads = in.size(head_dim_at(layout));
    const bool fits = (layout == thd || in.size(0) == job.batch) && in.size(token_dim(layout)) == job.tokens &&
                      in.size(-1) == job.head_dim && out.size(-1) == job.head_dim &&
                      out.size(head_dim_at(out_layout)) == side.heads &&
                      (out_layout == thd || out.size(0) == job.batch);
    if (!fits) in.fail("does not fit the other tensors");
    side.in = in.data();
    side.out = out.data();
    side.in_strides = strides_of(in, layout);
    side.out_strides = strides_of(out, out_layout);
    return side;
}

// cos and sin, when all sides are known: they have a row for each token, and for each batch and head if not one for all.
void add_tables(Rotation& job, int layout, const View& cos, const View& sin) {
    cos.of(compute_dtype(job)).with_dims(2, dims_of(layout)).with_contiguous_rows();
    sin.of(compute_dtype(job)).with_shape_of(cos).with_strides_of(cos);
    job.cos = cos.data();
    job.sin = sin.data();
    job.pairs = cos.size(-1);
    const int token = cos.dims() == 2 || layout == thd ? 0 : 1, head = token + 1;
    bool fits = cos.size(token) == job.tokens && job.first >= 0 && job.first + 2 * job.pairs <= job.head_dim;
    job.table_token = cos.stride(token);
    if (token == 1) {
        fits = fits && (cos.size(0) == 1 || cos.size(0) == job.batch);
        job.table_batch = cos.shared(0);
    }
    if (cos.dims() > head + 1) {
        for (int i = 0; i < job.sides; ++i)
            fits = fits && (cos.size(head) == 1 || job.side[i].copied || cos.size(head) == job.side[i].heads);
        job.table_head = cos.shared(head);
    }
    if (!fits) cos.fail("does not fit the tensors that it turns");
}

// RMSNorm's weight, in the compute dtype: one number for each feature of a head.
const void* weight_of(const Rotation& job, const View& weight) {
    weight.of(compute_dtype(job)).with_dims(1).with_contiguous_rows();
    if (weight.size(0) != job.head_dim) weight.fail("must have one number for each feature");
    return weight.data();
}

int64_t bytes_of(const Rotation& job) {
    int64_t heads = 0;
    for (int i = 0; i < job.sides; ++i) heads += job.side[i].heads;
    return job.batch * job.tokens * heads * job.head_dim * item_size(job.dtype);
}

void run(Rotation& job, int threads) {
    const int64_t bytes = bytes_of(job);
    if (bytes == 0) return;
    const Kernels& kernels = *chosen.load();
    for (int i = 0; i < job.sides; ++i) job.side[i].stream = streams(job, job.side[i]);
    const int64_t blocks = blocks_of(job);
    const int used = threads_for(bytes, threads);
    unlocked(bytes, [&] {
        if (used <= 1) return kernels.rotate(job, 0, blocks);
        parallel(blocks, used, [&](int64_t begin, int64_t end) { kernels.rotate(job, begin, end); });
    });
}

// xs: one or two tensors, each followed by its result.
void rotate(nb::handle where, bool interleaved, double cos_scale, double sin_scale, int threads, nb::handle cos,
            nb::handle sin, nb::args xs) {
    const Turn turn(where, interleaved, cos_scale, sin_scale, threads);
    Rotation job = rotation(turn, View(xs[0], "x"));
    for (size_t i = 0; i + 1 < xs.size(); i += 2) {
        const View in(xs[i], "x"), out(xs[i + 1], "out");
        add_side(job, turn, in, out.with_shape_of(in), turn.layout);
    }
    add_tables(job, turn.layout, View(cos, "cos"), View(sin, "sin"));
    run(job, turn.threads);
}

// Where the tokens of a side go in a cache's buffer, each below its capacity.
void add_slots(const Rotation& job, Side& side, const View& slots, int64_t capacity) {
    slots.of(int64_type).with_dims(2);
    bool fits = (slots.size(0) == 1 || slots.size(0) == job.batch) && slots.size(1) == job.tokens;
    side.slots = slots.data<const int64_t>();
    side.slot_batch = slots.shared(0);
    side.slot_token = slots.stride(1);
    for (int64_t b = 0; fits && b < slots.size(0); ++b)
        for (int64_t t = 0; t < job.tokens; ++t)
            fits = fits && side.slots[b * side.slot_batch + t * side.slot_token] < capacity;
    if (!fits) slots.fail("must have a place below the capacity for each token");
}

// sides: (x, result, weight or None) of queries and keys. With `store` the keys' result is a cache's buffer, and a third
// side, (values, buffer, None), is copied. `store` is the slots, or None.
void norm_rotate(nb::handle where, bool interleaved, double cos_scale, double sin_scale, int threads, nb::handle cos,
                 nb::handle sin, double eps, nb::handle store, nb::tuple sides) {
    const Turn turn(where, interleaved, cos_scale, sin_scale, threads);
    Rotation job = rotation(turn, View(nb::borrow<nb::tuple>(sides[0])[0], "q"));
    job.eps = eps;
    for (size_t i = 0; i < sides.size(); ++i) {
        const auto given = nb::borrow<nb::tuple>(sides[i]);
        const View in(given[0], i == 0 ? "q" : i == 1 ? "k" : "fresh"), out(given[1], i == 0 ? "out" : "the result");
        if (i > 0 && !store.is_none()) {
            Side& side = add_side(job, turn, in, out, bhsd);
            add_slots(job, side, View(store, "slots"), out.size(token_dim(bhsd)));
        } else {
            add_side(job, turn, in, out.with_shape_of(in), turn.layout);
        }
        Side& side = job.side[i];
        if (!given[2].is_none()) side.weight = weight_of(job, View(given[2], "weight"));
        side.copied = i == 2;
    }
    add_tables(job, turn.layout, View(cos, "cos"), View(sin, "sin"));
    run(job, turn.threads);
}

// positions: int64 or float64 [rows, axes]; columns: floats; axes: a tuple or None; cos, sin: contiguous.
void tables(int threads, nb::handle positions, nb::tuple columns, nb::handle axes, nb::handle cos, nb::handle sin) {
    const View places(positions, "position_ids"), to_cos(cos, "cos"), to_sin(sin, "sin");
    Tables job;
    places.with_dims(2);
    job.integral = places.is(int64_type);
    if (!job.integral) places.of(Dtype::float64);
    job.positions = places.data();
    job.position_row = places.stride(0);
    job.position_axis = places.stride(1);
    job.rows = places.size(0);
    std::vector<double> own;
    std::vector<int32_t> own_axes;
    own.reserve(columns.size());
    for (nb::handle value : columns) own.push_back(nb::cast<double>(value));
    job.columns = own.data();
    job.pairs = static_cast<int64_t>(own.size());
    if (!axes.is_none()) {
        for (nb::handle axis : nb::borrow<nb::tuple>(axes)) {
            own_axes.push_back(nb::cast<int32_t>(axis));
            if (own_axes.back() < 0 || own_axes.back() >= places.size(1)) places.fail("has no such axis");
        }
        if (static_cast<int64_t>(own_axes.size()) != job.pairs) places.fail("needs one axis for each pair");
        job.axes = own_axes.data();
    } else if (job.rows && places.size(1) < 1) {
        places.fail("has no axis");
    }
    job.doubles = to_cos.is(number_type(Dtype::float64));
    const Dtype dtype = job.doubles ? Dtype::float64 : Dtype::float32;
    for (const View* table : {&to_cos, &to_sin})
        if (table->of(dtype).contiguous_count() != job.rows * job.pairs) table->fail("must be contiguous, [..., pairs]");
    job.cos = to_cos.data();
    job.sin = to_sin.data();
    const Kernels& kernels = *chosen.load();
    // An entry costs as much as moving about 64 bytes.
    const int64_t bytes = job.rows * job.pairs * 64;
    unlocked(bytes, [&] {
        parallel(job.rows, threads_for(bytes, threads),
                 [&](int64_t begin, int64_t end) { kernels.tables(job, begin, end); });
    });
}

bool huge_pages(nb::handle fresh) {
    const View x(fresh, "fresh");
    return use_huge_pages(reinterpret_cast<uintptr_t>(x.data()), x.count() * x.item_size());
}

}  // namespace

const Kernels& ropewalk::kernels_in_use() { return *of_products.load(); }

NB_MODULE(_kernels, module) {
    use_best();
    module.doc() = "ropewalk's compiled kernels for CPU tensors.";
    module.def("use_exchange", &use_exchange);
    module.def("rotate", &rotate);
    module.def("norm_rotate", &norm_rotate, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
               nb::arg(), nb::arg().none(), nb::arg());
    module.def("tables", &tables, nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
    define_attention(module);
    module.def("use_huge_pages", &huge_pages);
    module.def("instruction_sets", &instruction_sets);
    module.def("instruction_set", &instruction_set);
    module.def("use_instruction_set", &use_instruction_set);
    module.def("threads_from", &threads_from);
}
