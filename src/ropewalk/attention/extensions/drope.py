"""DroPE's scale of the logits, for a model whose rope was taken out. Gelberg et al. 2025."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ropewalk.attention.extensions.base import Extension
from ropewalk.errors import RopeError


@dataclass(frozen=True)
class DroPE(Extension):
    """Logits times 1 + coefficient ln(factor), for a model whose rope was taken out and that was tuned without it.

    `factor` is target / trained length, at least 1. The paper's coefficients are 0.412 and 0.103, by model. An encoding
    that adds to scores refuses it.
    Source: Gelberg et al. 2025, "Extending the context of pretrained LLMs by dropping their positional embeddings".

    >>> import torch
    >>> DroPE(factor=1.0).logit_scale(torch.tensor([5]))
    1.0
    """

    factor: float
    coefficient: float = 0.412
    remaps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.factor >= 1 and self.coefficient >= 0 and math.isfinite(self.factor * self.coefficient)):
            raise RopeError(
                "DroPE: `factor` must be at least 1 and `coefficient` at least 0.",
                facts={"factor": self.factor, "coefficient": self.coefficient},
                cure="factor is target / trained length.",
            )

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 + self.coefficient * math.log(self.factor)
