"""The encodings: on embeddings (none, learned, sinusoidal), on scores (ALiBi, T5 and others), on queries and keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.models.encoding import DistanceBias, Encoding, EncodingConfig, Places, Sizes, known_range
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.tables import make_tables
from ropewalk.rope.values import checked
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.rotation.rotate import rotate


@dataclass(frozen=True)
class NoPE(EncodingConfig):
    """No position encoding: nothing is added, and nothing rotates.

    >>> NoPE().build(Sizes(8, 2, 4))
    Encoding(NoPE())
    """

    name: ClassVar[str] = "none"
    module: ClassVar = Encoding


class _Table(Encoding):
    in_embeddings = True

    def __init__(self, config: LearnedAbsolute, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.positions = nn.Embedding(config.max_position_embeddings, sizes.hidden_size)

    def embedded(self, x: Tensor, position_ids: Tensor) -> Tensor:
        low, high = known_range(position_ids)
        if low < 0 or high >= self.positions.num_embeddings:
            raise RopeError(
                "LearnedAbsolute: a learned table has no vector for this position.",
                facts={"lowest": low, "highest": high, "max_position_embeddings": self.positions.num_embeddings},
                cure="Shorten the text, or train with a longer table; this one cannot be extended.",
            )
        vectors: Tensor = self.positions(position_ids)
        return x + vectors.to(x.dtype)


@checked
@dataclass(frozen=True)
class LearnedAbsolute(EncodingConfig):
    """One learned vector for each of the first `max_position_embeddings` positions.

    >>> LearnedAbsolute(16).build(Sizes(8, 2, 4)).embedded(torch.zeros(1, 3, 8), torch.arange(3)).shape
    torch.Size([1, 3, 8])
    """

    name: ClassVar[str] = "learned"
    module: ClassVar = _Table
    max_position_embeddings: int = 512


class _Waves(Encoding):
    """An encoding by sines and cosines, for which the hidden size must be even."""

    config: Sinusoidal | TransformerXL

    def __init__(self, config: Sinusoidal | TransformerXL, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.hidden_size = sizes.hidden_size
        if self.hidden_size % 2:
            raise RopeError(
                f"{type(config).__name__}: `hidden_size` must be even, a sine and a cosine for each frequency.",
                facts={"hidden_size": self.hidden_size},
                cure="Choose an even hidden_size.",
            )


class _Added(_Waves):
    in_embeddings = True
    config: Sinusoidal

    def embedded(self, x: Tensor, position_ids: Tensor) -> Tensor:
        table = sinusoidal_table(position_ids, self.hidden_size, self.config.theta)
        return (x * self.hidden_size**0.5 if self.config.scale_embeddings else x) + table.to(x.dtype)


@checked
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
    module: ClassVar = _Added
    theta: float = 10_000.0
    scale_embeddings: bool = True


def sinusoidal_table(position_ids: Tensor, hidden_size: int, theta: float = 10_000.0) -> Tensor:
    """Return alternating sines and cosines of positions `[...]`, float64 `[..., hidden_size]`."""
    columns = tuple(theta ** (-2 * i / hidden_size) for i in range(hidden_size // 2))
    cos, sin = make_tables(position_ids, columns, dtype=torch.float64)
    return torch.stack((sin, cos), -1).flatten(-2)


class _Slopes(DistanceBias):
    def __init__(self, config: ALiBi, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.slopes = alibi_slopes(sizes.num_attention_heads)

    def of_distance(self, distance: Tensor) -> Tensor:
        slopes = torch.tensor(self.slopes, dtype=torch.float32, device=distance.device)
        return -slopes[:, None] * distance.abs()


@dataclass(frozen=True)
class ALiBi(EncodingConfig):
    """A bias of -slope * |distance|, without learned parameters; it is symmetric if queries see later keys.

    Source: Press et al. 2021, arXiv:2108.12409.

    >>> alibi_slopes(8)[:3]
    (0.5, 0.25, 0.125)
    """

    name: ClassVar[str] = "alibi"
    module: ClassVar = _Slopes


def alibi_slopes(heads: int) -> tuple[float, ...]:
    """Return 2^(-8/n), 2^(-16/n), ... for n heads if n is a power of 2.

    For other n: the slopes of the next lower power, then every other slope of the next higher, as in the authors' code.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
    return tuple(slopes)


class _Learned(DistanceBias):
    """A learned number for each head and each index of a distance."""

    config: RelativeBias | T5Bias

    def __init__(self, config: RelativeBias | T5Bias, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.causal = sizes.causal
        self.bias = nn.Embedding(config.count(causal=sizes.causal), sizes.num_attention_heads)

    def of_distance(self, distance: Tensor) -> Tensor:
        bias: Tensor = self.bias(self.config.index(distance, causal=self.causal))
        return bias.movedim(-1, 0)


@checked
@dataclass(frozen=True)
class RelativeBias(EncodingConfig):
    """A learned number per distance, head and layer; distances beyond `max_distance` tokens share the last.

    >>> bias = RelativeBias(4).build(Sizes(8, 2, 4))
    >>> bias.of_distance(torch.arange(9)).shape
    torch.Size([2, 9])
    """

    name: ClassVar[str] = "relative"
    module: ClassVar = _Learned
    shared: ClassVar[bool] = False
    max_distance: int = 128

    def count(self, *, causal: bool) -> int:
        """Return the number of distances with a number of their own."""
        return self.max_distance * (1 if causal else 2) + 1

    def index(self, distance: Tensor, *, causal: bool) -> Tensor:
        """Return the index of each distance; later keys have that of distance 0 if causal."""
        least = 0 if causal else -self.max_distance
        return distance.clamp(least, self.max_distance) - least


@checked
@dataclass(frozen=True)
class T5Bias(EncodingConfig):
    """A learned number for each bucket of distances and each head, shared by all layers.

    Half of `num_buckets` hold one distance each; the others grow logarithmically to `max_distance` tokens. If queries
    see later keys, each direction has half of the buckets. Source: Raffel et al. 2019, arXiv:1910.10683.

    >>> t5_bucket(torch.tensor([0, 1, 15, 16, 127, 10_000]), 32, 128, causal=True).tolist()
    [0, 1, 15, 16, 31, 31]
    """

    name: ClassVar[str] = "t5"
    module: ClassVar = _Learned
    num_buckets: int = 32
    max_distance: int = 128

    def __post_init__(self) -> None:
        if self.num_buckets % 4 or not 0 < self.num_buckets < 2 * self.max_distance:
            raise RopeError(
                "T5Bias: `num_buckets` must be a multiple of 4, and `max_distance` above half of it.",
                facts={"num_buckets": self.num_buckets, "max_distance": self.max_distance},
                cure="T5 has 32 and 128.",
            )

    def count(self, *, causal: bool) -> int:
        """Return the number of buckets."""
        return self.num_buckets

    def index(self, distance: Tensor, *, causal: bool) -> Tensor:
        """Return the bucket of each distance."""
        return t5_bucket(distance, self.num_buckets, self.max_distance, causal=causal)


def t5_bucket(distance: Tensor, num_buckets: int, max_distance: int, *, causal: bool) -> Tensor:
    """Return the bucket of each distance (query - key, int64); later keys have 0 if causal, else the upper half."""
    upper: Tensor | int = 0
    if not causal:
        num_buckets //= 2
        upper = (distance < 0).long() * num_buckets
        distance = distance.abs()
    else:
        distance = distance.clamp(min=0)
    exact = num_buckets // 2
    # in float32, as published, because its rounding decides at the edges of buckets
    share = torch.log(distance.float() / exact) / math.log(max_distance / exact)
    far = (exact + (share * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return torch.where(distance < exact, distance, far) + upper


class _Logarithmic(DistanceBias):
    def __init__(self, config: KERPLE, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.log_r1 = nn.Parameter(torch.empty(sizes.num_attention_heads))
        self.log_r2 = nn.Parameter(torch.empty(sizes.num_attention_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        self.log_r1.uniform_(0.01, 2.0).log_()
        self.log_r2.uniform_(0.01, 1.0).log_()

    def of_distance(self, distance: Tensor) -> Tensor:
        exact = torch.promote_types(self.log_r1.dtype, torch.float32)
        r1, r2 = self.log_r1.to(exact).exp()[:, None], self.log_r2.to(exact).exp()[:, None]
        return -r1 * torch.log1p(r2 * distance.abs())


@dataclass(frozen=True)
class KERPLE(EncodingConfig):
    """A bias of -r1 log(1 + r2 |distance|), with r1 and r2 learned for each head and layer.

    Both are exponentials of parameters, so above 0. Initial values are the authors': uniform in (0, 2) and (0, 1).
    Source: Chi et al. 2022, arXiv:2205.09921.

    >>> KERPLE().build(Sizes(8, 2, 4)).of_distance(torch.arange(5)).shape
    torch.Size([2, 5])
    """

    name: ClassVar[str] = "kerple"
    module: ClassVar = _Logarithmic
    shared: ClassVar[bool] = False


_FIRE_WIDTH, _FIRE_LENGTH = 32, 512.0  # features of the hidden layer; the first threshold, in tokens


class _Interpolated(Encoding):
    adds_to_scores: ClassVar[bool] = True

    def __init__(self, config: FIRE, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.inner = nn.Linear(1, _FIRE_WIDTH)
        self.outer = nn.Linear(_FIRE_WIDTH, sizes.num_attention_heads)
        self.c = nn.Parameter(torch.empty(()))
        self.threshold = nn.Parameter(torch.empty(()))  # in units of the first one, as published
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset with torch's initialization of Linear; the small weights of other layers would give almost no bias."""
        self.inner.reset_parameters()
        self.outer.reset_parameters()
        self.c.fill_(0.1)
        self.threshold.fill_(1.0)

    def score_bias(self, places: Places, dtype: torch.dtype) -> Tensor:
        exact = torch.promote_types(self.c.dtype, torch.float32)
        c = self.c.to(exact)
        distance = places.distance.abs().to(exact)
        later = torch.maximum(places.queries[..., :, None], places.keys[..., None, :]).to(exact)
        limit = torch.maximum(later, (self.threshold.to(exact) * _FIRE_LENGTH).abs())
        share = torch.log((c * distance).abs() + 1) / torch.log((c * limit).abs() + 1).clamp(min=1e-6)
        hidden = torch.relu(self.inner(share[..., None].to(self.inner.weight.dtype)))
        bias: Tensor = self.outer(hidden)
        return bias.movedim(-1, -3).to(dtype)


@dataclass(frozen=True)
class FIRE(EncodingConfig):
    """A small network for each layer that maps normalized distances to biases; its numbers begin as published.

    Our extension for queries that see later keys: distances are absolute, and i is the later of both positions.
    Source: Li et al. 2023, arXiv:2310.04418.

    >>> FIRE().build(Sizes(8, 2, 4)).biased(torch.zeros(1, 3, 2, 4), Places(torch.arange(3), torch.arange(3)))[1].shape
    torch.Size([2, 3, 3])
    """

    name: ClassVar[str] = "fire"
    module: ClassVar = _Interpolated
    shared: ClassVar[bool] = False


class _Relative(_Waves):
    config: TransformerXL
    adds_to_scores: ClassVar[bool] = True

    def __init__(self, config: TransformerXL, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        self.r_proj = nn.Linear(sizes.hidden_size, sizes.num_attention_heads * sizes.head_dim, bias=False)
        self.u = nn.Parameter(torch.empty(sizes.num_attention_heads, sizes.head_dim))
        self.v = nn.Parameter(torch.empty(sizes.num_attention_heads, sizes.head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.u, std=0.02)
        nn.init.normal_(self.v, std=0.02)

    def biased(self, q: Tensor, places: Places) -> tuple[Tensor, Tensor | None]:
        """Return q + u, and the scores of q + v with each distance, gathered for each key."""
        heads, head_dim = self.u.shape
        distance = places.distance if places.distance.ndim == 3 else places.distance[None]
        least, most = places.span()
        table = places.memo(
            ("sinusoidal", self.config.theta, q.dtype),
            lambda: sinusoidal_table(
                torch.arange(least, most + 1, device=q.device), self.hidden_size, self.config.theta
            ).to(q.dtype),
        )
        r = self.r_proj(table).view(-1, heads, head_dim)
        by_distance = torch.einsum("bshd,rhd->bhsr", q + self.v.to(q.dtype), r) / math.sqrt(head_dim)
        chosen = (distance - least)[:, None].expand(q.shape[0], heads, -1, -1)
        return q + self.u.to(q.dtype), by_distance.gather(-1, chosen)


@checked
@dataclass(frozen=True)
class TransformerXL(EncodingConfig):
    """Relative attention with learned u, v and projection of R for each layer.

    It costs a product of each query with each distance. Source: Dai et al. 2019, arXiv:1901.02860, section 3.3.

    >>> xl = TransformerXL().build(Sizes(8, 2, 4))
    >>> xl.biased(torch.zeros(1, 3, 2, 4), Places(torch.arange(3), torch.arange(3)))[1].shape
    torch.Size([1, 2, 3, 3])
    """

    name: ClassVar[str] = "transformer_xl"
    module: ClassVar = _Relative
    shared: ClassVar[bool] = False
    theta: float = 10_000.0


_SCALE_BASE, _GAMMA = 512.0, 0.4  # tokens, and the share of the fastest pair, as published
_MOST_NATS = {torch.float64: 600.0, torch.float16: 9.7}  # -log of the least normal number; of other dtypes 87


class _Scaled(Encoding):
    config: XPos

    def __init__(self, config: XPos, sizes: Sizes) -> None:
        super().__init__(config, sizes)
        if not sizes.causal:
            raise RopeError(
                "XPos: attention must be causal: scores of later keys would grow with their distance.",
                cure="Use RoPE if queries see later keys.",
            )
        rope = config.rope or RopeConfig(sizes.head_dim, interleaved=False)
        if rope.head_dim != sizes.head_dim or rope.num_axes != 1 or rope.needs_seq_len:
            raise RopeError(
                "XPos: `rope` needs this head_dim, one axis, and frequencies that do not depend on the length.",
                facts={"rope": rope, "head_dim": sizes.head_dim},
                cure="Leave `rope` out, or pass RopeConfig(head_dim, interleaved=...).",
            )
        self.rotary = RotaryEmbedding(rope)

    def encoded(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        from_center = position_ids - self.config.center
        farthest = max(map(abs, known_range(from_center)))
        most = _MOST_NATS.get(q.dtype, 87.0) * _SCALE_BASE / math.log((1 + _GAMMA) / _GAMMA)
        if farthest > most:
            raise RopeError(
                "XPos: this position is too far from the centre: its scale exceeds the range of the dtype.",
                facts={"farthest": farthest, "limit": int(most), "dtype": q.dtype, "center": self.config.center},
                cure="Put `center` in the middle of the context.",
            )
        exact = torch.float64 if q.dtype == torch.float64 else torch.float32
        cos, sin = self.rotary.cos_sin(position_ids, dtype=exact)
        share = torch.arange(cos.shape[-1], dtype=torch.float64, device=q.device) / cos.shape[-1]
        log_zeta = ((share + _GAMMA) / (1 + _GAMMA)).log()
        scale = (from_center.to(torch.float64)[..., None] / _SCALE_BASE * log_zeta).exp().to(exact)
        return self._rotate(q, cos * scale, sin * scale), self._rotate(k, cos / scale, sin / scale)

    def _rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rope, factor = self.rotary.config, self.rotary.attention_factor
        return rotate(x, cos, sin, interleaved=rope.interleaved, rotary_dim=rope.rotary_dim, scale=factor)


@checked
@dataclass(frozen=True)
class XPos(EncodingConfig):
    """RoPE with scales that decay with the distance, for causal attention (scores of later keys would grow).

    - `rope`: the rotation; None is half-split RoPE of the whole head.
    - `center`: position with scale 1. float32 and bfloat16 allow 35,000 tokens on either side of it, float16 4,000;
      positions beyond raise `RopeError`.

    Source: Sun et al. 2022, arXiv:2212.10554.

    >>> q, k = XPos().build(Sizes(8, 2, 4)).encoded(*torch.ones(2, 1, 2, 2, 4), torch.tensor([0, 512]))
    >>> bool(q[:, 0].eq(1).all()), bool(q[:, 1].norm() < 2 < k[:, 1].norm())
    (True, True)
    """

    name: ClassVar[str] = "xpos"
    module: ClassVar = _Scaled
    rope: RopeConfig | None = None
    center: int = 0

    def __post_init__(self) -> None:
        """Allow any centre."""


ENCODINGS: dict[str, type[EncodingConfig]] = {
    config.name: config
    for config in (NoPE, Sinusoidal, LearnedAbsolute, RelativeBias, T5Bias, TransformerXL, ALiBi, KERPLE, FIRE, XPos)
}  # fmt: skip
"""The settings class of each encoding by its name."""

ROPE_NAMES = ("rope", "axial")


@checked
def resolve(encoding: str | EncodingConfig | RopeConfig, head_dim: int) -> EncodingConfig | RopeConfig:
    """Return the settings of an encoding.

    **Arguments:**
    - `encoding`: a key of `ENCODINGS` or one of `ROPE_NAMES`, for default settings; or settings, returned unchanged.
      "rope" is half-split RoPE of the whole head. "axial" assigns the first half of the pairs to the first coordinate
      of a grid and the second half to the other.
    - `head_dim`: features of one head.

    **Raises:** `RopeError` for an unknown name, and for "axial" if `head_dim` is not a multiple of 4.

    >>> resolve("alibi", 64)
    ALiBi()
    """
    if not isinstance(encoding, str):
        return encoding
    if encoding == "rope":
        return RopeConfig(head_dim, interleaved=False)
    if encoding == "axial":
        if head_dim % 4:
            raise RopeError(
                "encodings: axial RoPE needs a head_dim that is a multiple of 4.",
                facts={"head_dim": head_dim},
                cure="The two axes need the same number of pairs.",
            )
        axes = (0,) * (head_dim // 4) + (1,) * (head_dim // 4)
        return RopeConfig(head_dim, interleaved=False, axes=axes, axes_restart=True)
    if encoding not in ENCODINGS:
        raise RopeError(
            "encodings: unknown encoding.",
            facts={"encoding": encoding, "known": sorted([*ENCODINGS, *ROPE_NAMES])},
            cure="Choose one of these, or pass settings such as rw.encodings.T5Bias(num_buckets=64).",
        )
    return ENCODINGS[encoding]()


def rope_or_encoding(where: str, rope: Any, encoding: Any, head_dim: int) -> tuple[Any, Any]:
    """Return the rope, and the encoding in its place, of which one is None; an encoding's name is resolved."""
    if rope is not None and encoding is not None:
        raise RopeError(
            f"{where}: `rope` and `encoding` are mutually exclusive.",
            facts={"rope": rope, "encoding": encoding},
            cure="Pass one of them.",
        )
    chosen = resolve(encoding, head_dim) if isinstance(encoding, str) else encoding
    return (chosen, None) if isinstance(chosen, RopeConfig) else (rope, chosen)
