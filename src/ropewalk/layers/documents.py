"""Packed documents without a mask over whole rows: one kernel for all of them, or one call for each."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import cast

import torch
from torch import Tensor

from ropewalk.layers.attend import NO_RULES, LogitRules
from ropewalk.layers.encoding import Memo
from ropewalk.layers.masks import TokenLayout
from ropewalk.rope.dispatch import PLAIN
from ropewalk.rotation.backends import choose_attention
from ropewalk.rotation.backends.request import AttentionRegion, AttentionRequest, Bounds


@dataclass(frozen=True, eq=False)
class PackedDocuments:
    """The positions of a call's documents after its rows are concatenated and padding is removed.

    - `lengths`: real tokens of each document, row by row; `rows`: the row of each document.
    - `index`: int64 `[tokens]`, each real token's place among `batch * seq`; None if all are real.
    - `offsets`: int32 `[documents + 1]`, the beginning of each document, and the end.
    """

    batch: int
    seq: int
    lengths: tuple[int, ...]
    rows: tuple[int, ...]
    index: Tensor | None = field(repr=False)
    offsets: Tensor = field(repr=False)
    _memo: Memo = field(init=False, repr=False, default_factory=Memo)

    def pack(self, x: Tensor) -> Tensor:
        """Return `[batch, seq, ...]` as `[tokens, ...]`."""
        flat = x.reshape(self.batch * self.seq, *x.shape[2:])
        return flat if self.index is None else flat.index_select(0, self.index)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return one tensor for each document of `[tokens, ...]`."""
        return torch.split(x, list(self.lengths))

    def bounds(self, causal: bool, window: int | None) -> Bounds:
        """Return the keys visible to each packed query: those of its document, in order and in the window."""
        return self._memo((causal, window), lambda: self._bounds(causal, window))

    def _bounds(self, causal: bool, window: int | None) -> Bounds:
        ends = self.offsets.long()
        lengths = ends.diff()
        low, high = (edge.repeat_interleave(lengths) for edge in (ends[:-1], ends[1:]))
        index = torch.arange(len(low), device=low.device)
        if window is not None:
            low = torch.maximum(low, index - (window - 1 if causal else window))
        if causal:
            high = index + 1
        elif window is not None:
            high = torch.minimum(high, index + window + 1)
        return Bounds(low[None], high[None])

    def unpack(self, x: Tensor) -> Tensor:
        """Return `[tokens, ...]` as `[batch, seq, ...]`, with zeros at padding."""
        if self.index is not None:
            x = x.new_zeros(self.batch * self.seq, *x.shape[1:]).index_copy(0, self.index, x)
        return x.view(self.batch, self.seq, *x.shape[1:])


def find_documents(layout: TokenLayout) -> PackedDocuments | None:
    """Return the documents of a call; None if it has none, or if their lengths are unknown (as while compiling).

    It synchronizes with the device once per forward.
    """
    if layout.documents is None or not _is_readable(layout.documents):
        return None
    rows = torch.arange(layout.batch, device=layout.device)[:, None] * (layout.seq + 1)
    numbers, index = (layout.documents + rows).flatten(), None
    if layout.real is not None:
        index = layout.real.flatten().nonzero()[:, 0]
        numbers = numbers[index]
    documents, counts = torch.unique_consecutive(numbers, return_counts=True)
    offsets = torch.zeros(len(counts) + 1, dtype=torch.int32, device=layout.device)
    offsets[1:] = counts.cumsum(0)
    of_rows = (documents // (layout.seq + 1)).tolist()
    return PackedDocuments(layout.batch, layout.seq, tuple(counts.tolist()), tuple(of_rows), index, offsets)


def _is_readable(x: Tensor) -> bool:
    """Return whether the values of a tensor exist and would not become constants of a graph."""
    return (
        not torch.compiler.is_compiling()
        and type(x) in PLAIN
        and x.device.type != "meta"
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._get_tracing_state() is None
    )


def attend_varlen(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    documents: PackedDocuments,
    causal: bool,
    window: int | None,
    rules: LogitRules = NO_RULES,
) -> Tensor | None:
    """Attend within all documents in one call of our kernels or torch's varlen kernel; return None if neither can run.

    **Arguments:** `q` `[tokens, heads, head_dim]`; `keys` and `values` `[tokens, kv_heads, head_dim]`.

    **Returns:** `[tokens, heads, head_dim]`, or None. torch's kernel supports 16 bits on CUDA from Ampere on. It is not
    used with deterministic algorithms, nor with `rules`.
    """
    if not documents.lengths:
        return None
    kernel = varlen_kernel(q) if rules.none else None
    wide, k, v = (x[None].transpose(1, 2) for x in (q, keys, values))
    ours = choose_attention(wide, k, v, sinks=rules.sinks, torch_serves=kernel is not None)
    if ours.kernels:
        region = AttentionRegion(wide, k, documents.bounds(causal, window))
        request = AttentionRequest((region,), v, 1.0 / math.sqrt(q.shape[-1]), *rules)
        return ours.attend(request)[0].transpose(0, 1)
    if kernel is None:
        return None
    if causal:
        reach = (-1 if window is None else window - 1, 0)
    else:
        reach = (-1, -1) if window is None else (window, window)
    longest, options = max(documents.lengths), {}
    if q.shape[1] != keys.shape[1]:
        if _knows_grouped_queries(kernel):
            options["enable_gqa"] = True
        else:  # torch 2.11
            keys, values = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (keys, values))
    return kernel(
        q, keys, values, documents.offsets, documents.offsets, longest, longest, window_size=reach, **options
    )  # fmt: skip


def varlen_kernel(q: Tensor) -> Callable[..., Tensor] | None:
    """Return `torch.nn.attention.varlen.varlen_attn` if it supports `q`, else None."""
    if q.device.type != "cuda" or q.dtype not in (torch.float16, torch.bfloat16):
        return None
    if q.shape[-1] % 8 or q.shape[-1] > 256 or torch.are_deterministic_algorithms_enabled():
        return None
    return _varlen_attn() if torch.cuda.get_device_capability(q.device) >= (8, 0) else None


@cache
def _varlen_attn() -> Callable[..., Tensor] | None:
    """Return torch's function, or None if it is missing or has no windows, as in early releases."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    return cast(Callable[..., Tensor], varlen_attn) if "window_size" in known else None


def _knows_grouped_queries(kernel: Callable[..., Tensor]) -> bool:
    """Return whether the kernel supports fewer heads of keys than of queries."""
    return "enable_gqa" in inspect.signature(kernel).parameters
