// Parts of the Python module that have a file of their own.
#pragma once
#include <nanobind/nanobind.h>

#include "threads.h"

namespace ropewalk {

void define_attention(nanobind::module_& module);

// Runs without the GIL, unless letting it go would take longer than the work.
template <typename Work>
void unlocked(int64_t bytes, const Work& work) {
    if (bytes < bytes_per_thread) return work();
    nanobind::gil_scoped_release release;
    work();
}

}  // namespace ropewalk
