"""A learned bias for each head and clipped distance: Shaw et al. 2018, arXiv:1803.02155, section 3.2, as a scalar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ropewalk.encodings.encoding import DistanceBias, Encoding, EncodingConfig, Sizes, check_positive


@dataclass(frozen=True)
class RelativeBias(EncodingConfig):
    """Distances up to `max_distance` tokens each have a number per head and layer; all beyond share the last.

    >>> import torch
    >>> bias = RelativeBias(4).build(Sizes(8, 2, 4))
    >>> bias.of_distance(torch.arange(9)).shape
    torch.Size([2, 9])
    """

    name: ClassVar[str] = "relative"
    shared: ClassVar[bool] = False
    max_distance: int = 128

    def __post_init__(self) -> None:
        check_positive("RelativeBias", max_distance=self.max_distance)

    def build(self, sizes: Sizes) -> Encoding:
        return _Clipped(self, sizes)


class _Clipped(DistanceBias):
    config: RelativeBias

    def __init__(self, config: RelativeBias, sizes: Sizes) -> None:
        super().__init__(config)
        self.least = 0 if sizes.causal else -config.max_distance
        self.bias = nn.Embedding(config.max_distance - self.least + 1, sizes.num_attention_heads)

    def of_distance(self, distance: Tensor) -> Tensor:
        clipped = distance.clamp(self.least, self.config.max_distance) - self.least
        bias: Tensor = self.bias(clipped)
        return bias.movedim(-1, 0)
