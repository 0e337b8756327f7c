"""The rotation: `rotate` of one tensor, and `rotate_qk` of queries and keys together."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.rope.values import Float
from ropewalk.rotation.backends import choose
from ropewalk.rotation.backends.autograd import note_written, rotated
from ropewalk.rotation.backends.request import Backend, Turn
from ropewalk.rotation.checks import Layout, check_both, check_one, share_memory


def rotate(
    x: Float[Tensor, "*batch_seq_heads head_dim"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    *,
    interleaved: bool,
    rotary_dim: int | None = None,
    rotary_offset: int = 0,
    scale: float = 1.0,
    layout: Layout = "bshd",
    inverse: bool = False,
    inplace: bool = False,
    out: Tensor | None = None,
    backend: str | None = None,
) -> Float[Tensor, "*batch_seq_heads head_dim"]:
    """Rotate each feature pair of `x` by its token's angle.

    **Arguments:**
    - `x`: queries or keys, float64, float32, bfloat16 or float16, any strides. Not modified.
    - `cos`, `sin`: float32 or float64, in every layout `[seq, pairs]`, `[batch, seq, pairs]`, or
      `[batch or 1, seq, heads or 1, pairs]`; for thd `[tokens, pairs]` or `[tokens, heads or 1, pairs]`.
    - `interleaved`: True pairs features (0,1), (2,3), ...; False pairs (i, i + rotary_dim/2).
    - `rotary_dim`: 2 * pairs, required if it is less than head_dim; the other features pass through. Without it,
      transformers' tables of half a head, which contain each angle twice, have the shape of tables for the whole head.
    - `rotary_offset`: first rotated feature. Multi-head latent attention rotates the end of a head:
      head_dim - rotary_dim.
    - `scale`: factor of the rotated features (an attention factor), applied in the same pass.
    - `layout`: `"bshd"` `[batch, seq, heads, head_dim]`, `"bhsd"` `[batch, heads, seq, head_dim]` or `"thd"`
      `[tokens, heads, head_dim]`.
    - `inverse`: rotate by minus the angle (the transpose). It keeps `scale`: to undo a rotation, pass the reciprocal.
    - `inplace`: write the result into `x` and return it.
    - `out`: tensor for the result.
    - `backend`: a name, or None to choose; see `explain_backends`.

    **Returns:** same shape, dtype and device as `x`.
    **Raises:** `RopeError` if shapes, dtypes or devices do not fit, for `inplace` on a leaf that requires grad, and for
    a backend that cannot run.
    **Numerics:** float32 inside (float64 for float64 `x`), one rounding. Twice differentiable in `x`, `cos` and `sin`.
    **Source:** Su et al. 2021, arXiv:2104.09864, section 3.4.2, eq. 34.

    >>> x = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    >>> quarter = torch.zeros(1, 1), torch.ones(1, 1)
    >>> rotate(x, *quarter, interleaved=True).flatten().tolist()
    [0.0, 1.0]
    """
    turn = Turn(interleaved, scale, inverse, layout)
    turn = check_one(x, cos, sin, turn, rotary_dim, rotary_offset, inplace, out)
    return rotate_one(x, cos, sin, turn, inplace, out, backend)


def rotate_qk(
    q: Float[Tensor, "*batch_seq_heads head_dim"],
    k: Float[Tensor, "*batch_seq_kv_heads key_dim"],
    cos: Float[Tensor, "*rows pairs"],
    sin: Float[Tensor, "*rows pairs"],
    *,
    interleaved: bool,
    rotary_dim: int | None = None,
    rotary_offset: int | tuple[int, int] = 0,
    scale: float = 1.0,
    layout: Layout = "bshd",
    inverse: bool = False,
    inplace: bool = False,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by the same tables.

    **Arguments:** those of `rotate`; keys may have fewer heads. `rotary_offset` may be two numbers, one for queries and
    one for keys: in multi-head latent attention the end of a query's head rotates, and keys have rotary_dim features.

    **Returns:** queries and keys, each in its own shape and dtype.
    **Raises:** `RopeError` as `rotate` does, and if `q` and `k` share memory with `inplace=True`.

    >>> q, k = torch.randn(1, 3, 8, 4), torch.randn(1, 3, 2, 4)
    >>> cos, sin = torch.ones(3, 2), torch.zeros(3, 2)
    >>> q2, k2 = rotate_qk(q, k, cos, sin, interleaved=False)
    >>> bool((q2 == q).all() and (k2 == k).all())
    True
    """
    turn = Turn(interleaved, scale, inverse, layout)
    turns = check_both(q, k, cos, sin, turn, rotary_dim, rotary_offset, inplace)
    return rotate_both(q, k, cos, sin, turns, inplace, backend)


def rotate_one(
    x: Tensor, cos: Tensor, sin: Tensor, turn: Turn, inplace: bool, out: Tensor | None, backend: str | None
) -> Tensor:
    """Rotate one tensor by checked arguments."""
    module = choose(x, backend, cos, sin)
    if inplace or out is not None:
        return _rotate_into(module, x, cos, sin, turn, out)
    return rotated(module, [x], cos, sin, turn)[0]


def rotate_both(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turns: tuple[Turn, Turn], inplace: bool, backend: str | None
) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by checked arguments, each by its `Turn`."""
    turn, of_k = turns
    module = choose(q, backend, k, cos, sin, names=("q", "k", "cos", "sin"))
    if inplace and not module.kernels:
        first = _rotate_into(module, q, cos, sin, turn, None)
        return first, _rotate_into(module, k, cos, sin, of_k, None)
    if (
        (turn is of_k or turn == of_k)
        and q.dtype == k.dtype
        and q.shape[0] == k.shape[0]
        and q.shape[-1] == k.shape[-1]
    ):
        both = rotated(module, [q, k], cos, sin, turn, inplace=inplace)
        return both[0], both[1]
    first = rotated(module, [q], cos, sin, turn, inplace=inplace)[0]
    return first, rotated(module, [k], cos, sin, of_k, inplace=inplace)[0]


def _rotate_into(module: Backend, x: Tensor, cos: Tensor, sin: Tensor, turn: Turn, out: Tensor | None) -> Tensor:
    """Write the rotation into `out` (None: `x`), by the kernel if it can, else through a new tensor."""
    target = x if out is None else out
    if not module.kernels or (out is not None and (module.reasons_not_to(out) or _is_overwritten(x, out))):
        kept = out is None and torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad)
        return target.copy_(rotated(module, [x.clone() if kept else x], cos, sin, turn)[0])
    if out is None:
        return rotated(module, [x], cos, sin, turn, inplace=True)[0]
    with torch.no_grad():
        module.rotate([x], cos, sin, turn, [target])
    note_written([target])
    return target


def _is_overwritten(x: Tensor, out: Tensor) -> bool:
    """Return whether writing `out` could overwrite elements of `x` before they are read."""
    return share_memory(x, out) and not (x.data_ptr() == out.data_ptr() and x.stride() == out.stride())
