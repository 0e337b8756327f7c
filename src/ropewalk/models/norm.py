"""Norms in float32 as transformers computes them, and linear layers that share one input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from ropewalk.rotation.backends import cpu


def projected(x: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """Return the result `[..., outputs]` of each layer for `x` `[..., features]`.

    A kernel may replace plain `nn.Linear` layers. All others are called (quantized layers, adapters, sharding hooks).
    """
    if not torch.compiler.is_compiling() and all(is_plain(layer, nn.Linear) for layer in layers):
        weights: list[Any] = [layer.weight for layer in layers]
        biases: list[Any] = [layer.bias for layer in layers]
        if not cpu.reasons_not_to_multiply(x, weights, biases):
            return cpu.multiply(x, weights, biases)
    return [layer(x) for layer in layers]


def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `x` `[..., features]` times a weight `[outputs, features]`, transposed, plus a bias: a head's logits."""
    if cpu.reasons_not_to_multiply(x, (weight,), (bias,)):
        return F.linear(x, weight, bias)
    return cpu.multiply(x, (weight,), (bias,))[0]


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


_FORWARDS: dict[type[nn.Module], Callable[..., Tensor]] = {kind: kind.forward for kind in (nn.Linear, RMSNorm)}


def is_plain(module: nn.Module, kind: type[nn.Module], forward: str = "forward") -> bool:
    """Return whether a call of `module` computes what `kind` defines and nothing else, so that it may be skipped.

    A subclass (also that of a parametrization), a forward patched on the module or on the class, and any hook, the
    module's own or global, forward or backward, make it False. `forward`: the attribute of a forward of its own.

    >>> layer = nn.Linear(2, 2)
    >>> handle = layer.register_forward_hook(lambda *_: None)
    >>> is_plain(layer, nn.Linear), handle.remove(), is_plain(layer, nn.Linear)
    (False, None, True)
    """
    own = vars(module)
    return (
        type(module) is kind
        and kind.forward is _FORWARDS[kind]
        and (forward not in own or own[forward] == MethodType(_FORWARDS[kind], module))
        and not (module._forward_hooks or module._forward_pre_hooks or _has_any_global_hook())  # type: ignore[no-untyped-call]
        and not (module._backward_hooks or module._backward_pre_hooks)
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode inside, then restore the mode of every module."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def residual_stream(x: Tensor) -> Tensor:
    """Return embeddings in the dtype of the residual stream: float32 for a half type, to keep small summands."""
    return x.float() if x.dtype in HALF else x
