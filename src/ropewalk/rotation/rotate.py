"""`rotate`: the one rotation operation, and `rotate_qk`, the same for queries and keys together."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.backends import choose
from ropewalk.backends.autograd import note_written, rotated
from ropewalk.backends.request import Backend, Turn
from ropewalk.dispatch import reasons_for_mathematics
from ropewalk.rotation.checks import (
    Layout,
    check_apart,
    check_tables,
    check_target,
    each_has_its_place,
    overlap,
    placed,
    placed_both,
)
from ropewalk.shapes import Float


def rotate(
    x: Float[Tensor, "*batch_seq_heads head_dim"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    *,
    interleaved: bool,
    interleaved_out: bool | None = None,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    blocks: tuple[int, ...] = (),
    scale: float = 1.0,
    layout: Layout = "bshd",
    inverse: bool = False,
    inplace: bool = False,
    out: Tensor | None = None,
    backend: str | None = None,
) -> Float[Tensor, "*batch_seq_heads head_dim"]:
    """Rotate each feature pair of `x` by its token's angle.

    - `x`: queries or keys, float64, float32, bfloat16 or float16; `[batch, seq, heads, head_dim]`, or as `layout` says:
      `"bhsd"` `[batch, heads, seq, head_dim]`, `"thd"` `[tokens, heads, head_dim]`. Any strides. Not modified.
    - `cos`, `sin`: float32 or float64, in every layout `[seq, pairs]`, `[batch, seq, pairs]`, or
      `[batch or 1, seq, heads or 1, pairs]`; for thd `[tokens, pairs]` or `[tokens, heads or 1, pairs]`.
    - `interleaved`: True pairs features (0,1), (2,3), ...; False pairs (i, i + rotary_dim/2).
    - `interleaved_out`: how pairs lie in the result, None as in `x`: True and False in one pass is DeepSeek's rotation.
    - `rotary_dim`: 2 * pairs, to be named where it is less than head_dim; the other features pass through.
    - `rotary_offset`: the first feature that turns, as in multi-head latent attention, whose heads turn at their end:
      head_dim - rotary_dim.
    - `blocks`: with `interleaved=False`, the pairs of each block of features that is half-split by itself, in order:
      `config.blocks` of a `RopeConfig` with `axis_blocks`.
    - `scale`: multiplies the turned features in the same pass (an attention factor).
    - `inverse`: turn by minus the angle: the transpose. It keeps `scale`; to undo one, pass its reciprocal, and
      exchange `interleaved` with `interleaved_out`.
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
    check_tables(x, cos, sin, interleaved, rotary_dim, layout, "x")
    turn = Turn(interleaved, scale, inverse, layout)
    if rotary_offset or interleaved_out is not None or blocks:
        turn = placed(turn, x, cos.shape[-1], interleaved_out, rotary_offset, blocks, "x")
    return turn_one(x, cos, sin, turn, inplace, out, backend)


def rotate_qk(
    q: Float[Tensor, "*batch_seq_heads head_dim"],
    k: Float[Tensor, "*batch_seq_kv_heads key_dim"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    *,
    interleaved: bool,
    interleaved_out: bool | None = None,
    rotary_dim: int | None = None,
    rotary_offset: int | tuple[int, int] = 0,
    blocks: tuple[int, ...] = (),
    scale: float = 1.0,
    layout: Layout = "bshd",
    inverse: bool = False,
    inplace: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by the same tables; keys may have fewer heads. Arguments, errors and numerics: `rotate`.

    `rotary_offset` may be two numbers, the queries' and the keys': in multi-head latent attention queries turn at the
    end of their head, and keys are that part alone, in heads of rotary_dim features.

    >>> q, k = torch.randn(1, 3, 8, 4), torch.randn(1, 3, 2, 4)
    >>> cos, sin = torch.ones(3, 2), torch.zeros(3, 2)
    >>> q2, k2 = rotate_qk(q, k, cos, sin, interleaved=False)
    >>> bool((q2 == q).all() and (k2 == k).all())
    True
    """
    check_tables(q, cos, sin, interleaved, rotary_dim, layout, "q")
    if not _fits_alike(q, k, cos, layout):
        check_tables(k, cos, sin, interleaved, rotary_dim, layout, "k")
    turn = Turn(interleaved, scale, inverse, layout)
    if not rotary_offset and interleaved_out is None and not blocks:
        return turn_both(q, k, cos, sin, turn, inplace, backend)
    of_q, of_k = placed_both(turn, q, k, cos.shape[-1], interleaved_out, rotary_offset, blocks)
    return turn_both(q, k, cos, sin, of_q, inplace, backend, of_k)


def _fits_alike(q: Tensor, k: Tensor, cos: Tensor, layout: str) -> bool:
    """Return whether all checks of `q` hold for `k`: only their heads differ, and tables have none."""
    of_q, of_k = q.shape, k.shape
    return (
        layout == "bshd"
        and cos.ndim < 4
        and len(of_k) == 4
        and of_k[1] == of_q[1]
        and of_k[0] == of_q[0]
        and of_k[3] == of_q[3]
        and k.dtype == q.dtype
        and k.device == q.device
    )


def turn_one(
    x: Tensor, cos: Tensor, sin: Tensor, turn: Turn, inplace: bool, out: Tensor | None, backend: str | None
) -> Tensor:
    """Rotate one tensor by arguments that fit; `turn` may require phases instead of tables."""
    if not inplace and out is None:
        return rotated(choose(x, backend, cos, sin), [x], cos, sin, turn)[0]
    check_target(x, cos, sin, inplace, out)
    return _rotate_into(choose(x, backend, cos, sin), x, cos, sin, turn, out)


def turn_both(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    turn: Turn,
    inplace: bool,
    backend: str | None,
    turn_k: Turn | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by arguments that fit; `turn` may require phases instead of tables.

    `turn_k` is the keys' own turn, if it differs.
    """
    of_k = turn if turn_k is None else turn_k
    module = choose(q, backend, k, cos, sin)
    if inplace:
        check_target(q, cos, sin, True, None)
        check_target(k, cos, sin, True, None)  # before q is written
        if module.kernels or not (reasons_for_mathematics(q) or reasons_for_mathematics(k)):
            check_apart(q, k)
        if not (module.kernels and each_has_its_place(q) and each_has_its_place(k)):
            first = _rotate_into(module, q, cos, sin, turn, None)
            return first, _rotate_into(module, k, cos, sin, of_k, None)
    if turn == of_k and q.dtype == k.dtype and q.shape[0] == k.shape[0] and q.shape[-1] == k.shape[-1]:
        turned = rotated(module, [q, k], cos, sin, turn, inplace=inplace)
        return turned[0], turned[1]
    one = rotated(module, [q], cos, sin, turn, inplace=inplace)[0]
    return one, rotated(module, [k], cos, sin, of_k, inplace=inplace)[0]


def _rotate_into(module: Backend, x: Tensor, cos: Tensor, sin: Tensor, turn: Turn, out: Tensor | None) -> Tensor:
    """Write the rotation into `out`, or into `x` if it is None: by the kernel if it may, else through a new tensor."""
    target = x if out is None else out
    by_kernel = module.kernels and each_has_its_place(target)
    if out is not None and by_kernel:
        by_kernel = not module.reasons_not_to(out) and not overlap(x, out)
    if not by_kernel:
        kept = out is None and torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad)
        source = x.clone() if kept else x
        return target.copy_(rotated(module, [source], cos, sin, turn)[0])
    if out is None:
        return rotated(module, [x], cos, sin, turn, inplace=True)[0]
    with torch.no_grad():
        module.rotate([x], cos, sin, turn, [target])
    note_written([target])
    return target
