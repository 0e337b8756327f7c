"""The optimizer: AdamW, fused."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import nn


@runtime_checkable
class Rates(Protocol):
    """The settings that AdamW reads."""

    @property
    def lr(self) -> float: ...

    @property
    def weight_decay(self) -> float: ...

    @property
    def beta1(self) -> float: ...

    @property
    def beta2(self) -> float: ...


def make_optimizer(model: nn.Module, settings: Rates) -> torch.optim.AdamW:
    """Fused AdamW over what is trained; weight decay on matrices alone, not on norms and biases.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices, others = ([each for each in trained if (each.ndim >= 2) == kind] for kind in (True, False))
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), fused=True)
