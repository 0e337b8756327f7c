// Tensors of PyTorch, read without a copy through DLPack's C exchange table (DLPack 1.3, github.com/dmlc/dlpack;
// torch.Tensor.__dlpack_c_exchange_api__): less than 0.1 us each, where __dlpack__() takes 7 us.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "job.h"

namespace ropewalk {

namespace nb = nanobind;

// The beginning of DLPackExchangeAPI, as far as it is used here.
struct Exchange {
    uint32_t major, minor;
    const void* previous;
    void *allocate, *own, *to_python;
    int (*borrow)(void* tensor, nb::dlpack::dltensor* out);  // not zero: a Python exception is set
};

inline const Exchange* exchange = nullptr;

inline void use_exchange(nb::object capsule) {
    const auto* const table = static_cast<const Exchange*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
    if (!table) throw nb::python_error();
    if (table->major != 1) throw nb::import_error("this PyTorch speaks another version of DLPack's exchange table");
    exchange = table;
}

constexpr nb::dlpack::dtype number_type(Dtype dtype) {
    const auto code = dtype == Dtype::bfloat16 ? nb::dlpack::dtype_code::Bfloat : nb::dlpack::dtype_code::Float;
    const uint8_t bits = dtype == Dtype::float64 ? 64 : dtype == Dtype::float32 ? 32 : 16;
    return {static_cast<uint8_t>(code), bits, 1};
}
constexpr nb::dlpack::dtype int64_type{static_cast<uint8_t>(nb::dlpack::dtype_code::Int), 64, 1};

// A tensor's memory, dtype, shape and strides (in elements), borrowed from its Python object, which must outlive it.
class View {
public:
    // `name` is what errors call it. Refuses what is not a tensor in CPU memory.
    View(nb::handle tensor, const char* name) : name_(name) {
        if (!exchange) fail("was given before use_exchange() was called");
        if (exchange->borrow(tensor.ptr(), &view_)) throw nb::python_error();
        const int32_t where = view_.device.device_type;
        if (where != nb::device::cpu::value && where != nb::device::cuda_host::value && where != nb::device::rocm_host::value)
            fail("is not in CPU memory");
        if (!view_.data && count() != 0) fail("has no memory: its storage has been freed");
    }

    const View& of(nb::dlpack::dtype dtype) const {
        if (view_.dtype != dtype) fail("has another dtype than the kernel reads");
        return *this;
    }
    const View& of(Dtype dtype) const { return of(number_type(dtype)); }
    const View& with_dims(int dims) const { return with_dims(dims, dims); }
    const View& with_dims(int least, int most) const {
        if (view_.ndim < least || view_.ndim > most) fail("has the wrong number of dimensions");
        return *this;
    }
    const View& with_shape_of(const View& other) const {
        bool same = view_.ndim == other.view_.ndim;
        for (int i = 0; same && i < view_.ndim; ++i) same = view_.shape[i] == other.view_.shape[i];
        if (!same) fail("has another shape than the tensor it belongs to");
        return *this;
    }
    const View& with_strides_of(const View& other) const {
        bool same = true;
        for (int i = 0; i < view_.ndim; ++i) same = same && (view_.shape[i] < 2 || view_.strides[i] == other.view_.strides[i]);
        if (!same) fail("has other strides than the tensor it belongs to");
        return *this;
    }
    const View& with_contiguous_rows() const {
        if (view_.ndim && view_.shape[view_.ndim - 1] > 1 && view_.strides[view_.ndim - 1] != 1)
            fail("must have contiguous rows");
        return *this;
    }

    int64_t count() const {
        int64_t product = 1;
        for (int i = 0; i < view_.ndim; ++i) product *= view_.shape[i];
        return product;
    }
    // How many elements it has; fails where they do not fill its memory in order.
    int64_t contiguous_count() const {
        int64_t product = 1;
        bool dense = true;
        for (int i = view_.ndim - 1; i >= 0; --i) {
            dense = dense && (view_.shape[i] == 1 || view_.strides[i] == product);
            product *= view_.shape[i];
        }
        if (!dense && product) fail("must be contiguous");
        return product;
    }
    int64_t item_size() const { return view_.dtype.bits / 8; }

    bool is(nb::dlpack::dtype dtype) const { return view_.dtype == dtype; }
    int dims() const { return view_.ndim; }
    int64_t size(int i) const { return view_.shape[i < 0 ? i + view_.ndim : i]; }
    int64_t stride(int i) const { return view_.strides[i < 0 ? i + view_.ndim : i]; }
    // The stride of a dimension that may have size 1 and then serves all.
    int64_t shared(int i) const { return size(i) > 1 ? stride(i) : 0; }
    template <typename T = char>
    T* data() const {
        return static_cast<T*>(view_.data);
    }
    [[noreturn]] void fail(const char* rule) const { throw nb::value_error(("`" + std::string(name_) + "` " + rule).c_str()); }

private:
    nb::dlpack::dltensor view_;
    const char* name_;
};

}  // namespace ropewalk
