"""Check the arguments of a rotation: shapes, dtypes and devices, and where tensors lie in memory."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ropewalk.backends.request import Turn
from ropewalk.dispatch import reasons_for_mathematics
from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole

Layout = Literal["bshd", "bhsd", "thd"]

_ROTATABLE = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16))
_TABLES = frozenset((torch.float32, torch.float64))
_AXES = {"bshd": (1, 2), "bhsd": (2, 1), "thd": (0, 1)}  # where tokens and heads are


def check_tables(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int | None, layout: str, name: str
) -> None:
    """Check everything that must hold between a tensor and its tables, cheapest first; errors call it `name`."""
    sizes, rows = x.shape, cos.shape
    dims, table_dims = len(sizes), len(rows)
    if (
        (interleaved is not True and interleaved is not False)
        or layout not in _AXES
        or x.dtype not in _ROTATABLE
        or cos.dtype not in _TABLES
        or sin.dtype != cos.dtype
        or sin.shape != rows
        or not (x.device == cos.device == sin.device)
    ):
        _refuse_kinds(x, cos, sin, interleaved, layout, name)
    packed = layout == "thd"
    if dims != (3 if packed else 4) or not 2 <= table_dims <= dims:
        raise RopeError(
            f'rotate: wrong number of dimensions for layout "{layout}".',
            facts={name: x, "cos": cos},
            cure="bshd: x [batch, seq, heads, head_dim], cos [seq, pairs], [batch, seq, pairs] or [batch, seq, heads, "
            "pairs]; thd: x [tokens, heads, head_dim], cos [tokens, pairs] or [tokens, heads, pairs].",
        )
    pairs, head_dim = rows[-1], sizes[-1]
    if 2 * pairs != (head_dim if rotary_dim is None else rotary_dim) or 2 * pairs > head_dim:
        raise RopeError(
            f"rotate: `cos` has {pairs} pairs, which is not half of "
            + ("head_dim." if rotary_dim is None else "rotary_dim, or is more than the head holds."),
            facts={name: x, "cos": cos, "rotary_dim": rotary_dim},
            cure="For partial rotation name the features that turn: rotary_dim=2 * pairs.",
        )
    token_axis, head_axis = _AXES[layout]
    tokens, row_axis = sizes[token_axis], 0 if packed or table_dims == 2 else 1
    if rows[row_axis] != tokens:
        raise RopeError(
            f"rotate: `{name}` has {tokens} tokens but `cos` has {rows[row_axis]} rows.",
            facts={name: x, "cos": cos, "layout": layout},
            cure="Build both from the same positions: rope.cos_sin(position_ids).",
        )
    if (row_axis == 1 and rows[0] != 1 and rows[0] != sizes[0]) or (
        table_dims == dims and rows[-2] != 1 and rows[-2] != sizes[head_axis]
    ):
        raise RopeError(
            f"rotate: the batch or heads of `cos` are neither 1 nor those of `{name}`.",
            facts={name: x, "cos": cos, "layout": layout},
            cure="Tables are [seq, pairs], [batch, seq, pairs] or [batch or 1, seq, heads or 1, pairs].",
        )


def _refuse_kinds(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, layout: str, name: str) -> None:
    """Raise the error for an unknown layout or pairing, or for dtypes, shapes and devices that do not fit."""
    if layout not in _AXES:
        raise RopeError("rotate: unknown layout.", facts={"layout": layout}, cure='Choose "bshd", "bhsd" or "thd".')
    if not isinstance(interleaved, bool):
        raise RopeError(
            "rotate: `interleaved` must be True or False.",
            facts={"interleaved": interleaved},
            cure="True pairs (0,1), (2,3), ...; False pairs (i, i + rotary_dim/2).",
        )
    if x.dtype not in _ROTATABLE:
        raise RopeError(
            f"rotate: `{name}` must be float64, float32, bfloat16 or float16.",
            facts={name: x},
            cure="Convert it first; features are real numbers.",
        )
    if cos.dtype not in _TABLES or cos.dtype != sin.dtype:
        raise RopeError(
            "rotate: `cos` and `sin` must both be float32 or both float64: a 16-bit table loses the angle.",
            facts={"cos": cos, "sin": sin},
            cure="Build them with rope.cos_sin(position_ids), which is float32 whatever the model's dtype.",
        )
    raise RopeError(
        f"rotate: `cos` and `sin` must have one shape, and the device of `{name}`.",
        facts={name: x, "cos": cos, "sin": sin},
        cure="Build both from position_ids on the device of the queries.",
    )


def placed(
    turn: Turn, x: Tensor, pairs: int, interleaved_out: bool | None, rotary_offset: object, blocks: object, name: str
) -> Turn:
    """Return `turn` with another pairing of the result, a window inside the head, or blocks, if they fit."""
    if interleaved_out is not None and not isinstance(interleaved_out, bool):
        raise RopeError(
            "rotate: `interleaved_out` must be True or False, or None.",
            facts={"interleaved_out": interleaved_out},
            cure="None leaves pairs where they are.",
        )
    first = as_whole(rotary_offset)
    if first is None or not 0 <= first <= x.shape[-1] - 2 * pairs:
        raise RopeError(
            "rotate: `rotary_offset` must be a feature of the head from which 2 * pairs fit in it.",
            facts={name: x, "pairs": pairs, "rotary_offset": rotary_offset},
            cure="The last features turn with rotary_offset=head_dim - rotary_dim.",
        )
    counts = [as_whole(count) for count in blocks] if isinstance(blocks, (tuple, list)) else [None]
    whole = [count for count in counts if count is not None and count > 0]
    if len(whole) != len(counts) or (whole and sum(whole) != pairs):
        raise RopeError(
            "rotate: `blocks` counts the pairs of each block of features, and sums to those of `cos`.",
            facts={"blocks": blocks, "pairs": pairs},
            cure="For example blocks=(16, 16) for two axes of 16 pairs.",
        )
    if whole and (turn.interleaved or interleaved_out):
        raise RopeError(
            "rotate: `blocks` is for half-split pairs: neighbours lie in their block anyway.",
            facts={"interleaved": turn.interleaved, "interleaved_out": interleaved_out, "blocks": blocks},
            cure="Leave `blocks` out.",
        )
    exchanged = None if interleaved_out == turn.interleaved else interleaved_out
    return turn._replace(interleaved_out=exchanged, first=first, blocks=tuple(whole) if len(whole) > 1 else ())


def placed_both(
    turn: Turn, q: Tensor, k: Tensor, pairs: int, interleaved_out: bool | None, rotary_offset: object, blocks: object
) -> tuple[Turn, Turn]:
    """Return `placed` of queries and of keys, which may have different offsets."""
    both = rotary_offset if isinstance(rotary_offset, tuple) and len(rotary_offset) == 2 else (rotary_offset,) * 2
    return (
        placed(turn, q, pairs, interleaved_out, both[0], blocks, "q"),
        placed(turn, k, pairs, interleaved_out, both[1], blocks, "k"),
    )


def check_target(x: Tensor, cos: Tensor, sin: Tensor, inplace: bool, out: Tensor | None) -> None:
    """Check that the result of `inplace` or `out` can be written and autograd stays right."""
    if inplace and out is not None:
        raise RopeError("rotate: `inplace` and `out` exclude each other.", cure="Pass one of them.")
    target = x if inplace else out
    if target is None:
        return
    if torch.is_grad_enabled() and (x.requires_grad or cos.requires_grad or sin.requires_grad or target.requires_grad):
        if out is not None:
            raise RopeError(
                "rotate: `out` takes no gradients.",
                facts={"x": x, "out": out},
                cure="Leave `out` out while training, or work under torch.no_grad().",
            )
        _check_recorded(x)
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype or out.device != x.device):
        raise RopeError(
            "rotate: `out` must have the shape, dtype and device of `x`.",
            facts={"x": x, "out": out},
            cure="torch.empty_like(x)",
        )
    if overlaps_itself(target):
        raise RopeError(
            "rotate: an expanded tensor, or one that overlaps itself, holds one value twice and cannot be written.",
            facts={"target": target, "strides": target.stride()},
            cure="Rotate a new tensor, or pass target.contiguous().",
        )


def _check_recorded(x: Tensor) -> None:
    """Check that autograd can record a change of `x`: it would raise only after the kernel has written."""
    view = not torch.compiler.is_compiling() and type(x) is Tensor and x._is_view()
    leaf = x._base if view and x.requires_grad else x
    if leaf is not None and leaf.is_leaf and leaf.requires_grad:
        raise RopeError(
            "rotate: a leaf that requires grad cannot be rotated in place: its gradient would be lost.",
            facts={"x": x},
            cure="Rotate a new tensor (inplace=False), or work under torch.no_grad().",
        )
    made = torch._C._autograd._get_creation_meta(x) if view else torch._C._autograd.CreationMeta.DEFAULT
    if made != torch._C._autograd.CreationMeta.DEFAULT:
        raise RopeError(
            "rotate: autograd cannot follow a change of this view: unbind, split, chunk, or no_grad made it.",
            facts={"x": x, "made by": made.name},
            cure="Make it by slicing (qkv[:, :, :heads]) with gradients on, or rotate a new tensor.",
        )


def each_has_its_place(target: Tensor) -> bool:
    """Return whether all elements of `target` have different addresses, so that a kernel may write in any order."""
    if target.is_contiguous():
        return True
    reach = 0
    for stride, size in sorted(zip(target.stride(), target.shape, strict=True)):
        if size > 1 and stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def overlaps_itself(target: Tensor) -> bool:
    """Return whether two elements of `target` share an address, as in `expand`, and in `unfold` with a small step."""
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
