// The Python module: reads pointers, shapes and strides, chooses the instruction set, and hands blocks to threads.
// It checks nothing that ropewalk/backends/cpu.py has not already checked; that file is its only caller.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dlpack.h"
#include "job.h"
#include "memory.h"
#include "threads.h"

namespace nb = nanobind;
using namespace ropewalk;

namespace {

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
    found.push_back(&portable_kernels());
    return found;
}

std::atomic<const Kernels*> chosen{nullptr};

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* kernels : runnable()) names.emplace_back(kernels->name);
    return names;
}

void use_instruction_set(const std::string& name) {
    for (const Kernels* kernels : runnable())
        if (name == kernels->name) {
            chosen = kernels;
            return;
        }
    throw nb::value_error(("this processor cannot run " + name).c_str());
}

std::string instruction_set() { return chosen.load()->name; }

int64_t at(const nb::tuple& numbers, size_t index) {
    return PyLong_AsLongLong(PyTuple_GET_ITEM(numbers.ptr(), static_cast<Py_ssize_t>(index)));
}

// Layouts, as cpu.py numbers them.
enum Layout { bshd = 0, bhsd = 1, thd = 2 };

Strides strides_of(const nb::tuple& s, int layout) {
    if (layout == thd) return {0, at(s, 0), at(s, 1), at(s, 2)};
    return layout == bshd ? Strides{at(s, 0), at(s, 1), at(s, 2), at(s, 3)}
                          : Strides{at(s, 0), at(s, 2), at(s, 1), at(s, 3)};
}

constexpr int64_t item_size(Dtype dtype) {
    return dtype == Dtype::float64 ? 8 : dtype == Dtype::float32 ? 4 : 2;
}

// Writing past the caches pays where the result would not stay in them, and needs whole aligned lines.
constexpr int64_t streamed_from = int64_t{16} << 20;

bool streams(const Rotation& job, const Side& side) {
    const int64_t size = item_size(job.dtype), line = 64;
    if (side.in == side.out || side.copied || side.slots || side.out_strides.feature != 1) return false;
    if (job.batch * job.tokens * side.heads * job.head_dim * size < streamed_from) return false;
    const Strides& s = side.out_strides;
    const int64_t steps = (s.batch | s.token | s.head | (job.interleaved ? 2 * job.pairs : job.pairs)) * size;
    return (reinterpret_cast<uintptr_t>(side.out) | static_cast<uintptr_t>(steps)) % line == 0;
}

Rotation rotation(int layout, int dtype, bool interleaved, double cos_scale, double sin_scale, uintptr_t cos,
                  const nb::tuple& shape, const nb::tuple& strides, uintptr_t sin) {
    Rotation job;
    job.dtype = static_cast<Dtype>(dtype);
    job.interleaved = interleaved;
    job.cos_scale = cos_scale;
    job.sin_scale = sin_scale;
    job.cos = reinterpret_cast<const void*>(cos);
    job.sin = reinterpret_cast<const void*>(sin);
    const size_t dims = shape.size();
    job.pairs = at(shape, dims - 1);
    if (dims == 2) {
        job.table_token = at(strides, 0);
    } else if (layout == thd) {
        job.table_token = at(strides, 0);
        job.table_head = at(shape, 1) > 1 ? at(strides, 1) : 0;
    } else {
        job.table_batch = at(shape, 0) > 1 ? at(strides, 0) : 0;
        job.table_token = at(strides, 1);
        job.table_head = dims == 4 && at(shape, 2) > 1 ? at(strides, 2) : 0;
    }
    return job;
}

Side& add_side(Rotation& job, int layout, uintptr_t in, const nb::tuple& shape, const nb::tuple& in_strides,
               uintptr_t out, const nb::tuple& out_strides, int out_layout) {
    Side& side = job.side[job.sides++];
    const bool packed = layout == thd;
    job.batch = packed ? 1 : at(shape, 0);
    job.tokens = at(shape, packed ? 0 : layout == bshd ? 1 : 2);
    job.head_dim = at(shape, packed ? 2 : 3);
    side.heads = at(shape, packed ? 1 : layout == bshd ? 2 : 1);
    side.in = reinterpret_cast<const char*>(in);
    side.out = reinterpret_cast<char*>(out);
    side.in_strides = strides_of(in_strides, layout);
    side.out_strides = strides_of(out_strides, out_layout);
    return side;
}

int64_t bytes_of(const Rotation& job) {
    int64_t heads = 0;
    for (int i = 0; i < job.sides; ++i) heads += job.side[i].heads;
    return job.batch * job.tokens * heads * job.head_dim * item_size(job.dtype);
}

// A second thread costs some microseconds, in which one core moves about this much.
constexpr int64_t bytes_per_thread = int64_t{128} << 10;

int threads_for(int64_t bytes, int threads) {
    return static_cast<int>(std::min<int64_t>(threads, 1 + bytes / bytes_per_thread));
}

// Runs without the GIL, unless letting it go would take longer than the work.
template <typename Work>
void unlocked(int64_t bytes, const Work& work) {
    if (bytes < bytes_per_thread) return work();
    nb::gil_scoped_release release;
    work();
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

// sides: five numbers for each tensor: pointer, shape, strides; pointer and strides of the result.
void rotate(int layout, int dtype, bool interleaved, double cos_scale, double sin_scale, int threads, uintptr_t cos,
            nb::tuple shape, nb::tuple strides, uintptr_t sin, nb::args sides) {
    Rotation job = rotation(layout, dtype, interleaved, cos_scale, sin_scale, cos, shape, strides, sin);
    for (size_t i = 0; i + 4 < sides.size(); i += 5)
        add_side(job, layout, nb::cast<uintptr_t>(sides[i]), nb::borrow<nb::tuple>(sides[i + 1]),
                 nb::borrow<nb::tuple>(sides[i + 2]), nb::cast<uintptr_t>(sides[i + 3]),
                 nb::borrow<nb::tuple>(sides[i + 4]), layout);
    run(job, threads);
}

// sides: (pointer, shape, strides, result, its strides, its layout, weight, slots, their strides, copied).
void norm_rotate(int layout, int dtype, bool interleaved, double cos_scale, double sin_scale, int threads,
                 uintptr_t cos, nb::tuple shape, nb::tuple strides, uintptr_t sin, double eps, nb::list sides) {
    Rotation job = rotation(layout, dtype, interleaved, cos_scale, sin_scale, cos, shape, strides, sin);
    job.eps = eps;
    for (nb::handle given : sides) {
        const auto s = nb::borrow<nb::tuple>(given);
        Side& side = add_side(job, layout, nb::cast<uintptr_t>(s[0]), nb::borrow<nb::tuple>(s[1]),
                              nb::borrow<nb::tuple>(s[2]), nb::cast<uintptr_t>(s[3]), nb::borrow<nb::tuple>(s[4]),
                              nb::cast<int>(s[5]));
        side.weight = reinterpret_cast<const void*>(nb::cast<uintptr_t>(s[6]));
        side.slots = reinterpret_cast<const int64_t*>(nb::cast<uintptr_t>(s[7]));
        if (side.slots) {
            const auto slot_strides = nb::borrow<nb::tuple>(s[8]);
            side.slot_batch = at(slot_strides, 0);
            side.slot_token = at(slot_strides, 1);
        }
        side.copied = nb::cast<bool>(s[9]);
    }
    run(job, threads);
}

// sides: (pointer, shape, strides, result, its strides, gradient, its strides, weight); `sums` takes 2 x head_dim.
void norm_rotate_backward(int layout, int dtype, bool interleaved, double cos_scale, double sin_scale, int threads,
                          uintptr_t cos, nb::tuple shape, nb::tuple strides, uintptr_t sin, double eps,
                          nb::list sides, uintptr_t sums) {
    Rotation job = rotation(layout, dtype, interleaved, cos_scale, sin_scale, cos, shape, strides, sin);
    job.eps = eps;
    for (nb::handle given : sides) {
        const auto s = nb::borrow<nb::tuple>(given);
        Side& side = add_side(job, layout, nb::cast<uintptr_t>(s[0]), nb::borrow<nb::tuple>(s[1]),
                              nb::borrow<nb::tuple>(s[2]), nb::cast<uintptr_t>(s[3]), nb::borrow<nb::tuple>(s[4]),
                              layout);
        side.grad = reinterpret_cast<const char*>(nb::cast<uintptr_t>(s[5]));
        side.grad_strides = strides_of(nb::borrow<nb::tuple>(s[6]), layout);
        side.weight = reinterpret_cast<const void*>(nb::cast<uintptr_t>(s[7]));
    }
    const int64_t bytes = bytes_of(job), length = 2 * job.head_dim;
    if (bytes == 0) return;
    const Kernels& kernels = *chosen.load();
    double* total = reinterpret_cast<double*>(sums);
    unlocked(bytes, [&] {
        // One set of sums for each piece of fixed size, added in order: the same result for any number of threads.
        const int64_t blocks = blocks_of(job), per_piece = std::max<int64_t>(1, blocks / 64);
        const int64_t pieces = (blocks + per_piece - 1) / per_piece;
        std::vector<double> partial(static_cast<size_t>(pieces * length), 0.0);
        parallel(pieces, threads_for(bytes, threads), [&](int64_t begin, int64_t end) {
            for (int64_t piece = begin; piece < end; ++piece)
                kernels.norm_backward(job, piece * per_piece, std::min(blocks, (piece + 1) * per_piece),
                                      partial.data() + piece * length);
        });
        for (int64_t i = 0; i < pieces * length; ++i) total[i % length] += partial[static_cast<size_t>(i)];
    });
}

std::vector<double> doubles(const nb::tuple& values) {
    std::vector<double> copied;
    copied.reserve(values.size());
    for (nb::handle value : values) copied.push_back(nb::cast<double>(value));
    return copied;
}

// columns: a tuple of floats, or the pointer of [groups, pairs] float64; first: (count, tuple of floats) or None.
void tables(int threads, uintptr_t positions, bool integral, nb::tuple position_strides, int64_t rows, int64_t pairs,
            nb::object columns, int64_t rows_per_group, nb::object axes, nb::object first, uintptr_t cos,
            uintptr_t sin, bool as_doubles) {
    Tables job;
    job.positions = reinterpret_cast<const void*>(positions);
    job.integral = integral;
    job.position_row = at(position_strides, 0);
    job.position_axis = position_strides.size() > 1 ? at(position_strides, 1) : 0;
    job.rows = rows;
    job.pairs = pairs;
    job.rows_per_group = rows_per_group;
    job.cos = reinterpret_cast<void*>(cos);
    job.sin = reinterpret_cast<void*>(sin);
    job.doubles = as_doubles;
    std::vector<double> own, own_first;
    std::vector<int32_t> own_axes;
    if (nb::isinstance<nb::tuple>(columns)) {
        own = doubles(nb::borrow<nb::tuple>(columns));
        job.columns = own.data();
    } else {
        job.columns = reinterpret_cast<const double*>(nb::cast<uintptr_t>(columns));
    }
    if (!axes.is_none()) {
        for (nb::handle axis : nb::borrow<nb::tuple>(axes)) own_axes.push_back(nb::cast<int32_t>(axis));
        job.axes = own_axes.data();
    }
    if (!first.is_none()) {
        const auto given = nb::borrow<nb::tuple>(first);
        job.first_count = nb::cast<double>(given[0]);
        own_first = doubles(nb::borrow<nb::tuple>(given[1]));
        job.first = own_first.data();
    }
    const Kernels& kernels = *chosen.load();
    // An entry costs as much as moving about 64 bytes.
    const int64_t bytes = rows * pairs * 64;
    unlocked(bytes, [&] {
        parallel(rows, threads_for(bytes, threads),
                 [&](int64_t begin, int64_t end) { kernels.tables(job, begin, end); });
    });
}

// A result's memory as a DLPack tensor: what it needs until it is freed, in one piece.
struct Result {
    DLManagedTensor managed;
    std::vector<int64_t> shape, strides;
    int64_t bytes;
};

void free_result(DLManagedTensor* managed) {
    Result* const result = static_cast<Result*>(managed->context);
    put_back(managed->tensor.data, result->bytes);
    delete result;
}

// A capsule "dltensor" over uninitialized memory for a tensor of this dtype, shape and these strides, which fill it
// without gaps; None where there is no such memory. torch.from_dlpack makes a tensor of it, and frees it.
nb::object new_result(int dtype, std::vector<int64_t> shape, std::vector<int64_t> strides) {
    int64_t bytes = item_size(static_cast<Dtype>(dtype));
    for (const int64_t size : shape) bytes *= size;
    void* const memory = take_memory(bytes);
    if (!memory) return nb::none();
    Result* const result = new Result{{}, std::move(shape), std::move(strides), bytes};
    const uint8_t bits = static_cast<uint8_t>(8 * item_size(static_cast<Dtype>(dtype)));
    const uint8_t code = static_cast<Dtype>(dtype) == Dtype::bfloat16 ? 4 : 2;
    result->managed = {{memory, {1, 0}, static_cast<int32_t>(result->shape.size()), {code, bits, 1},
                        result->shape.data(), result->strides.data(), 0}, result, &free_result};
    PyObject* const capsule = PyCapsule_New(&result->managed, "dltensor", [](PyObject* unused) {
        if (!PyCapsule_IsValid(unused, "dltensor")) return;  // a tensor has taken it
        auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(unused, "dltensor"));
        managed->deleter(managed);
    });
    if (!capsule) {
        free_result(&result->managed);
        throw nb::python_error();
    }
    return nb::steal(capsule);
}

}  // namespace

NB_MODULE(_kernels, module) {
    chosen = runnable().front();
    module.doc() = "ropewalk's compiled kernels for CPU tensors, given as pointers and strides.";
    module.def("rotate", &rotate);
    module.def("norm_rotate", &norm_rotate);
    module.def("norm_rotate_backward", &norm_rotate_backward);
    module.def("tables", &tables, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
               nb::arg(), nb::arg().none(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg());
    module.def("use_huge_pages", &use_huge_pages);
    module.def("new_result", &new_result);
    module.def("release_memory", &release_memory);
    module.def("instruction_sets", &instruction_sets);
    module.def("instruction_set", &instruction_set);
    module.def("use_instruction_set", &use_instruction_set);
    module.def("threads_from", &threads_from);
}
