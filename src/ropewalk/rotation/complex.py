"""The complex form: a pair of features as one complex number, multiplied by e^(i angle)."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.compiled import reasons_for_mathematics
from ropewalk.errors import RopeError, check_kind
from ropewalk.rope.values import Float, Shaped


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
