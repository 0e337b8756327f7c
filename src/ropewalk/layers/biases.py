"""Encodings that add a bias to attention scores: ALiBi, clipped relative bias, T5, KERPLE and FIRE."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.layers.encoding import DistanceBias, Encoding, EncodingConfig, Places, Sizes, check_positive


@dataclass(frozen=True)
class ALiBi(EncodingConfig):
    """A bias of -slope * |distance|, without learned parameters; it is symmetric if queries see later keys.

    Source: Press et al. 2021, arXiv:2108.12409.

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
    """Return 2^(-8/n), 2^(-16/n), ... for n heads if n is a power of 2.

    For other n: the slopes of the next lower power, then every other slope of the next higher, as in the authors' code.
    """
    power = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4.0 * (i + 1) / power) for i in range(0, 2 * (heads - power), 2)]
    return tuple(slopes)


@dataclass(frozen=True)
class RelativeBias(EncodingConfig):
    """A learned number per distance, head and layer; distances beyond `max_distance` tokens share the last.

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


@dataclass(frozen=True)
class T5Bias(EncodingConfig):
    """A learned number for each bucket of distances and each head, shared by all layers.

    Half of `num_buckets` hold one distance each; the others grow logarithmically to `max_distance` tokens. If queries
    see later keys, each direction has half of the buckets. Source: Raffel et al. 2019, arXiv:1910.10683.

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
    share = torch.log(distance.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (share * (num_buckets - exact)).long()).clamp(max=num_buckets - 1)
    return torch.where(distance < exact, distance, far) + upper


@dataclass(frozen=True)
class KERPLE(EncodingConfig):
    """A bias of -r1 log(1 + r2 |distance|), with r1 and r2 learned for each head and layer.

    Both are exponentials of parameters, so above 0. Initial values are the authors': uniform in (0, 2) and (0, 1).
    Source: Chi et al. 2022, arXiv:2205.09921.

    >>> KERPLE().build(Sizes(8, 2, 4)).of_distance(torch.arange(5)).shape
    torch.Size([2, 5])
    """

    name: ClassVar[str] = "kerple"
    shared: ClassVar[bool] = False

    def build(self, sizes: Sizes) -> Encoding:
        return _Logarithmic(self, sizes)


class _Logarithmic(DistanceBias):
    def __init__(self, config: KERPLE, sizes: Sizes) -> None:
        super().__init__(config)
        self.log_r1 = nn.Parameter(torch.empty(sizes.num_attention_heads))
        self.log_r2 = nn.Parameter(torch.empty(sizes.num_attention_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.log_r1.uniform_(0.01, 2.0).log_()
            self.log_r2.uniform_(0.01, 1.0).log_()

    def of_distance(self, distance: Tensor) -> Tensor:
        exact = torch.promote_types(self.log_r1.dtype, torch.float32)
        r1, r2 = self.log_r1.to(exact).exp()[:, None], self.log_r2.to(exact).exp()[:, None]
        return -r1 * torch.log1p(r2 * distance.abs())


@dataclass(frozen=True)
class FIRE(EncodingConfig):
    """A small network for each layer that maps normalized distances to biases.

    - `width`: features of its hidden layer.
    - `first_c`, `first_threshold` (tokens): initial c and L, as published.

    Our extension for queries that see later keys: distances are absolute, and i is the later of both positions.
    Source: Li et al. 2023, arXiv:2310.04418.

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
        """Reset with torch's initialization of Linear; the small weights of other layers would give almost no bias."""
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
