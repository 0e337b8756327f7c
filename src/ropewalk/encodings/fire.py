"""FIRE: a small network of the distance, interpolated by the query's position. Li et al. 2023, arXiv:2310.04418, eq. 4.

b(i, j) = f(psi(i - j) / psi(max(L, i))) with psi(x) = log(c x + 1): f a network of one hidden layer, c and L learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.encodings.encoding import Encoding, EncodingConfig, Places, Sizes, check_positive


@dataclass(frozen=True)
class FIRE(EncodingConfig):
    """One network for each layer; `width` of its hidden layer, first `c` and first threshold `L` (tokens) as published.

    Where queries see later keys, distances are absolute and the later of both positions stands for i: our extension.

    >>> FIRE().build(Sizes(8, 2, 4)).biased(torch.zeros(1, 3, 2, 4), Places(torch.arange(3), torch.arange(3)))[1].shape
    torch.Size([2, 3, 3])
    """

    name: ClassVar[str] = "fire"
    shared: ClassVar[bool] = False
    width: int = 32
    first_c: float = 0.1
    first_threshold: float = 512.0

    def __post_init__(self) -> None:
        check_positive("FIRE", width=self.width, first_c=self.first_c, first_threshold=self.first_threshold)

    def build(self, sizes: Sizes) -> Encoding:
        return _Interpolated(self, sizes)


class _Interpolated(Encoding):
    config: FIRE
    adds_to_scores: ClassVar[bool] = True
    by_slots: ClassVar[bool] = True

    def __init__(self, config: FIRE, sizes: Sizes) -> None:
        super().__init__(config)
        self.inner = nn.Linear(1, config.width)
        self.outer = nn.Linear(config.width, sizes.num_attention_heads)
        self.c = nn.Parameter(torch.empty(()))
        self.threshold = nn.Parameter(torch.empty(()))  # in units of `first_threshold`, as published
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The network as torch begins a Linear: with the small weights of other layers it would begin as none."""
        self.inner.reset_parameters()
        self.outer.reset_parameters()
        with torch.no_grad():
            self.c.fill_(self.config.first_c)
            self.threshold.fill_(1.0)

    def score_bias(self, places: Places, dtype: torch.dtype) -> Tensor:
        exact = torch.promote_types(self.c.dtype, torch.float32)
        c = self.c.to(exact)
        distance = places.distance.abs().to(exact)
        later = torch.maximum(places.queries[..., :, None], places.keys[..., None, :]).to(exact)
        reach = torch.maximum(later, (self.threshold.to(exact) * self.config.first_threshold).abs())
        share = torch.log((c * distance).abs() + 1) / torch.log((c * reach).abs() + 1).clamp(min=1e-6)
        hidden = torch.relu(self.inner(share[..., None].to(self.inner.weight.dtype)))
        bias: Tensor = self.outer(hidden)
        return bias.movedim(-1, -3).to(dtype)
