"""Checks of a rotation's arguments: shapes, dtypes, devices, and the memory of tensors.

A public function calls `check_one` or `check_both` once; everything below them assumes arguments that fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Literal, NoReturn

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.compiled import is_compiling, reasons_for_mathematics
from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.values import as_whole, is_number
from ropewalk.rotation.backends.request import AXES, Turn

Layout = Literal["bshd", "bhsd", "thd"]

_ROTATABLE = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16))
_STRIDED = torch.strided
_TABLES = frozenset((torch.float32, torch.float64))


def check_one(
    x: Tensor, cos: Tensor, sin: Tensor, turn: Turn, rotary_dim: int | None, rotary_offset: object,
    inplace: bool, out: Tensor | None, name: str = "x",
) -> Turn:  # fmt: skip
    """Check all arguments of the rotation of a tensor; return `turn` with its offset."""
    _check_options(turn.scale, turn.inverse, rotary_dim, inplace)
    check_tables(x, cos, sin, turn.interleaved, rotary_dim, turn.layout, name)
    if type(rotary_offset) is not int or rotary_offset:
        turn = _placed(turn, x, cos.shape[-1], rotary_offset, name)
    if inplace or out is not None:
        _check_target(x, cos, sin, inplace, out, name)
    return turn


def check_both(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, rotary_dim: int | None,
    rotary_offset: object = 0, inplace: bool = False,
) -> tuple[Turn, Turn]:  # fmt: skip
    """Check all arguments of the rotation of queries and keys; return the `Turn` of each.

    `rotary_offset` may be two numbers, one for queries and one for keys.
    """
    _check_options(turn.scale, turn.inverse, rotary_dim, inplace)
    check_tables(q, cos, sin, turn.interleaved, rotary_dim, turn.layout, "q")
    if not _fits_alike(q, k, cos, turn.layout):
        check_tables(k, cos, sin, turn.interleaved, rotary_dim, turn.layout, "k")
    of_q = of_k = turn
    if type(rotary_offset) is not int or rotary_offset:
        pairs = cos.shape[-1]
        both = rotary_offset if isinstance(rotary_offset, tuple) and len(rotary_offset) == 2 else (rotary_offset,) * 2
        of_q = _placed(turn, q, pairs, both[0], "q")
        of_k = _placed(turn, k, pairs, both[1], "k")
    if inplace:  # both, before either is written
        _check_target(q, cos, sin, True, None, "q")
        _check_target(k, cos, sin, True, None, "k")
        if not (reasons_for_mathematics(q) or reasons_for_mathematics(k)) and share_memory(q, k):
            raise RopeError(
                "rotate_qk: `q` and `k` share memory, which would be rotated twice in place.",
                facts={"q": q, "k": k},
                cure="Rotate new tensors (inplace=False), or only one of them.",
            )
    return of_q, of_k


def _check_options(scale: object, inverse: object, rotary_dim: object, inplace: object) -> None:
    """Check that the factor is a number, a width a whole one, and that flags are True or False."""
    if not is_compiling() and type(scale) is not float and not is_number(scale):
        raise RopeError(
            "rotate: `scale` must be a finite number.", facts={"scale": scale}, cure="Pass rope.attention_factor."
        )
    if type(inverse) is not bool or type(inplace) is not bool:
        check_kind("rotate", bool, "Pass True or False.", inverse=inverse, inplace=inplace)
    if rotary_dim is not None and as_whole(rotary_dim) is None:
        raise RopeError(
            "rotate: `rotary_dim` must be a whole number.", facts={"rotary_dim": rotary_dim}, cure="It is 2 * pairs."
        )


def _fits_alike(q: Tensor, k: Tensor, cos: Tensor, layout: str) -> bool:
    """Return whether every check of `q` covers `k`: they differ only in heads, and the tables have none."""
    if not isinstance(k, Tensor) or k.layout is not _STRIDED or k.is_nested:
        refuse_kind_of_tensor(k, "k")
    of_q, of_k = q.shape, k.shape
    return (
        layout == "bshd"
        and cos.ndim < 4
        and len(of_k) == 4
        and of_k[1] == of_q[1]
        and of_k[0] == of_q[0]
        and of_k[3] == of_q[3]
        and k.dtype == q.dtype
        and ((k.is_cpu and q.is_cpu) or k.device == q.device)
    )


def check_tables(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int | None, layout: str, name: str
) -> None:
    """Check that a tensor and its tables fit each other; errors call the tensor `name`."""
    if not isinstance(x, Tensor) or x.layout is not _STRIDED or x.is_nested:
        refuse_kind_of_tensor(x, name)
    if type(cos) is not Tensor or type(sin) is not Tensor:
        check_kind("rotate", Tensor, "Build both: rope.cos_sin(position_ids).", cos=cos, sin=sin)
    sizes, rows = x.shape, cos.shape
    dims, table_dims = len(sizes), len(rows)
    if (
        (interleaved is not True and interleaved is not False)
        or not isinstance(layout, str)
        or layout not in AXES
        or x.dtype not in _ROTATABLE
        or cos.dtype not in _TABLES
        or sin.dtype != cos.dtype
        or sin.shape != rows
        or not ((x.is_cpu and cos.is_cpu and sin.is_cpu) or x.device == cos.device == sin.device)
    ):
        _refuse_kinds(x, cos, sin, interleaved, layout, name)
    packed = layout == "thd"
    if dims != (3 if packed else 4) or not 2 <= table_dims <= dims:
        _refuse_dims({name: x, "cos": cos}, layout)
    pairs, head_dim = rows[-1], sizes[-1]
    if 2 * pairs != (head_dim if rotary_dim is None else rotary_dim) or 2 * pairs > head_dim:
        _refuse_pairs(x, cos, interleaved, rotary_dim, name)
    token_axis, head_axis = AXES[layout]
    tokens, row_axis = sizes[token_axis], 0 if packed or table_dims == 2 else 1
    if rows[row_axis] != tokens:
        raise RopeError(
            f"rotate: `{name}` has {tokens} tokens but `cos` has {rows[row_axis]} rows.",
            facts={name: x, "cos": cos, "layout": layout},
            cure=other_layout(x, layout, rows[row_axis], name)
            or "Build both from the same positions: rope.cos_sin(position_ids).",
        )
    if (row_axis == 1 and rows[0] != 1 and rows[0] != sizes[0]) or (
        table_dims == dims and rows[-2] != 1 and rows[-2] != sizes[head_axis]
    ):
        raise RopeError(
            f"rotate: the batch or heads of `cos` are neither 1 nor those of `{name}`.",
            facts={name: x, "cos": cos, "layout": layout},
            cure="Tables are [seq, pairs], [batch, seq, pairs] or [batch or 1, seq, heads or 1, pairs].",
        )


def refuse_kind_of_tensor(x: Tensor, name: str) -> NoReturn:
    """Raise the error for a sparse or nested tensor, or for no tensor."""
    if not isinstance(x, Tensor):
        raise RopeError(
            f"rotate: `{name}` must be a tensor.",
            facts={name: x},
            cure="Pass torch.as_tensor(...) of an array or a list.",
        )
    raise RopeError(
        f"rotate: `{name}` must be a dense tensor, neither sparse nor nested.",
        facts={name: x},
        cure='Sparse: x.to_dense(). Nested: x.values() are packed tokens, layout="thd", with the positions '
        "rw.positions.positions_from(x.offsets()).",
    )


def token_count(x: Tensor, name: str, layout: str) -> int:
    """Return the number of tokens of each row of `x`."""
    if not isinstance(x, Tensor) or x.layout is not _STRIDED or x.is_nested:
        refuse_kind_of_tensor(x, name)
    if not isinstance(layout, str) or layout not in AXES:
        _refuse_layout(layout)
    if x.ndim != (3 if layout == "thd" else 4):
        _refuse_dims({name: x}, layout)
    return x.shape[AXES[layout][0]]


def check_rows(
    where: str, xs: Mapping[str, Tensor], position_ids: Tensor, layout: str, axes: int, cure: str | None = None
) -> None:
    """Check that each of `xs` has a token for each position; `cure`: of heads in the place of tokens.

    `check_tables` has found the same fault in tables, which the user has not seen.
    """
    ids = position_ids.shape
    rows = len(ids) - (2 if axes > 1 else 1)  # the dimension of tokens
    counts = [token_count(x, name, layout) for name, x in xs.items()]
    heads = [x.shape[AXES[layout][1]] for x in xs.values()]
    for tokens, (name, x) in zip(counts, xs.items(), strict=True):
        facts = {name: x, "position_ids": position_ids, "layout": layout}
        if layout == "thd" and rows == 1:
            raise RopeError(
                f"{where}: packed tokens need positions without a batch.",
                facts=facts,
                cure="Pass position_ids[0], or rw.positions.positions_from(cu_seqlens).",
            ) from None
        if ids[rows] != tokens:
            alike = len(set(counts)) > 1 and len(set(heads)) == 1  # grouped queries with heads first
            swapped = other_layout(x, layout, heads[0] if alike else ids[rows], name)
            raise RopeError(
                f"{where}: `{name}` has {tokens} tokens but `position_ids` has {ids[rows]}.",
                facts=facts,
                cure=(cure or swapped) if swapped else "Pass one position for each token; None counts from `offset`.",
            ) from None
        if rows == 1 and ids[0] != 1 and ids[0] != x.shape[0]:
            raise RopeError(
                f"{where}: the batch of `position_ids` is neither 1 nor that of `{name}`.",
                facts=facts,
                cure="Give positions as [seq], the same for all rows, or as [batch, seq].",
            ) from None


def other_layout(x: Tensor, layout: str, rows: int, name: str) -> str:
    """Return the cure for an `x` with its tokens where `layout` has the heads; "" if they are not there either."""
    swapped = {"bshd": ("bhsd", "batch, heads, seq"), "bhsd": ("bshd", "batch, seq, heads")}.get(layout)
    if swapped is None or x.shape[AXES[layout][1]] != rows:
        return ""
    return f'If `{name}` is [{swapped[1]}, head_dim], pass layout="{swapped[0]}".'


def _refuse_pairs(x: Tensor, cos: Tensor, interleaved: bool, rotary_dim: int | None, name: str) -> None:
    """Raise the error for a number of pairs that does not fit the head or `rotary_dim`."""
    pairs, rotated = cos.shape[-1], x.shape[-1] if rotary_dim is None else rotary_dim
    cure = "For partial rotation pass the number of rotated features: rotary_dim=2 * pairs."
    if pairs == rotated and pairs % 2 == 0:
        once = f"cos[..., :{pairs // 2}] and sin[..., :{pairs // 2}]"
        cure = f"transformers' tables contain each angle twice: pass {once}, or cos[..., ::2] and sin[..., ::2] if "
        cure += "neighbours are equal."
    raise RopeError(
        f"rotate: `cos` has {pairs} pairs, which is not half of "
        + ("head_dim." if rotary_dim is None else "rotary_dim, or more than the head has."),
        facts={name: x, "cos": cos, "rotary_dim": rotary_dim},
        cure=cure,
    )


def _refuse_dims(facts: dict[str, Tensor], layout: str) -> NoReturn:
    raise RopeError(
        f'rotate: wrong number of dimensions for layout "{layout}".',
        facts=facts,
        cure="bshd: x [batch, seq, heads, head_dim], cos [seq, pairs], [batch, seq, pairs] or [batch, seq, heads, "
        "pairs]; thd: x [tokens, heads, head_dim], cos [tokens, pairs] or [tokens, heads, pairs].",
    )


def _refuse_layout(layout: str) -> NoReturn:
    raise RopeError(
        "rotate: unknown layout.",
        facts={"layout": layout},
        cure='Choose "bshd", "bhsd" or "thd". Any strides are supported, so a transposed view costs nothing: for [seq, '
        'batch, heads, head_dim] pass x.transpose(0, 1) as "bshd".',
    )


def _refuse_kinds(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, layout: str, name: str) -> None:
    """Raise the error for an unknown layout or pairing, or for dtypes, shapes and devices that do not fit."""
    if not isinstance(layout, str) or layout not in AXES:
        _refuse_layout(layout)
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
        f"rotate: `cos` and `sin` must have the same shape, and the device of `{name}`.",
        facts={name: x, "cos": cos, "sin": sin},
        cure="Build both from position_ids on the device of the queries.",
    )


def _placed(turn: Turn, x: Tensor, pairs: int, rotary_offset: object, name: str) -> Turn:
    """Return `turn` with the offset, if it is inside the head."""
    first = as_whole(rotary_offset)
    if first is None or not 0 <= first <= x.shape[-1] - 2 * pairs:
        raise RopeError(
            "rotate: `rotary_offset` must be a feature of the head, at least 2 * pairs before its end.",
            facts={name: x, "pairs": pairs, "rotary_offset": rotary_offset},
            cure="To rotate the last features pass rotary_offset=head_dim - rotary_dim.",
        )
    return turn._replace(rotary_offset=first)


def _check_target(x: Tensor, cos: Tensor, sin: Tensor, inplace: bool, out: Tensor | None, name: str) -> None:
    """Check that the result can be written into `x` or `out`, and that gradients stay right."""
    if inplace and out is not None:
        raise RopeError("rotate: `inplace` and `out` are mutually exclusive.", cure="Pass one of them.")
    if out is not None:
        check_kind("rotate", Tensor, "Pass torch.empty_like(x).", out=out)
    target = x if out is None else out
    if torch.is_grad_enabled() and (x.requires_grad or cos.requires_grad or sin.requires_grad or target.requires_grad):
        if out is not None:
            raise RopeError(
                "rotate: `out` does not support gradients.",
                facts={"x": x, "out": out},
                cure="Omit `out` while training, or rotate under torch.no_grad().",
            )
        _check_recorded(x, name)
    if out is not None and (out.shape != x.shape or out.dtype != x.dtype or out.device != x.device):
        raise RopeError(
            "rotate: `out` must have the shape, dtype and device of `x`.",
            facts={"x": x, "out": out},
            cure="Pass torch.empty_like(x).",
        )
    if overlaps_itself(target):
        raise RopeError(
            "rotate: an expanded tensor, or one that overlaps itself, cannot be written: its elements share memory.",
            facts={name if out is None else "out": target, "strides": target.stride()},
            cure="Rotate a new tensor, or pass target.contiguous().",
        )


def _check_recorded(x: Tensor, name: str) -> None:
    """Check that autograd can record a change of `x`; autograd would raise only after the kernel has written."""
    view = not torch.compiler.is_compiling() and type(x) is Tensor and x._is_view()
    leaf = x._base if view and x.requires_grad else x
    if leaf is not None and leaf.is_leaf and leaf.requires_grad:
        raise RopeError(
            "rotate: a leaf that requires grad cannot be rotated in place: its gradient would be lost.",
            facts={name: x},
            cure="Rotate a new tensor (inplace=False), or rotate under torch.no_grad().",
        )
    made = torch._C._autograd._get_creation_meta(x) if view else torch._C._autograd.CreationMeta.DEFAULT
    if made != torch._C._autograd.CreationMeta.DEFAULT:
        raise RopeError(
            "rotate: autograd cannot record a change of a view made by unbind, split, chunk or under no_grad.",
            facts={name: x, "made by": made.name},
            cure="Make it by slicing (qkv[:, :, :heads]) with gradients on, or rotate a new tensor.",
        )


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
