"""ALiBi: scores fall with distance, each head at its own fixed slope.

Press et al. 2022, arXiv:2108.12409, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.encodings.encoding import DistanceBias, Encoding, EncodingConfig, Sizes


@dataclass(frozen=True)
class ALiBi(EncodingConfig):
    """-slope * |distance|; nothing is learned. Where queries see later keys it is symmetric.

    >>> alibi_slopes(8)[:3]
    (0.5, 0.25, 0.125)
    """

    name: ClassVar[str] = "alibi"

    def build(self, sizes: Sizes) -> Encoding:
        return _Slopes(self, sizes)


class _Slopes(DistanceBias):
    def __init__(self, config: ALiBi, sizes: Sizes) -> None:
        super().__init__(config)
        self.slopes = alibi_slopes(sizes.num_attention_heads)

    def of_distance(self, distance: Tensor) -> Tensor:
        slopes = torch.tensor(self.slopes, dtype=torch.float32, device=distance.device)
        return -slopes[:, None] * distance.abs()


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """2^(-8/n), 2^(-16/n), ... for n heads, n a power of 2.

    For other counts the slopes of the power below, then every other slope of the power above, as the authors' code.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
    return tuple(slopes)
