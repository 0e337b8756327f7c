"""Self-Extend: far positions in groups. Jin et al. 2024, arXiv:2401.01325."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ropewalk.attention.extensions.base import Extension, Region, check_log_n, check_tokens, log_n_factor, near_and_far


@dataclass(frozen=True)
class SelfExtend(Extension):
    """Keys nearer than `window` tokens as ever; positions of farther ones in groups of `group`.

    Relative position: d = m - n where d < window, else floor(m / group) - floor(n / group) + window
    - floor(window / group). The largest, at m = N - 1, should stay within the trained length; the paper advises
    half to two thirds of it. `log_n` as in `ReRoPE`.
    Source: Jin et al. 2024, arXiv:2401.01325, section 3 and algorithm 1.
    """

    group: int
    window: int
    log_n: int | None = None

    def __post_init__(self) -> None:
        check_tokens("SelfExtend", 1, group=self.group, window=self.window)
        check_log_n("SelfExtend", self.log_n)

    def regions(self) -> tuple[Region, ...]:
        group, shift = self.group, self.window - self.window // self.group
        near, far = near_and_far(self.window)
        return near, far._replace(query=lambda m: m // group + shift, key=lambda n: n // group)

    def logit_scale(self, index: Tensor) -> Tensor | float:
        return 1.0 if self.log_n is None else log_n_factor(index, self.log_n)
