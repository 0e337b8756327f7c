"""RMSNorm, computed in float32 as transformers does; heads and hidden states use the same."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) over the last dimension, times a weight.

    Normalised in float32 (float64 for float64), rounded to x's dtype, then times the weight, as transformers does.
    Source: Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4.

    >>> RMSNorm(2)(torch.tensor([3.0, 4.0])).mul(5 / 2**0.5).round(decimals=3)
    tensor([3., 4.], grad_fn=<RoundBackward1>)
    """

    def __init__(self, size: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `[..., size]`."""
        if x.dtype in (torch.float32, torch.float64):
            if self.weight.dtype == x.dtype:
                return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
            return self.weight * F.rms_norm(x, self.weight.shape, None, self.eps)
        return self.weight * F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"
