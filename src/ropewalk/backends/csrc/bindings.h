// Parts of the Python module that have a file of their own.
#pragma once
#include <nanobind/nanobind.h>

namespace ropewalk {

void define_attention(nanobind::module_& module);

}  // namespace ropewalk
