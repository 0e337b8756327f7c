"""Transformer-XL's relative attention: Dai et al. 2019, arXiv:1901.02860, section 3.3, its (q + u) k + (q + v) R.

The four terms: content and content, content and distance, a bias on content (u), a bias on distance (v). R is a learned
projection of the sinusoidal vector of the distance i - j.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.encodings.encoding import Encoding, EncodingConfig, Places, Sizes, check_positive
from ropewalk.encodings.sinusoidal import sinusoidal_table
from ropewalk.errors import RopeError


@dataclass(frozen=True)
class TransformerXL(EncodingConfig):
    """u, v and the projection of R are learned for each layer. Costs a product of each query with each distance.

    >>> xl = TransformerXL().build(Sizes(8, 2, 4))
    >>> xl.biased(torch.zeros(1, 3, 2, 4), Places(torch.arange(3), torch.arange(3)))[1].shape
    torch.Size([1, 2, 3, 3])
    """

    name: ClassVar[str] = "transformer_xl"
    shared: ClassVar[bool] = False
    theta: float = 10_000.0

    def __post_init__(self) -> None:
        check_positive("TransformerXL", theta=self.theta)

    def build(self, sizes: Sizes) -> Encoding:
        if sizes.hidden_size % 2:
            raise RopeError(
                "TransformerXL: `hidden_size` must be even: distances are sines and cosines of that many features.",
                facts={"hidden_size": sizes.hidden_size},
                cure="Choose an even hidden_size.",
            )
        return _Relative(self, sizes)


class _Relative(Encoding):
    config: TransformerXL
    adds_to_scores: ClassVar[bool] = True
    by_slots: ClassVar[bool] = True

    def __init__(self, config: TransformerXL, sizes: Sizes) -> None:
        super().__init__(config)
        self.hidden_size = sizes.hidden_size
        self.r_proj = nn.Linear(sizes.hidden_size, sizes.num_attention_heads * sizes.head_dim, bias=False)
        self.u = nn.Parameter(torch.empty(sizes.num_attention_heads, sizes.head_dim))
        self.v = nn.Parameter(torch.empty(sizes.num_attention_heads, sizes.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.u.normal_(0.0, 0.02)
            self.v.normal_(0.0, 0.02)

    def biased(self, q: Tensor, places: Places) -> tuple[Tensor, Tensor | None]:
        """`q` `[batch, seq, heads, head_dim]`; each query meets each distance once, then each key picks its own."""
        heads, head_dim = self.u.shape
        distance = places.distance if places.distance.ndim == 3 else places.distance[None]
        least, most = places.span()
        table = places.memo(
            ("sinusoidal", least, most, self.config.theta, q.dtype),
            lambda: sinusoidal_table(
                torch.arange(least, most + 1, device=q.device), self.hidden_size, self.config.theta
            ).to(q.dtype),
        )
        r = self.r_proj(table).view(-1, heads, head_dim)
        by_distance = torch.einsum("bshd,rhd->bhsr", q + self.v.to(q.dtype), r) / math.sqrt(head_dim)
        chosen = (distance - least)[:, None].expand(q.shape[0], heads, -1, -1)
        return q + self.u.to(q.dtype), by_distance.gather(-1, chosen)
