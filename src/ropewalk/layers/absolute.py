"""Encodings that act on embeddings: none (NoPE), learned and sinusoidal absolute positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.layers.encoding import Encoding, EncodingConfig, Sizes, check_positive
from ropewalk.rope.tables import make_tables


@dataclass(frozen=True)
class NoPE(EncodingConfig):
    """No position encoding: nothing is added, and nothing rotates.

    >>> NoPE().build(Sizes(8, 2, 4))
    Encoding(NoPE())
    """

    name: ClassVar[str] = "none"

    def build(self, sizes: Sizes) -> Encoding:
        return Encoding(self)


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
                    cure="Shorten the text, or train with a longer table; this one cannot be extended.",
                )
        vectors: Tensor = self.positions(position_ids)
        return x + vectors.to(x.dtype)


@dataclass(frozen=True)
class Sinusoidal(EncodingConfig):
    """Sines and cosines added to embeddings: sin(m theta^(-2i/d)) to feature 2i of token m, the cosine to 2i+1.

    - `theta`: the base.
    - `scale_embeddings`: multiply embeddings by sqrt(hidden_size) first, as in the paper (section 3.4); without it
      small embeddings have little effect.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    >>> sinusoidal_table(torch.arange(2), 4)[0].tolist()
    [0.0, 1.0, 0.0, 1.0]
    """

    name: ClassVar[str] = "sinusoidal"
    theta: float = 10_000.0
    scale_embeddings: bool = True

    def __post_init__(self) -> None:
        check_positive("Sinusoidal", theta=self.theta)

    def build(self, sizes: Sizes) -> Encoding:
        if sizes.hidden_size % 2:
            raise RopeError(
                "Sinusoidal: `hidden_size` must be even, a sine and a cosine for each frequency.",
                facts={"hidden_size": sizes.hidden_size},
                cure="Choose an even hidden_size.",
            )
        return _Added(self)


class _Added(Encoding):
    in_embeddings = True
    config: Sinusoidal

    def embedded(self, x: Tensor, position_ids: Tensor) -> Tensor:
        size = x.shape[-1]
        table = sinusoidal_table(position_ids, size, self.config.theta)
        return (x * size**0.5 if self.config.scale_embeddings else x) + table.to(x.dtype)


def sinusoidal_table(position_ids: Tensor, hidden_size: int, theta: float = 10_000.0) -> Tensor:
    """Return alternating sines and cosines of positions `[...]`, float64 `[..., hidden_size]`."""
    columns = tuple(theta ** (-2 * i / hidden_size) for i in range(hidden_size // 2))
    cos, sin = make_tables(position_ids, columns, dtype=torch.float64)
    return torch.stack((sin, cos), -1).flatten(-2)
