"""Linear layers in plain PyTorch: the definition that the kernel must agree with, and what serves many rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

name = "reference"
kernels = False


def reasons_not_to_multiply(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[str]:
    """Why this backend could not multiply: it always can."""
    return []


def multiply(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    """`x` times each weight, transposed, plus its bias."""
    return [F.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]
