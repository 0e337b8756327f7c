"""The interface of all encodings, which change embeddings, queries and keys, or scores."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ropewalk.attention.masks import Memo
from ropewalk.errors import RopeError
from ropewalk.rope.values import check_positive


class Sizes(NamedTuple):
    """A layer's sizes, and whether its attention is causal."""

    hidden_size: int
    num_attention_heads: int
    head_dim: int
    causal: bool = True


class Places:
    """Positions of the queries and keys of one call, shared by all layers.

    - `queries`, `keys`: int64 `[seq]` and `[keys]`, or `[batch, seq]` and `[batch, keys]`.
    - `run`: (first query, first key) if the positions of both are consecutive; unused without any.
    - `memo`: shared with other calls.
    """

    def __init__(
        self,
        queries: Tensor,
        keys: Tensor,
        *,
        run: tuple[int, int] | None = None,
        memo: Memo | None = None,
    ) -> None:
        if queries.is_floating_point() or queries.ndim not in (1, 2) or queries.ndim != keys.ndim:
            raise RopeError(
                "Attention: `position_ids` of this encoding must be integers [seq] or [batch, seq].",
                facts={"position_ids": queries},
                cure="Real or several coordinates need a RopeConfig.",
            )
        self.queries, self.keys = queries, keys
        self.run = run if queries.numel() and keys.numel() else None
        self.memo = Memo() if memo is None else memo

    @property
    def distance(self) -> Tensor:
        """Return query - key, int64 `[seq, keys]` or `[batch, seq, keys]`; negative for later keys."""
        return self.memo("distance", lambda: self.queries[..., :, None] - self.keys[..., None, :])

    def span(self) -> tuple[int, int]:
        """Return a lower and an upper bound of query - key."""
        if self.run is not None:
            first = self.run[0] - self.run[1]
            return first - len(self.keys) + 1, first + len(self.queries) - 1
        if not self.distance.numel():
            return 0, 0
        least, most = self.distance.aminmax()
        return int(least), int(most)


class Encoding(nn.Module):
    """A position encoding; each of its three methods may return its inputs unchanged."""

    in_embeddings: ClassVar[bool] = False
    """Whether it changes embeddings, once in a model, before the first layer."""

    adds_to_scores: ClassVar[bool] = False
    """Whether `biased` returns a bias of scores."""

    def __init__(self, config: EncodingConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config = config

    def extra_repr(self) -> str:
        return repr(self.config)

    def embedded(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Return token embeddings `[batch, seq, hidden]` with the encoding added."""
        return x

    def encoded(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return encoded queries and keys `[batch, seq, heads, head_dim]` of new tokens, before keys enter a cache."""
        return q, k

    def biased(self, q: Tensor, places: Places) -> tuple[Tensor, Tensor | None]:
        """Return queries, and a bias of scores (after 1/sqrt(head_dim)) or None.

        The bias is `[heads, seq, keys]` or `[batch, heads, seq, keys]`.
        """
        return q, self.score_bias(places, q.dtype)

    def score_bias(self, places: Places, dtype: torch.dtype) -> Tensor | None:
        """Return the bias of `biased` if it does not depend on queries, else None.

        A model with one encoding for all layers computes it once for each forward.
        """
        return None

    def reset_parameters(self) -> None:
        """Reset the learned parameters that belong to neither a Linear nor an Embedding."""


class DistanceBias(Encoding):
    """A bias for each head that depends only on the distance."""

    adds_to_scores: ClassVar[bool] = True

    def of_distance(self, distance: Tensor) -> Tensor:
        """Return the bias `[heads, n]` of int64 distances `[n]`, query - key."""
        raise AssertionError("subclasses define it")

    def score_bias(self, places: Places, dtype: torch.dtype) -> Tensor:
        """Return the bias of every query and key, computed once for each distance."""
        least, most = places.span()
        by_distance = self.of_distance(torch.arange(most, least - 1, -1, device=places.queries.device)).to(dtype)
        if places.run is not None:
            return by_distance.unfold(-1, len(places.keys), 1).flip(-2)  # a query's row is the previous one, shifted
        spread = by_distance[:, most - places.distance]
        return spread if spread.ndim == 3 else spread.transpose(0, 1)


@dataclass(frozen=True)
class EncodingConfig:
    """The settings of an encoding. `shared`: all layers share one module; else each layer has its own."""

    name: ClassVar[str]
    module: ClassVar[type[Encoding]]
    shared: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raise `RopeError` unless all numbers are positive."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        check_positive(type(self).__name__, **{name: n for name, n in values.items() if type(n) in (int, float)})

    def build(self, sizes: Sizes) -> Encoding:
        """Return the module for layers of these sizes; raise `RopeError` if it does not support them."""
        return self.module(self, sizes)


def known_range(numbers: Tensor) -> tuple[int, int]:
    """Return the least and the greatest integer of a tensor on the CPU, for checks of its values.

    It is (0, 0) for an empty tensor, under a compiler, and on other devices, which would have to wait.
    """
    if torch.compiler.is_compiling() or numbers.device.type != "cpu" or not numbers.numel():
        return 0, 0
    least, greatest = numbers.aminmax()
    return int(least), int(greatest)
