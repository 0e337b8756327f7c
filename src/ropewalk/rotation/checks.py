"""Checks of a rotation's arguments: shapes, dtypes, devices, and where a result may be written.

A public function calls `check` once; everything below it assumes arguments that fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from ropewalk.compiled import is_compiling, overlaps_itself, reasons_for_mathematics, share_memory
from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.values import as_whole, is_number
from ropewalk.rotation.backends.request import AXES, Turn

Layout = Literal["bshd", "bhsd", "thd"]

_ROTATABLE = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16))
_STRIDED = torch.strided
_TABLES = frozenset((torch.float32, torch.float64))


def check(
    xs: Mapping[str, Tensor], cos: Tensor, sin: Tensor, turn: Turn, rotary_dim: int | None,
    rotary_offset: object, inplace: bool = False, out: Tensor | None = None,
) -> list[Turn]:  # fmt: skip
    """Check all arguments of the rotation of a tensor, or of queries and keys, by name; return the `Turn` of each.

    `rotary_offset` may be two numbers, one for queries and one for keys.
    """
    interleaved, layout = turn.interleaved, turn.layout
    scale: Any = turn.scale
    inverse: Any = turn.inverse
    if type(scale) is not float and not is_compiling() and not is_number(scale):
        raise RopeError(
            "rotate: `scale` must be a finite number.", facts={"scale": scale}, cure="Pass rope.attention_factor."
        )
    if type(inverse) is not bool or type(inplace) is not bool:
        check_kind("rotate", bool, "Pass True or False.", inverse=inverse, inplace=inplace)
    if rotary_dim is not None and type(rotary_dim) is not int and as_whole(rotary_dim) is None:
        raise RopeError(
            "rotate: `rotary_dim` must be a whole number.", facts={"rotary_dim": rotary_dim}, cure="It is 2 * pairs."
        )
    check_tables(xs, cos, sin, interleaved, rotary_dim, layout)
    turns = [turn] * len(xs)
    if type(rotary_offset) is not int or rotary_offset:
        two = len(xs) == 2 and isinstance(rotary_offset, tuple) and len(rotary_offset) == 2
        offsets: Any = rotary_offset if two else (rotary_offset,) * len(xs)
        turns = [_placed(turn, x, cos.shape[-1], *one) for x, *one in zip(xs.values(), offsets, xs, strict=True)]
    if inplace or out is not None:  # all, before any is written
        for name, x in xs.items():
            _check_target(x, cos, sin, inplace, out, name)
        if len(xs) == 2 and not any(map(reasons_for_mathematics, xs.values())) and share_memory(*xs.values()):
            raise RopeError(
                "rotate_qk: `q` and `k` share memory, which would be rotated twice in place.",
                facts=xs,
                cure="Rotate new tensors (inplace=False), or only one of them.",
            )
    return turns


def check_tables(
    xs: Mapping[str, Tensor], cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int | None, layout: str
) -> None:
    """Check that tensors, by name, and their tables fit each other."""
    if type(cos) is not Tensor or type(sin) is not Tensor:
        check_kind("rotate", Tensor, "Build both: rope.cos_sin(position_ids).", cos=cos, sin=sin)
    if not isinstance(layout, str) or layout not in AXES:
        _refuse_layout(layout)
    if interleaved is not True and interleaved is not False:
        raise RopeError(
            "rotate: `interleaved` must be True or False.",
            facts={"interleaved": interleaved},
            cure="True pairs (0,1), (2,3), ...; False pairs (i, i + rotary_dim/2).",
        )
    if cos.dtype not in _TABLES or sin.dtype != cos.dtype:
        raise RopeError(
            "rotate: `cos` and `sin` must both be float32 or both float64: a 16-bit table loses the angle.",
            facts={"cos": cos, "sin": sin},
            cure="Build them with rope.cos_sin(position_ids), which is float32 whatever the model's dtype.",
        )
    rows, packed, on_cpu = cos.shape, layout == "thd", cos.is_cpu and sin.is_cpu
    table_dims, row_axis = len(rows), 0 if packed or len(rows) == 2 else 1
    token_axis, head_axis = AXES[layout]
    for name, x in xs.items():
        if not isinstance(x, Tensor) or x.layout is not _STRIDED or x.is_nested:
            refuse_kind_of_tensor(x, name)
        if x.dtype not in _ROTATABLE:
            raise RopeError(
                f"rotate: `{name}` must be float64, float32, bfloat16 or float16.",
                facts={name: x},
                cure="Convert it first; features are real numbers.",
            )
        if sin.shape != rows or not ((on_cpu and x.is_cpu) or x.device == cos.device == sin.device):
            raise RopeError(
                f"rotate: `cos` and `sin` must have the same shape, and the device of `{name}`.",
                facts={name: x, "cos": cos, "sin": sin},
                cure="Build both from position_ids on the device of the queries.",
            )
        sizes = x.shape
        dims = len(sizes)
        if dims != (3 if packed else 4) or not 2 <= table_dims <= dims:
            _refuse_dims({name: x, "cos": cos}, layout)
        pairs, head_dim = rows[-1], sizes[-1]
        if 2 * pairs != (head_dim if rotary_dim is None else rotary_dim) or 2 * pairs > head_dim:
            _refuse_pairs(x, cos, rotary_dim, name)
        tokens = sizes[token_axis]
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


def _refuse_pairs(x: Tensor, cos: Tensor, rotary_dim: int | None, name: str) -> None:
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
    leaf: Any = x._base if view and x.requires_grad else x
    if leaf.is_leaf and leaf.requires_grad:
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
