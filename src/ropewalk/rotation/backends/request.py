"""The arguments of a backend besides tensors, and the protocol of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

AXES = {"bshd": (1, 2), "bhsd": (2, 1), "thd": (0, 1)}
"""The dimensions of tokens and heads in each layout."""


class Turn(NamedTuple):
    """The options of a rotation: pairing, factor, direction and layout.

    `rotary_offset`: the first rotated feature.
    """

    interleaved: bool
    scale: float
    inverse: bool
    layout: str
    rotary_offset: int = 0

    def transposed(self) -> Turn:
        """Return the rotation of a gradient: by the negative angle."""
        return self._replace(inverse=not self.inverse)


class Norm(NamedTuple):
    """RMSNorm of each head before the rotation: weights `[head_dim]` of any float dtype, and epsilon."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float


class Store(NamedTuple):
    """A cache's buffers, to which rotated keys and unchanged values are written.

    - `keys`, `values`: `[batch, kv_heads, capacity, head_dim]` in the dtype of the new keys, with any strides except 1
      for the features.
    - `fresh`: the new values, of the shape of the new keys in the call's layout.
    - `slots`: int64 `[batch or 1, seq]` (thd: `[1, tokens]`), each token's place, below capacity; below 0 is skipped.

    >>> import torch, ropewalk as rw
    >>> buffers = torch.zeros(2, 1, 2, 16, 4)  # keys and values of one row: two heads, 16 tokens
    >>> q, k, v, weight = torch.randn(1, 1, 8, 4), torch.randn(1, 1, 2, 4), torch.ones(1, 1, 2, 4), torch.ones(4)
    >>> cos, sin = torch.ones(1, 2), torch.zeros(1, 2)
    >>> store = rw.fused.Store(buffers[0], buffers[1], v, torch.tensor([[5]]))  # the sixth token
    >>> q, keys = rw.fused.qk_norm_rotate(q, k, weight, weight, cos, sin, interleaved=False, store=store)
    >>> buffers[1, 0, 0, :, 0].tolist()
    [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """

    keys: Tensor
    values: Tensor
    fresh: Tensor
    slots: Tensor


class Bounds(NamedTuple):
    """The keys `low <= j < high` that each query sees: int64 `[1 or batch, queries]` each; `low >= high`: none."""

    low: Tensor
    high: Tensor


class KeyTurn(NamedTuple):
    """The rotation of keys when a kernel loads them: cos, sin float32 `[keys, pairs]` or `[batch or 1, keys, pairs]`.

    `scale` multiplies the rotated features, as in `rotate`.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    scale: float


class AttentionRegion(NamedTuple):
    """Queries and keys that see each other within bounds.

    q `[batch, heads, queries, head_dim]`, k `[batch, kv_heads, keys, head_dim]`. Several regions share one softmax;
    their bounds must not overlap.
    """

    q: Tensor
    k: Tensor
    bounds: Bounds
    turn: KeyTurn | None = None


class AttentionRequest(NamedTuple):
    """softmax(scale q k^T) v over the keys that each query sees; a query that sees none gets zeros.

    - `regions`: at least one, of the same shapes and dtype.
    - `values`: `[batch, kv_heads, keys, head_dim]`; query head h reads key head h // (heads / kv_heads).
    - `scale`: of the logits, greater than 0.
    - `softcap`: logits become softcap tanh(logit / softcap) (Gemma 2); 0 for none.
    - `sinks`: `[heads]`, floats: a logit in each head's softmax that takes weight and adds no value (gpt-oss).
    """

    regions: tuple[AttentionRegion, ...]
    values: Tensor
    scale: float
    softcap: float
    sinks: Tensor | None


@runtime_checkable
class Backend(Protocol):
    """One implementation of rotation. Arguments have been checked; `rotate` documents the tables.

    - `kernels`: hand-written kernels, without their own autograd, which write into given tensors.
    """

    name: str
    kernels: bool

    def reasons_not_to(self, x: Tensor) -> list[str]:
        """Return why this backend cannot rotate `x` now; empty if it can."""

    def rotate(
        self, xs: Sequence[Tensor], cos: Tensor, sin: Tensor, turn: Turn, outs: Sequence[Tensor] | None = None
    ) -> Sequence[Tensor]:
        """Rotate one or two tensors of one dtype by the same tables, into `outs` (which may be `xs`) or new tensors."""

    def norm_rotate(
        self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm | None, store: Store | None
    ) -> tuple[Tensor, Tensor]:
        """Norm (if any), then rotate; with `store`, write keys and values there and return its keys."""


@runtime_checkable
class AttentionBackend(Protocol):
    """One implementation of attention by regions.

    - `kernels`: whether it stores no scores; False for the definition.
    - `most_regions`: limit of one call to `attend`.
    """

    name: str
    kernels: bool
    most_regions: int

    def reasons_not_to_attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> list[str]:
        """Return why this backend cannot attend with such tensors now; empty if it can.

        q `[batch, heads, queries, head_dim]`, k and v `[batch, kv_heads, keys, head_dim]`, sinks `[heads]`.
        """

    def attend(self, request: AttentionRequest) -> Tensor:
        """Return `[batch, heads, queries, head_dim]` in the queries' dtype."""


def token_strides(x: Tensor, layout: str) -> tuple[int, int, int, int]:
    """Return strides of batch (any for thd, which is one), token, head and feature of a tensor, in elements."""
    strides, (token, head) = x.stride(), AXES[layout]
    return strides[0], strides[token], strides[head], strides[-1]


def steps(x: Tensor) -> tuple[int, ...]:
    """Return strides of a tensor, in elements; 0 for dimensions of size 1."""
    return tuple(stride if size > 1 else 0 for stride, size in zip(x.stride(), x.shape, strict=True))


def table_strides(table: Tensor, layout: str) -> tuple[int, int, int]:
    """Return strides of batch, token and head of cos or sin, in elements; 0 if one row serves all."""
    rows = steps(table)[:-1]
    batch, token, head = (*((0,) if len(rows) == 1 or layout == "thd" else ()), *rows, 0)[:3]
    return batch, token, head
