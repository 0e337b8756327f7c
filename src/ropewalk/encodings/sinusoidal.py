"""Sinusoidal absolute positions, added to the embeddings: Vaswani et al. 2017, arXiv:1706.03762, section 3.5."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ropewalk.encodings.encoding import Encoding, EncodingConfig, Sizes, check_positive
from ropewalk.errors import RopeError
from ropewalk.rope.tables import make_tables


@dataclass(frozen=True)
class Sinusoidal(EncodingConfig):
    """Feature 2i of token m gets sin(m theta^(-2i/d)), feature 2i+1 its cosine.

    - `theta`: the base. `scale_embeddings`: multiply embeddings by sqrt(hidden_size) first, as the paper does
      (section 3.4); without it small embeddings drown.

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
                "Sinusoidal: `hidden_size` must be even: each frequency has a sine and a cosine.",
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
    """The paper's table at these positions, float64 `[..., hidden_size]`: sine and cosine by turns."""
    columns = tuple(theta ** (-2 * i / hidden_size) for i in range(hidden_size // 2))
    cos, sin = make_tables(position_ids, columns, dtype=torch.float64)
    return torch.stack((sin, cos), -1).flatten(-2)
