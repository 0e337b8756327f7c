"""The rotation in plain PyTorch: the definition that every kernel must agree with, and what compilers fuse."""

from __future__ import annotations

import torch
from torch import Tensor

name = "reference"


def reasons_not_to(x: Tensor) -> list[str]:
    """Why this backend could not rotate `x`: it always can."""
    return []


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, scale: float, inverse: bool) -> Tensor:
    """`x` with its leading 2 * pairs features turned by each token's angles and multiplied by `scale`; a new tensor.

    `cos` and `sin` broadcast against `x[..., :pairs]`. Arithmetic in float32, in float64 for float64 `x`; one rounding.
    """
    cos, sin = _placed_as(x, cos), _placed_as(x, sin)
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = cos.to(compute), sin.to(compute)
    if scale != 1.0:
        cos, sin = cos * scale, sin * scale
    rotary_dim = 2 * cos.shape[-1]
    turning = x[..., :rotary_dim].to(compute)
    if interleaved:
        a, b = turning[..., 0::2], turning[..., 1::2]
    else:
        a, b = turning[..., : rotary_dim // 2], turning[..., rotary_dim // 2 :]
    if inverse:
        first, second = a * cos + b * sin, b * cos - a * sin
    else:
        first, second = a * cos - b * sin, b * cos + a * sin
    joined = torch.stack((first, second), dim=-1).flatten(-2) if interleaved else torch.cat((first, second), dim=-1)
    turned = joined.to(x.dtype)
    return turned if rotary_dim == x.shape[-1] else torch.cat((turned, x[..., rotary_dim:]), dim=-1)


def _placed_as(x: Tensor, table: Tensor) -> Tensor:
    """A plain table beside a DTensor is every rank's own copy of the whole: replicated, without communication."""
    if type(x) is Tensor or not torch.distributed.is_available():
        return table
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(x, DTensor) or isinstance(table, DTensor):
        return table
    return DTensor.from_local(table, x.device_mesh, [Replicate()] * x.device_mesh.ndim, run_check=False)
