"""ReRoPE: distances are cut at a window. Su 2023."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ropewalk.attention.extensions.base import (
    Extension,
    Region,
    check_log_n,
    check_tokens,
    log_n_factor,
    near_and_far,
    real,
)
from ropewalk.errors import RopeError


@dataclass(frozen=True)
class ReRoPE(Extension):
    """Distances are cut at `window`; with `leak` they grow on beyond it, by `leak` for each token.

    Relative position: d = m - n where d < window, else window + leak (d - window). `log_n`: the trained length for
    the logits' factor max(1, ln(m + 1) / ln(log_n)), or None. No distance beyond `window` ever turns up without a leak.
    Source: Su 2023, "ReRoPE" and its reference code (`min(m - n, w)`, log-n in its results; "Leaky ReRoPE" has 1 / k).
    """

    window: int
    leak: float = 0.0
    log_n: int | None = None

    def __post_init__(self) -> None:
        check_tokens("ReRoPE", 1, window=self.window)
        check_log_n("ReRoPE", self.log_n)
        if not 0.0 <= self.leak <= 1.0:
            raise RopeError(
                "ReRoPE: `leak` must lie between 0 and 1.",
                facts={"leak": self.leak},
                cure="0 cuts distances off at the window; 1 is plain RoPE.",
            )

    def regions(self) -> tuple[Region, ...]:
        window, leak = self.window, self.leak
        near, far = near_and_far(window)
        if not leak:
            return near, far._replace(query=lambda m: torch.full_like(m, window), key=None)
        return near, far._replace(query=lambda m: leak * real(m) + (1 - leak) * window, key=lambda n: leak * real(n))

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 if self.log_n is None else log_n_factor(index, self.log_n)
