"""STRING: far positions are shifted back to ones that training met often. An et al. 2024, arXiv:2410.18745."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from ropewalk.attention.extensions.base import Extension, Region, check_scale, check_tokens, near_and_far
from ropewalk.errors import RopeError

LOGIT_SCALE = (0.1 * math.log(2) + 1) ** 2
"""Of the released code, which multiplies queries and keys each by 0.1 ln 2 + 1."""


@dataclass(frozen=True)
class STRING(Extension):
    """Distances from `shift` on become smaller by `shift - window`, so that rare large ones are never met.

    Relative position: d = m - n where d < shift, else d - shift + window. Logits are multiplied by `scale`. The paper
    uses it within the trained length L, with shift L / 3 and window 128; with shift = L it reaches 2 L - window tokens.
    The released prefill counts the key at d = shift twice, its decoding does not: here each key counts once.
    Source: An et al. 2024, arXiv:2410.18745, section 4.1; github.com/HKUNLP/STRING.
    """

    shift: int
    window: int
    scale: float = LOGIT_SCALE

    def __post_init__(self) -> None:
        check_tokens("STRING", 1, shift=self.shift, window=self.window)
        if self.window > self.shift:
            raise RopeError(
                "STRING: `window` must not exceed `shift`.",
                facts={"window": self.window, "shift": self.shift},
                cure="The authors shift by a third of the trained length and keep 128 tokens.",
            )
        check_scale("STRING", self.scale)

    def regions(self) -> tuple[Region, ...]:
        back = self.shift - self.window
        near, far = near_and_far(self.shift)
        return near, far._replace(query=lambda m: m - back)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return self.scale
