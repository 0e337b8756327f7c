"""The rotation: `rotate` of one tensor, `rotate_qk` of queries and keys together, and the complex form."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.compiled import reasons_for_mathematics
from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.values import Float, Shaped
from ropewalk.rotation.backends import turned
from ropewalk.rotation.backends.request import Turn
from ropewalk.rotation.checks import Layout, check


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

    >>> import torch
    >>> x = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    >>> quarter = torch.zeros(1, 1), torch.ones(1, 1)
    >>> rotate(x, *quarter, interleaved=True).flatten().tolist()
    [0.0, 1.0]
    """
    xs, turn = {"x": x}, Turn(interleaved, scale, inverse, layout)
    turns = check(xs, cos, sin, turn, rotary_dim, rotary_offset, inplace, out)
    return turned(xs, cos, sin, turns, inplace, out, backend)[0]


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

    >>> import torch
    >>> q, k = torch.randn(1, 3, 8, 4), torch.randn(1, 3, 2, 4)
    >>> cos, sin = torch.ones(3, 2), torch.zeros(3, 2)
    >>> q2, k2 = rotate_qk(q, k, cos, sin, interleaved=False)
    >>> bool((q2 == q).all() and (k2 == k).all())
    True
    """
    xs, turn = {"q": q, "k": k}, Turn(interleaved, scale, inverse, layout)
    turns = check(xs, cos, sin, turn, rotary_dim, rotary_offset, inplace)
    q, k = turned(xs, cos, sin, turns, inplace, None, backend)
    return q, k


# --- the complex form: a pair of features as one complex number, multiplied by e^(i angle)


def freqs_cis(cos: Float[Tensor, "*rows pairs"], sin: Float[Tensor, "*rows pairs"]) -> Shaped[Tensor, "*rows pairs"]:
    """Return cos + i sin, Meta's `freqs_cis`.

    **Arguments:** `cos`, `sin`: `[..., pairs]`, both float32 or both float64.
    **Returns:** `[..., pairs]`, complex64 (complex128 from float64 tables).
    **Raises:** `RopeError` if shapes or dtypes do not fit.

    >>> freqs_cis(torch.ones(2, 3), torch.zeros(2, 3)).dtype
    torch.complex64
    """
    check_kind("freqs_cis", Tensor, "Build both with rope.cos_sin(position_ids).", cos=cos, sin=sin)
    if cos.dtype not in (torch.float32, torch.float64) or cos.dtype != sin.dtype or cos.shape != sin.shape:
        raise RopeError(
            "freqs_cis: `cos` and `sin` must have the same shape, and be both float32 or both float64.",
            facts={"cos": cos, "sin": sin},
            cure="Build both with rope.cos_sin(position_ids).",
        )
    return torch.complex(cos, sin)


def apply_rotary_complex(
    x: Float[Tensor, "batch seq heads head_dim"], freqs_cis: Shaped[Tensor, "*rows pairs"]
) -> Float[Tensor, "batch seq heads head_dim"]:
    """Rotate interleaved pairs by complex multiplication; equal to `rotate(..., interleaved=True)`.

    **Arguments:**
    - `x`: `[batch, seq, heads, head_dim]`, any float dtype.
    - `freqs_cis`: complex `[seq, pairs]` or `[batch, seq, pairs]`.

    **Returns:** the shape and dtype of `x`.
    **Raises:** `RopeError` if shapes or dtypes do not fit.
    **Numerics:** complex64 inside (complex128 for float64 `x`).
    **Source:** Su et al. 2021, arXiv:2104.09864, section 3.4.1, eq. 12.

    >>> x = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    >>> apply_rotary_complex(x, torch.tensor([[1j]])).flatten().tolist()
    [0.0, 1.0]
    """
    check_kind("apply_rotary_complex", Tensor, "Build freqs_cis(*rope.cos_sin(ids)).", x=x, freqs_cis=freqs_cis)
    sizes = freqs_cis.shape
    fits = x.ndim == 4 and len(sizes) in (2, 3) and sizes[-2] == x.shape[1] and 2 * sizes[-1] == x.shape[-1]
    fits = fits and (len(sizes) == 2 or sizes[0] in (1, x.shape[0]))
    if not fits or not x.is_floating_point() or not freqs_cis.is_complex():
        raise RopeError(
            "apply_rotary_complex: `x` must be floats, and `freqs_cis` complex [seq, pairs] or [batch, seq, pairs].",
            facts={"x": x, "freqs_cis": freqs_cis},
            cure="Build it: freqs_cis(*rope.cos_sin(position_ids)). For partial rotation use rotate.",
        )
    real = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    factors = freqs_cis.to(torch.complex128 if x.dtype == torch.float64 else torch.complex64).unsqueeze(-2)
    if reasons_for_mathematics(x):  # complex views restrict strides
        pairs = torch.complex(real[..., 0::2], real[..., 1::2]) * factors
        return torch.stack((pairs.real, pairs.imag), dim=-1).flatten(-2).to(x.dtype)
    pairs = torch.view_as_complex(_aligned(real).reshape(*x.shape[:-1], x.shape[-1] // 2, 2))
    result = torch.view_as_real(pairs * factors).flatten(-2)
    if result.requires_grad:
        result.register_hook(_aligned)  # type: ignore[no-untyped-call]  # its gradient becomes a complex view, too
    return result.to(x.dtype)


def _aligned(x: Tensor) -> Tensor:
    """Return `x`, or a copy if an odd offset or stride does not allow a view as complex numbers."""
    if x.storage_offset() % 2 == 0 and x.stride(-1) == 1 and not any(stride % 2 for stride in x.stride()[:-1]):
        return x
    return x.clone(memory_format=torch.contiguous_format)
