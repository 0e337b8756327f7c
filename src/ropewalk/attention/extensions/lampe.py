"""LaMPE: far positions are mapped linearly onto a part of the trained length. arXiv:2508.02308."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ropewalk.attention.extensions.base import Extension, Region, check_scale, check_tokens, near_and_far
from ropewalk.attention.extensions.string import LOGIT_SCALE


@dataclass(frozen=True)
class LaMPE(Extension):
    """Keys nearer than `window` at their distance; farther ones at their places on a row of `mapped` for `length`.

    With p(i) = floor(i mapped / (length - 1)), a far key stands p(m) - p(n) + window - p(window) - 1 back, so that the
    two parts join. Logits are multiplied by `scale`. The paper chooses `mapped` from the length at hand by a sigmoid
    that is fitted to the model; here it is fixed for `length`, so that decoding equals the full forward.
    Source: 2025, arXiv:2508.02308, section 3; github.com/scar-on/LaMPE (512 exact tokens, 1,536 mapped, of 4,096).
    """

    window: int
    mapped: int
    length: int
    scale: float = LOGIT_SCALE

    def __post_init__(self) -> None:
        check_tokens("LaMPE", 1, window=self.window, mapped=self.mapped)
        check_tokens("LaMPE", 2, length=self.length)
        check_scale("LaMPE", self.scale)

    def regions(self) -> tuple[Region, ...]:
        mapped, last = self.mapped, self.length - 1
        shift = self.window - self.window * mapped // last - 1
        near, far = near_and_far(self.window)
        return near, far._replace(query=lambda m: m * mapped // last + shift, key=lambda n: n * mapped // last)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return self.scale
