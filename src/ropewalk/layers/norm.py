"""Norms in float32 as transformers computes them, and linear layers that share one input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as of_modules

from ropewalk.rotation.backends import choose_linear


def projected(x: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """Return the result `[..., outputs]` of each layer for `x` `[..., features]`.

    A kernel may replace plain `nn.Linear` layers without hooks or patches. All others are called (quantized layers,
    adapters, sharding hooks).
    """
    compiling = torch.compiler.is_compiling()
    if not compiling and all(type(layer) is nn.Linear and is_unpatched(layer) for layer in layers):
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        backend = choose_linear(x, weights, biases)  # type: ignore[arg-type]
        if backend.kernels:
            return backend.multiply(x, weights, biases)  # type: ignore[arg-type]
    return [layer(x) for layer in layers]


def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x` `[..., features]` times a weight `[outputs, features]`, transposed, plus a bias: a head's logits."""
    return choose_linear(x, (weight,), (bias,)).multiply(x, (weight,), (bias,))[0]


def is_unpatched(layer: nn.Module) -> bool:
    """Return whether a module has no hooks and no patched forward, so that a kernel may replace its forward."""
    return not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or "forward" in layer.__dict__
        or of_modules._global_forward_hooks
        or of_modules._global_forward_pre_hooks
    )


HALF = (torch.bfloat16, torch.float16)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) over the last dimension, times a weight.

    The result has the dtype of a float32 or float64 input, whatever the weight's dtype. A half type is normalised in
    float32, rounded, then multiplied by the weight, as in transformers.
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
            if self.weight.dtype in HALF:
                return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
            if self.weight.dtype == x.dtype:
                return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
            return self.weight * F.rms_norm(x, self.weight.shape, None, self.eps)
        return self.weight * F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}"


def residual_stream(x: Tensor) -> Tensor:
    """Return embeddings in the dtype of the residual stream: float32 for a half type, to keep small summands."""
    return x.float() if x.dtype in HALF else x
