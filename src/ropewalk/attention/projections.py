"""Linear layers that read the same hidden states: in one call of a kernel where it serves, else one by one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_modules

from ropewalk.backends import choose_linear


def projected(x: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """What each layer makes of `x` `[..., features]`: `[..., outputs]`.

    A kernel may serve plain `nn.Linear` layers that nobody listens in on, patches or parametrizes (quantized layers,
    adapters, sharding hooks): all others are called.
    """
    compiling = torch.compiler.is_compiling()
    if not compiling and all(type(layer) is nn.Linear and is_left_alone(layer) for layer in layers):
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        backend = choose_linear(x, weights, biases)  # type: ignore[arg-type]
        if backend.kernels:
            return backend.multiply(x, weights, biases)  # type: ignore[arg-type]
    return [layer(x) for layer in layers]


def multiplied(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` `[..., features]` times a weight `[outputs, features]`, transposed, plus a bias: a head's logits."""
    return choose_linear(x, (weight,), (bias,)).multiply(x, (weight,), (bias,))[0]


def is_left_alone(layer: nn.Module) -> bool:
    """Whether nobody listens in on a module or has patched it, so that a kernel may stand in for its forward."""
    return not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or "forward" in layer.__dict__
        or of_modules._global_forward_hooks
        or of_modules._global_forward_pre_hooks
    )
