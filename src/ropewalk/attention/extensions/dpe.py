"""DPE: far positions in groups, of another size for each part of the pairs. Lu et al. 2025, arXiv:2504.18857."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ropewalk.attention.extensions.base import Extension, Region, check_tokens, near_and_far
from ropewalk.errors import RopeError


@dataclass(frozen=True)
class DPE(Extension):
    """Keys nearer than `window` tokens at their distance; farther ones in groups, by `divisors` for parts of the pairs.

    The pairs, from the fastest to the slowest, are cut into as many equal parts as there are divisors (the paper: 8).
    Those of a part with divisor s stand floor(m / s) - floor(n / s) + window - floor(window / s) apart: `SelfExtend`,
    part by part. The divisors belong to a model and a length: the paper finds them by retrieval, one part after the
    other. All pairs of a part are taken in every head; the paper's choice of some of them in each head is not built.
    Source: Lu et al. 2025, arXiv:2504.18857, section 3; github.com/LuLuLuyi/DPE, which holds the divisors of
    Llama-3-8B, Llama-3.1-8B, Mistral-7B-v0.2 and Qwen2.5-7B for 131,072 tokens (`window` 1,024).

    >>> DPE((2, 8, 2, 8, 32, 32, 32, 4), window=1024).divisors[-1]
    4
    """

    divisors: tuple[int, ...]
    window: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "divisors", tuple(self.divisors))
        if not self.divisors:
            raise RopeError(
                "DPE: `divisors` must name one number for each part of the pairs.",
                facts={"divisors": self.divisors},
                cure="Give eight, as the paper does.",
            )
        for place, divisor in enumerate(self.divisors):
            check_tokens("DPE", 1, **{f"divisors[{place}]": divisor})
        check_tokens("DPE", 1, window=self.window)

    def regions(self) -> tuple[Region, ...]:
        def places(index: Tensor) -> Tensor:
            return index[..., None] // index.new_tensor(self.divisors)

        def shifted(index: Tensor) -> Tensor:
            shifts = [self.window - self.window // divisor for divisor in self.divisors]
            return places(index) + index.new_tensor(shifts)

        near, far = near_and_far(self.window)
        return near, far._replace(query=shifted, key=places)
