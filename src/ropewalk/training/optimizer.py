"""The optimizer: AdamW, fused."""

from __future__ import annotations

import torch

from ropewalk.models.decoder import Decoder
from ropewalk.training.settings import TrainSettings


def make_optimizer(model: Decoder, settings: TrainSettings) -> torch.optim.AdamW:
    """Fused AdamW; weight decay on matrices alone, not on norms and biases.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
    """
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), fused=True)
