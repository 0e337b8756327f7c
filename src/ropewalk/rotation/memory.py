"""Whether tensors have elements in common."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ropewalk.compiled import reasons_for_mathematics


def overlaps_itself(x: Tensor) -> bool:
    """Return whether two elements of `x` share an address, as in `expand`, and in `unfold` with a small step."""
    if x.is_contiguous() or not x.numel() or reasons_for_mathematics(x):  # for tracers, strides are symbols
        return False
    steps = sorted((stride, size) for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1)
    extent, nested = 0, True
    for stride, size in steps:
        nested = nested and stride > extent
        extent += stride * (size - 1)
    if nested or extent + 1 < x.numel() or steps[0][0] == 0:
        return not nested
    offsets = np.zeros(1, dtype=np.int64)  # a rare case: count addresses
    for stride, size in steps:
        offsets = np.add.outer(offsets, stride * np.arange(size)).reshape(-1)
    return bool(np.unique(offsets).size < x.numel())


def share_memory(x: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have an element in common; interleaved heads of one buffer have none."""
    (start, end), (first, last) = _extent(x), _extent(other)
    return start < last and first < end and np.shares_memory(_as_array(x), _as_array(other))


def _extent(x: Tensor) -> tuple[int, int]:
    """Return the address of a tensor's first byte and the address after its last one."""
    start = x.data_ptr()
    if x.is_contiguous():
        return start, start + x.nbytes
    extent = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return start, start + (extent + 1) * x.element_size() if x.numel() else start


def _as_array(x: Tensor) -> npt.NDArray[np.void]:
    """Return an array of the same addresses, on any device, whose numbers must not be read."""
    size = x.element_size()
    strides = tuple([size * stride for stride in x.stride()])
    place = {"version": 3, "data": (x.data_ptr(), False), "shape": x.shape, "strides": strides, "typestr": f"|V{size}"}
    return np.asarray(SimpleNamespace(__array_interface__=place))
