"""The interface of all encodings: change embeddings, rotate queries and keys, or add to scores."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError

ValueT = TypeVar("ValueT")


class Memo:
    """Values by key, for the layers of one forward; a tensor that has a gradient is computed each time and not kept.

    Activation checkpointing runs a layer a second time. What the first run had kept would then be missing from the
    graph, or would be a part of two graphs. The grad mode belongs to the key: a constant made without gradients does
    not stand for one made with them.

    >>> memo = Memo()
    >>> memo("zeros", lambda: torch.zeros(2)) is memo("zeros", lambda: torch.zeros(2))
    True
    >>> weight = torch.ones(2, requires_grad=True)
    >>> memo("double", lambda: 2 * weight) is memo("double", lambda: 2 * weight)
    False
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Hashable, bool], object] = {}

    def __call__(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """The value under `key`; `make` computes it where there is none yet."""
        full_key = (key, torch.is_grad_enabled())
        if full_key in self._values:
            return cast(ValueT, self._values[full_key])
        value = make()
        if not _has_gradient(value):
            self._values[full_key] = value
        return value


def _has_gradient(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, tuple | list) and any(_has_gradient(part) for part in value)


class Sizes(NamedTuple):
    """What an encoding is built for: a layer's sizes, and whether queries see later keys."""

    hidden_size: int
    num_attention_heads: int
    head_dim: int
    causal: bool = True


class Places:
    """Positions of the queries and keys of one call, int64 `[seq]` and `[keys]`, or `[batch, ...]` both.

    Layers share one and its `memo`. `run` is (first query, first key) where both count on by one from there. `span`
    bounds query - key from below and above where a compiler may not read the positions.
    """

    def __init__(
        self,
        queries: Tensor,
        keys: Tensor,
        *,
        run: tuple[int, int] | None = None,
        span: tuple[int, int] | None = None,
        memo: Memo | None = None,
    ) -> None:
        if queries.is_floating_point() or queries.ndim not in (1, 2) or queries.ndim != keys.ndim:
            raise RopeError(
                "Attention: this encoding counts tokens: its `position_ids` are integers [seq] or [batch, seq].",
                facts={"position_ids": queries},
                cure="Real or several coordinates need a RopeConfig.",
            )
        self.queries, self.keys, self.run, self._span = queries, keys, run, span
        self.memo = Memo() if memo is None else memo

    @property
    def distance(self) -> Tensor:
        """query - key, int64 `[seq, keys]` or `[batch, seq, keys]`; negative for later keys."""
        return self.memo("distance", lambda: self.queries[..., :, None] - self.keys[..., None, :])

    def span(self) -> tuple[int, int]:
        """The least query - key, or less, and the greatest, or more."""
        if self.run is not None:
            first_query, first_key = self.run
            nearest = first_query - first_key
            return nearest - self.keys.shape[-1] + 1, nearest + self.queries.shape[-1] - 1
        if self._span is not None:
            return self._span
        if not self.distance.numel():
            return 0, 0
        least, most = self.distance.aminmax()
        return int(least), int(most)


class Encoding(nn.Module):
    """One way to let a model know the order of its tokens. Each of its three doors may leave things as they are."""

    in_embeddings: ClassVar[bool] = False
    """Whether it acts on embeddings: once in a model, before its first layer."""

    adds_to_scores: ClassVar[bool] = False
    """Whether `biased` gives something to add to scores."""

    by_slots: ClassVar[bool] = False
    """Whether it knows positions by the slots of queries and keys alone: then tokens of a cache can move."""

    def __init__(self, config: EncodingConfig) -> None:
        super().__init__()
        self.config = config

    def extra_repr(self) -> str:
        return repr(self.config)

    def embedded(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Token embeddings `[batch, seq, hidden]` with what the encoding adds to them."""
        return x

    def turned(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys `[batch, seq, heads, head_dim]` of the same new tokens, before keys go into a cache."""
        return q, k

    def biased(self, q: Tensor, places: Places) -> tuple[Tensor, Tensor | None]:
        """Queries as they meet the keys, and what is added to scores (after 1/sqrt(head_dim)), or None.

        The second is `[heads, seq, keys]` or `[batch, heads, seq, keys]`.
        """
        return q, self.score_bias(places, q.dtype)

    def score_bias(self, places: Places, dtype: torch.dtype) -> Tensor | None:
        """What is added to scores whatever the queries hold, `[heads, seq, keys]` or `[batch, heads, seq, keys]`.

        A model whose layers share one encoding computes it once for each forward and passes it to its layers.
        """
        return None

    def reset_parameters(self) -> None:
        """Draw what is learned anew, where it is neither a Linear nor an Embedding."""


class DistanceBias(Encoding):
    """A bias that is a function of the distance alone, for each head."""

    adds_to_scores: ClassVar[bool] = True
    by_slots: ClassVar[bool] = True

    def of_distance(self, distance: Tensor) -> Tensor:
        """Bias `[heads, n]` of int64 distances `[n]`, query - key."""
        raise AssertionError("each bias says its own")

    def score_bias(self, places: Places, dtype: torch.dtype) -> Tensor:
        """Each distance's bias computed once, then laid out for every query and key."""
        device = places.queries.device
        if places.run is not None:
            seq, keys = places.queries.shape[-1], places.keys.shape[-1]
            first_query, first_key = places.run
            nearest = first_query - (first_key + keys - 1)
            distances = torch.arange(nearest + seq + keys - 2, nearest - 1, -1, device=device)
            by_distance = self.of_distance(distances).to(dtype)
            return by_distance.unfold(-1, keys, 1).flip(-2)  # a query's row slides by one from the last one's
        least, most = places.span()
        by_distance = self.of_distance(torch.arange(least, most + 1, device=device)).to(dtype)
        spread = by_distance[:, places.distance - least]
        return spread if spread.ndim == 3 else spread.transpose(0, 1)


@dataclass(frozen=True)
class EncodingConfig:
    """An encoding's settings; `build` makes its module. `shared`: one for all layers, or one for each."""

    name: ClassVar[str]
    shared: ClassVar[bool] = True

    def build(self, sizes: Sizes) -> Encoding:
        """The module for layers of these sizes; raises `RopeError` where it cannot serve them."""
        raise AssertionError("each encoding builds its own")


def check_positive(name: str, **numbers: int | float | None) -> None:
    """Every number is above 0, or a RopeError names the one that is not."""
    for key, value in numbers.items():
        if value is not None and not value > 0:
            raise RopeError(
                f"{name}: `{key}` must be above 0.", facts={key: value}, cure="Leave it out for the default."
            )
