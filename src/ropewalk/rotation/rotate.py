"""`rotate`: the one rotation operation, and `rotate_qk`, the same for queries and keys together."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from ropewalk.backends import choose
from ropewalk.errors import RopeError
from ropewalk.shapes import Float

Layout = Literal["bshd", "bhsd", "thd"]

_ROTATABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def rotate(
    x: Float[Tensor, "*batch_seq_heads head_dim"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    *,
    interleaved: bool,
    rotary_dim: int | None = None,
    scale: float = 1.0,
    layout: Layout = "bshd",
    inverse: bool = False,
    inplace: bool = False,
    out: Tensor | None = None,
    backend: str | None = None,
) -> Float[Tensor, "*batch_seq_heads head_dim"]:
    """Turn each feature pair of `x` by its token's angle.

    - `x`: queries or keys, float64, float32, bfloat16 or float16; `[batch, seq, heads, head_dim]`, or as `layout` says:
      `"bhsd"` `[batch, heads, seq, head_dim]`, `"thd"` `[tokens, heads, head_dim]`. Any strides. Not modified.
    - `cos`, `sin`: float32 or float64, in every layout `[seq, pairs]`, `[batch, seq, pairs]`, or
      `[batch or 1, seq, heads or 1, pairs]`; for thd `[tokens, pairs]` or `[tokens, heads or 1, pairs]`.
    - `interleaved`: True pairs features (0,1), (2,3), ...; False pairs (i, i + rotary_dim/2).
    - `rotary_dim`: 2 * pairs, to be named where it is less than head_dim; the features after it pass through.
    - `scale`: multiplies the turned features in the same pass (an attention factor).
    - `inverse`: turn by minus the angle: the transpose. It keeps `scale`; to undo one, pass its reciprocal.
    - `inplace`: write the result into `x` and return it. `out`: write it into that tensor.
    - `backend`: a name, or None to choose; see `explain_backends`.

    Returns the same shape, dtype and device as `x`. Raises `RopeError` if shapes, dtypes or devices do not fit, for
    `inplace` on a leaf that requires grad, and for a backend that cannot run.
    Numerics: float32 inside (float64 for float64 `x`), one rounding. Differentiable, twice, in `x`, `cos` and `sin`.
    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2, eq. 34.

    >>> x = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    >>> quarter = torch.zeros(1, 1), torch.ones(1, 1)
    >>> rotate(x, *quarter, interleaved=True).flatten().tolist()
    [0.0, 1.0]
    """
    cos_rows, sin_rows = _rows_for(x, cos, sin, interleaved, rotary_dim, layout, "x")
    _check_target(x, cos, inplace, out)
    module = choose(x, backend)
    source = x.clone() if inplace and torch.is_grad_enabled() and cos.requires_grad else x
    turned: Tensor = module.rotate(source, cos_rows, sin_rows, interleaved=interleaved, scale=scale, inverse=inverse)
    target = x if inplace else out
    return turned if target is None else target.copy_(turned)


def rotate_qk(
    q: Float[Tensor, "*batch_seq_heads head_dim"],
    k: Float[Tensor, "*batch_seq_kv_heads head_dim"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    *,
    interleaved: bool,
    rotary_dim: int | None = None,
    scale: float = 1.0,
    layout: Layout = "bshd",
    inverse: bool = False,
    inplace: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Turn queries and keys by the same tables; keys may have fewer heads. Arguments, errors and numerics: `rotate`.

    >>> q, k = torch.randn(1, 3, 8, 4), torch.randn(1, 3, 2, 4)
    >>> cos, sin = torch.ones(3, 2), torch.zeros(3, 2)
    >>> q2, k2 = rotate_qk(q, k, cos, sin, interleaved=False)
    >>> bool((q2 == q).all() and (k2 == k).all())
    True
    """
    if inplace and torch.is_grad_enabled():
        _check_target(k, cos, True, None)  # before q is touched
    _rows_for(k, cos, sin, interleaved, rotary_dim, layout, "k")
    turned = [
        rotate(
            x, cos, sin, interleaved=interleaved, rotary_dim=rotary_dim, scale=scale, layout=layout,
            inverse=inverse, inplace=inplace, backend=backend,
        )
        for x in (q, k)
    ]  # fmt: skip
    return turned[0], turned[1]


def _rows_for(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, rotary_dim: int | None, layout: str, name: str
) -> tuple[Tensor, Tensor]:
    """cos and sin shaped to broadcast against `x`, once everything about them has been checked."""
    _check_kinds(x, cos, sin, interleaved, layout, name)
    packed = layout == "thd"
    if x.ndim != (3 if packed else 4) or cos.ndim not in ((2, 3) if packed else (2, 3, 4)):
        raise RopeError(
            f'rotate: wrong number of dimensions for layout "{layout}".',
            facts={name: x, "cos": cos},
            cure="bshd: x [batch, seq, heads, head_dim], cos [seq, pairs], [batch, seq, pairs] or [batch, seq, heads, "
            "pairs]; thd: x [tokens, heads, head_dim], cos [tokens, pairs] or [tokens, heads, pairs].",
        )
    pairs, head_dim = cos.shape[-1], x.shape[-1]
    if 2 * pairs != (head_dim if rotary_dim is None else rotary_dim) or 2 * pairs > head_dim:
        raise RopeError(
            f"rotate: `cos` has {pairs} pairs, which is not half of "
            + ("head_dim." if rotary_dim is None else "rotary_dim, or is more than the head holds."),
            facts={name: x, "cos": cos, "rotary_dim": rotary_dim},
            cure="For partial rotation name the features that turn: rotary_dim=2 * pairs.",
        )
    if packed:
        tokens, heads, rows = x.shape[0], x.shape[1], cos.shape[0]
        fits = cos.ndim == 2 or cos.shape[1] in (1, heads)
        shaped = (cos[:, None], sin[:, None]) if cos.ndim == 2 else (cos, sin)
    else:
        batch, tokens, heads = x.shape[0], x.shape[1], x.shape[2]
        if layout == "bhsd":
            tokens, heads = heads, tokens
        rows = cos.shape[0] if cos.ndim == 2 else cos.shape[1]
        fits = cos.ndim == 2 or cos.shape[0] in (1, batch)
        fits = fits and (cos.ndim < 4 or cos.shape[2] in (1, heads))
        if cos.ndim == 4:
            shaped = (cos, sin) if layout == "bshd" else (cos.transpose(1, 2), sin.transpose(1, 2))
        else:
            at = -2 if layout == "bshd" else -3
            shaped = (cos.unsqueeze(at), sin.unsqueeze(at)) if cos.ndim == 3 or at == -2 else (cos, sin)
    if rows != tokens:
        raise RopeError(
            f"rotate: `{name}` has {tokens} tokens but `cos` has {rows} rows.",
            facts={name: x, "cos": cos, "layout": layout},
            cure="Build both from the same positions: rope.cos_sin(position_ids).",
        )
    if not fits:
        raise RopeError(
            f"rotate: the batch or heads of `cos` are neither 1 nor those of `{name}`.",
            facts={name: x, "cos": cos, "layout": layout},
            cure="Tables are [seq, pairs], [batch, seq, pairs] or [batch or 1, seq, heads or 1, pairs].",
        )
    return shaped


def _check_kinds(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, layout: str, name: str) -> None:
    if layout not in get_args(Layout):
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
    if cos.dtype not in (torch.float32, torch.float64) or cos.dtype != sin.dtype:
        raise RopeError(
            "rotate: `cos` and `sin` must both be float32 or both float64: a 16-bit table loses the angle.",
            facts={"cos": cos, "sin": sin},
            cure="Build them with rope.cos_sin(position_ids), which is float32 whatever the model's dtype.",
        )
    if cos.shape != sin.shape or cos.device != sin.device or x.device != cos.device:
        raise RopeError(
            f"rotate: `cos` and `sin` must have one shape, and the device of `{name}`.",
            facts={name: x, "cos": cos, "sin": sin},
            cure="Build both from position_ids on the device of the queries.",
        )


def _check_target(x: Tensor, cos: Tensor, inplace: bool, out: Tensor | None) -> None:
    """In-place and `out` only where the result can be written and autograd stays right."""
    if inplace and out is not None:
        raise RopeError("rotate: `inplace` and `out` exclude each other.", cure="Pass one of them.")
    target = x if inplace else out
    if target is None:
        return
    if torch.is_grad_enabled():
        if inplace and x.requires_grad and x.is_leaf:
            raise RopeError(
                "rotate: a leaf that requires grad cannot be rotated in place: its gradient would be lost.",
                facts={"x": x},
                cure="Rotate a new tensor (inplace=False), or work under torch.no_grad().",
            )
        if out is not None and (out.requires_grad or x.requires_grad or cos.requires_grad):
            raise RopeError(
                "rotate: `out` takes no gradients.",
                facts={"x": x, "out": out},
                cure="Leave `out` out while training, or work under torch.no_grad().",
            )
    if target.shape != x.shape or target.dtype != x.dtype or target.device != x.device:
        raise RopeError(
            "rotate: `out` must have the shape, dtype and device of `x`.",
            facts={"x": x, "out": out},
            cure="torch.empty_like(x)",
        )
    if any(stride == 0 and size > 1 for stride, size in zip(target.stride(), target.shape, strict=True)):
        raise RopeError(
            "rotate: an expanded tensor holds one value in many places and cannot be written.",
            facts={"target": target, "strides": target.stride()},
            cure="Rotate a new tensor, or pass target.contiguous().",
        )
