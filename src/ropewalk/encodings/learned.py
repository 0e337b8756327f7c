"""Learned absolute positions, added to the embeddings: Gehring et al. 2017, arXiv:1705.03122, section 3.1; BERT, GPT-2.

A position beyond the table has no vector: it is refused, never wrapped or clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.encodings.encoding import Encoding, EncodingConfig, Sizes, check_positive
from ropewalk.errors import RopeError


@dataclass(frozen=True)
class LearnedAbsolute(EncodingConfig):
    """One learned vector for each of the first `max_position_embeddings` positions.

    >>> LearnedAbsolute(16).build(Sizes(8, 2, 4)).embedded(torch.zeros(1, 3, 8), torch.arange(3)).shape
    torch.Size([1, 3, 8])
    """

    name: ClassVar[str] = "learned"
    max_position_embeddings: int = 512

    def __post_init__(self) -> None:
        check_positive("LearnedAbsolute", max_position_embeddings=self.max_position_embeddings)

    def build(self, sizes: Sizes) -> Encoding:
        return _Table(self, sizes)


class _Table(Encoding):
    in_embeddings = True
    config: LearnedAbsolute

    def __init__(self, config: LearnedAbsolute, sizes: Sizes) -> None:
        super().__init__(config)
        self.positions = nn.Embedding(config.max_position_embeddings, sizes.hidden_size)

    def embedded(self, x: Tensor, position_ids: Tensor) -> Tensor:
        size = self.config.max_position_embeddings
        if not torch.compiler.is_compiling() and position_ids.device.type == "cpu" and position_ids.numel():
            low, high = (int(bound) for bound in position_ids.aminmax())
            if low < 0 or high >= size:
                raise RopeError(
                    "LearnedAbsolute: a learned table has no vector for this position.",
                    facts={"lowest": low, "highest": high, "max_position_embeddings": size},
                    cure="Shorten the text, or train with a longer table: nothing extends this one.",
                )
        vectors: Tensor = self.positions(position_ids)
        return x + vectors.to(x.dtype)
