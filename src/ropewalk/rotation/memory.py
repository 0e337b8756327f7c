"""Where the elements of a tensor lie in memory: what a kernel may write in any order, and what must not be written."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ropewalk.eager import reasons_for_mathematics
from ropewalk.errors import RopeError


def each_has_its_place(target: Tensor) -> bool:
    """Whether no two elements of `target` lie at one address, so that a kernel may write them in any order."""
    if target.is_contiguous():
        return True
    reach = 0
    for stride, size in sorted(zip(target.stride(), target.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def overlaps_itself(target: Tensor) -> bool:
    """Whether two elements of `target` lie at one address, as in `expand`, and in `unfold` with a small step."""
    if target.is_contiguous() or not target.numel():
        return False
    steps = [(stride, size) for stride, size in zip(target.stride(), target.shape, strict=True) if size > 1]
    reach = sum(stride * (size - 1) for stride, size in steps)
    if reach + 1 < target.numel() or any(stride == 0 for stride, _ in steps):
        return True
    if reasons_for_mathematics(target) or each_has_its_place(target):
        return False  # tracers know strides as symbols only
    offsets = np.zeros(1, dtype=np.int64)  # neither nested nor obviously too small: rare enough to count
    for stride, size in steps:
        offsets = np.add.outer(offsets, stride * np.arange(size)).reshape(-1)
    return bool(np.unique(offsets).size < target.numel())


def extent(x: Tensor) -> tuple[int, int]:
    """Return the address of a tensor's first byte and the address after its last one."""
    start = x.data_ptr()
    if x.is_contiguous():
        return start, start + x.nbytes
    reach = sum(stride * (size - 1) for stride, size in zip(x.stride(), x.shape, strict=True))
    return start, start + (reach + 1) * x.element_size() if x.numel() else start


def extents_meet(x: Tensor, other: Tensor) -> bool:
    """Return whether the memory from the first to the last element of each tensor intersects."""
    (start, end), (first, last) = extent(x), extent(other)
    return start < last and first < end


def overlap(x: Tensor, out: Tensor) -> bool:
    """Return whether writing `out` could destroy elements of `x` that are still to be read."""
    return extents_meet(x, out) and not (x.data_ptr() == out.data_ptr() and x.stride() == out.stride())


def are_apart(q: Tensor, k: Tensor) -> bool:
    """Return whether two tensors of the same rank share no element; interleaved heads of one buffer are apart."""
    if not q.numel() or not k.numel() or not extents_meet(q, k):
        return True
    gap = k.data_ptr() - q.data_ptr()
    if gap < 0:
        q, k, gap = k, q, -gap
    return q.element_size() == k.element_size() and _interleave(q, k, gap // q.element_size())


def check_apart(q: Tensor, k: Tensor) -> None:
    """Raise `RopeError` if queries and keys share elements, which would be rotated twice in place."""
    if not are_apart(q, k):
        raise RopeError(
            "rotate_qk: `q` and `k` share memory, which would be rotated twice in place.",
            facts={"q": q, "k": k},
            cure="Rotate new tensors (inplace=False), or only one of them.",
        )


def _interleave(q: Tensor, k: Tensor, gap: int) -> bool:
    """Return whether memory consists of repeated cells with heads of `q` first and heads of `k` from `gap` on."""
    of_q = of_k = 0  # reach of each inside a cell
    steps = []
    for q_stride, q_size, k_stride, k_size in zip(q.stride(), q.shape, k.stride(), k.shape, strict=True):
        stride = q_stride if q_size > 1 else k_stride
        if q_size > 1 and k_size > 1 and q_stride != k_stride:
            return False
        if stride <= gap:
            of_q, of_k = of_q + stride * (q_size - 1), of_k + stride * (k_size - 1)
        else:
            steps.append((stride, max(q_size, k_size)))
    reach = gap + of_k
    for stride, size in sorted(steps):
        if size > 1 and stride <= reach:
            return False
        reach += stride * (size - 1)
    return of_q < gap
