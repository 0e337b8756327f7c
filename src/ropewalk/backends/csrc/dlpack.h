// The part of DLPack (version 0, github.com/dmlc/dlpack) by which memory of ours becomes a tensor of PyTorch's.
#pragma once
#include <cstdint>

namespace ropewalk {

struct DLDevice {
    int32_t type;  // 1: CPU
    int32_t id;
};

struct DLDataType {
    uint8_t code;  // 2: float, 4: bfloat
    uint8_t bits;
    uint16_t lanes;
};

struct DLTensor {
    void* data;
    DLDevice device;
    int32_t dims;
    DLDataType dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};

struct DLManagedTensor {
    DLTensor tensor;
    void* context;
    void (*deleter)(DLManagedTensor*);
};

}  // namespace ropewalk
