"""Encodings inside the product of queries and keys: Transformer-XL's relative attention and xPos."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.layers.absolute import sinusoidal_table
from ropewalk.layers.encoding import Encoding, EncodingConfig, Places, Sizes, check_positive
from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.rotation.rotate import rotate


@dataclass(frozen=True)
class TransformerXL(EncodingConfig):
    """Relative attention with learned u, v and projection of R for each layer.

    It costs a product of each query with each distance. Source: Dai et al. 2019, arXiv:1901.02860, section 3.3.

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
                "TransformerXL: `hidden_size` must be even, a sine and a cosine for each frequency.",
                facts={"hidden_size": sizes.hidden_size},
                cure="Choose an even hidden_size.",
            )
        return _Relative(self, sizes)


class _Relative(Encoding):
    config: TransformerXL
    adds_to_scores: ClassVar[bool] = True

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
        """Return q + u, and the scores of q + v with each distance, gathered for each key."""
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


@dataclass(frozen=True)
class XPos(EncodingConfig):
    """RoPE with scales that decay with the distance, for causal attention (scores of later keys would grow).

    - `rope`: the rotation; None is half-split RoPE of the whole head.
    - `scale_base`: tokens. `gamma`: 0.4 as published.
    - `center`: position with scale 1. float32 and bfloat16 allow 35,000 tokens on either side of it, float16 4,000;
      positions beyond raise `RopeError`.

    Source: Sun et al. 2022, arXiv:2212.10554.

    >>> q, k = XPos().build(Sizes(8, 2, 4)).turned(*torch.ones(2, 1, 1, 2, 4), torch.tensor([512]))
    >>> bool(q.norm() < 2 < k.norm())
    True
    """

    name: ClassVar[str] = "xpos"
    rope: RopeConfig | None = None
    scale_base: float = 512.0
    gamma: float = 0.4
    center: int = 0

    def __post_init__(self) -> None:
        check_positive("XPos", scale_base=self.scale_base, gamma=self.gamma)

    def build(self, sizes: Sizes) -> Encoding:
        if not sizes.causal:
            raise RopeError(
                "XPos: attention must be causal: scores of later keys would grow with their distance.",
                cure="Use RoPE if queries see later keys.",
            )
        return _Scaled(self, sizes)


class _Scaled(Encoding):
    config: XPos

    def __init__(self, config: XPos, sizes: Sizes) -> None:
        super().__init__(config)
        rope = config.rope or RopeConfig(sizes.head_dim, interleaved=False)
        if rope.head_dim != sizes.head_dim or rope.num_axes != 1 or rope.needs_seq_len:
            raise RopeError(
                "XPos: `rope` needs this head_dim, one axis, and frequencies that do not depend on the length.",
                facts={"rope": rope, "head_dim": sizes.head_dim},
                cure="Leave `rope` out, or pass RopeConfig(head_dim, interleaved=...).",
            )
        self.rotary = RotaryEmbedding(rope)

    def turned(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        cos, sin = self.rotary.cos_sin(position_ids, dtype=exact)
        pairs = cos.shape[-1]
        exponent = (position_ids - self.config.center).to(torch.float64) / self.config.scale_base
        share = torch.arange(pairs, dtype=torch.float64, device=q.device) / pairs
        log_zeta = ((share + self.config.gamma) / (1 + self.config.gamma)).log()
        self._check_reach(position_ids, q.dtype)
        scale = (exponent[..., None] * log_zeta).exp().to(exact)
        return self._rotate(q, cos * scale, sin * scale), self._rotate(k, cos / scale, sin / scale)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rope = self.rotary.config
        factor = self.rotary.attention_factor
        return rotate(x, cos, sin, interleaved=rope.interleaved, rotary_dim=rope.rotary_dim, scale=factor)

    def _check_reach(self, position_ids: Tensor, dtype: torch.dtype) -> None:
        if torch.compiler.is_compiling() or position_ids.device.type != "cpu" or not position_ids.numel():
            return
        nats = {torch.float64: 600.0, torch.float16: 9.7}.get(dtype, 87.0)  # -log of the least normal number
        most = nats * self.config.scale_base / math.log((1 + self.config.gamma) / self.config.gamma)
        farthest = int((position_ids - self.config.center).abs().max())
        if farthest > most:
            raise RopeError(
                "XPos: this position is too far from the centre: its scale exceeds the range of the dtype.",
                facts={"farthest": farthest, "limit": int(most), "dtype": dtype, "center": self.config.center},
                cure="Put `center` in the middle of the context, or choose a larger `scale_base`.",
            )
