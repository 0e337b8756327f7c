"""What a backend is asked for in attention: queries, keys and values, and which keys each query meets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Bounds(NamedTuple):
    """The keys `low <= j < high` that each query meets: int64 `[1 or batch, queries]` each; `low >= high`: none."""

    low: Tensor
    high: Tensor


class KeyTurn(NamedTuple):
    """How keys are rotated when they are read: cos and sin float32 `[keys, pairs]` or `[batch or 1, keys, pairs]`.

    `factor` multiplies the features that turn, as `rotate(..., scale=factor)` does.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool
    factor: float = 1.0


class AttentionRegion(NamedTuple):
    """Queries and keys that meet within bounds.

    q `[batch, heads, queries, head_dim]`, k `[batch, kv_heads, keys, head_dim]`. Several regions share one softmax;
    their bounds must not overlap.
    """

    q: Tensor
    k: Tensor
    bounds: Bounds
    turn: KeyTurn | None = None


class AttentionRequest(NamedTuple):
    """softmax(scale q k^T) v over the keys that each query meets; a query that meets none gets zeros.

    - `regions`: at least one, of the same shapes and dtype.
    - `values`: `[batch, kv_heads, keys, head_dim]`; query head h reads key head h // (heads / kv_heads).
    - `scale`: of the logits, greater than 0: a float, or float32 `[1 or batch, queries]`.
    - `softcap`: logits become softcap tanh(logit / softcap); 0: as they are (Gemma 2).
    - `sinks`: `[heads]`, floats: a logit in each head's softmax that takes weight and gives nothing (gpt-oss).
    """

    regions: tuple[AttentionRegion, ...]
    values: Tensor
    scale: float | Tensor
    softcap: float = 0.0
    sinks: Tensor | None = None

    def tensors(self) -> Iterator[Tensor]:
        """Queries, keys and values."""
        for region in self.regions:
            yield region.q
            yield region.k
        yield self.values


@runtime_checkable
class AttentionBackend(Protocol):
    """One way to compute attention. Shapes have been checked."""

    name: str
    kernels: bool  # written by hand: without autograd
    before_torch: bool  # preferred to torch's fused attention where that serves as well
    most_regions: int

    def reasons_not_to_attend(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> list[str]:
        """Why queries, keys, values and sinks like these cannot be taken here and now; empty if they can."""

    def attend(self, request: AttentionRequest) -> Tensor:
        """`[batch, heads, queries, head_dim]` in the queries' dtype."""


@runtime_checkable
class AttentionKernels(AttentionBackend, Protocol):
    """A backend whose kernels are written by hand: it also has the gradients, which autograd cannot find."""

    def attend(self, request: AttentionRequest, log_sums: Tensor | None = None) -> Tensor:
        """As above; into `log_sums`, float32 `[batch, heads, queries]`, go the logarithms of the softmaxes' sums."""

    def attend_backward(
        self, request: AttentionRequest, region: AttentionRegion, log_sums: Tensor, less: Tensor, grad: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of one region's queries and keys, and its part of the values', from the gradient of the result.

        `log_sums` as `attend` wrote them; `less`: the sum over features of result times `grad`, float32 `[batch, heads,
        queries]`.
        """
