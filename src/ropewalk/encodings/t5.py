"""T5's bias: distances fall into buckets, exact when near and logarithmic when far.

Raffel et al. 2020, arXiv:1910.10683, section 2.1; the buckets' formula is that of the published code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.encodings.encoding import DistanceBias, Encoding, EncodingConfig, Sizes
from ropewalk.errors import RopeError


@dataclass(frozen=True)
class T5Bias(EncodingConfig):
    """One learned number for each bucket and head, shared by all layers.

    Half of `num_buckets` are exact distances, the others grow logarithmically to `max_distance` tokens. Where queries
    see later keys, each direction has half of the buckets.

    >>> t5_bucket(torch.tensor([0, 1, 15, 16, 127, 10_000]), 32, 128, causal=True).tolist()
    [0, 1, 15, 16, 31, 31]
    """

    name: ClassVar[str] = "t5"
    num_buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        if self.num_buckets < 4 or self.num_buckets % 4 or self.max_distance <= self.num_buckets // 2:
            raise RopeError(
                "T5Bias: `num_buckets` must be a multiple of 4, and `max_distance` above half of it.",
                facts={"num_buckets": self.num_buckets, "max_distance": self.max_distance},
                cure="T5 has 32 and 128.",
            )

    def build(self, sizes: Sizes) -> Encoding:
        return _Buckets(self, sizes)


class _Buckets(DistanceBias):
    config: T5Bias

    def __init__(self, config: T5Bias, sizes: Sizes) -> None:
        super().__init__(config)
        self.causal = sizes.causal
        self.bias = nn.Embedding(config.num_buckets, sizes.num_attention_heads)

    def of_distance(self, distance: Tensor) -> Tensor:
        bucket = t5_bucket(distance, self.config.num_buckets, self.config.max_distance, causal=self.causal)
        bias: Tensor = self.bias(bucket)
        return bias.movedim(-1, 0)


def t5_bucket(distance: Tensor, num_buckets: int, max_distance: int, *, causal: bool) -> Tensor:
    """The bucket of each distance (query - key, int64); of later keys 0 where causal, else in the upper half."""
    upper: Tensor | int = 0
    if not causal:
        num_buckets //= 2
        upper = (distance < 0).long() * num_buckets
        distance = distance.abs()
    else:
        distance = distance.clamp(min=0)
    exact = num_buckets // 2
    # in float32, as published: its rounding decides at the buckets' edges
    share = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (share * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return torch.where(distance < exact, distance, far) + upper
