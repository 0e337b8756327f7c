"""Attention of GPU tensors by torch's flex attention: one call for each region, merged by their log-sum-exps."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropewalk.compiled import reasons_for_mathematics
from ropewalk.rotation.backends.reference import rotated_keys
from ropewalk.rotation.backends.request import AttentionRequest, Bounds

name = "flex"
kernels = True
most_regions = sys.maxsize

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FEWEST_QUERIES = 128  # fewer make few scores, and a compiled form for each number of keys would cost more
BLOCK = 128  # queries and keys of a block of the mask
_LEAST = -1e30  # the log-sum-exp of a row without keys, finite so that gradients are


def reasons_not_to_attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> list[str]:
    """Return why flex attention does not attend with such tensors; empty if it does. It has its own gradients."""
    tensors = [x for x in (q, k, v, sinks) if x is not None]
    reasons = [reason for x in tensors for reason in reasons_for_mathematics(x)]
    if not all(x.is_cuda for x in tensors):
        reasons.append(f"`q` is on {q.device.type}, not on a GPU, or devices differ")
    if not q.dtype == k.dtype == v.dtype or q.dtype not in DTYPES:
        reasons.append(f"dtypes {q.dtype}, {k.dtype}, {v.dtype} are not one of float32, bfloat16 and float16")
    if q.shape[2] < FEWEST_QUERIES:
        # without their number: a compiler that prints a size makes a graph for each
        reasons.append(f"scores of fewer than {FEWEST_QUERIES} queries are small")
    return reasons


def attend(request: AttentionRequest) -> Tensor:
    """Attend within each region, and merge the results; gradients reach queries, keys, values and sinks."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    attend_region: Any = _compiled() if request.values.is_cuda else flex_attention
    values, softcap = request.values, _softcap(request.softcap) if request.softcap else None
    parts: list[tuple[Tensor, Tensor]] = []
    for region in request.regions:
        out, aux = attend_region(
            region.q, rotated_keys(region), values, score_mod=softcap, scale=request.scale,
            block_mask=block_mask(region.bounds, values.shape[2]), enable_gqa=True, return_aux=AuxRequest(lse=True),
        )  # fmt: skip
        parts.append((out, aux.lse.float().clamp(min=_LEAST)))
    sums = [total for _, total in parts]
    if request.sinks is not None:
        sums.append(request.sinks.float()[None, :, None].expand_as(sums[0]))
    if len(sums) == 1:
        return parts[0][0]
    shares = torch.stack(sums).softmax(0)
    whole = sum(out.float() * share[..., None] for (out, _), share in zip(parts, shares, strict=False))
    assert isinstance(whole, Tensor)
    return whole.to(values.dtype)


def block_mask(bounds: Bounds, keys: int) -> Any:
    """Return the `BlockMask` of keys `low <= j < high`, from the bounds of each block of queries, without all pairs."""
    from torch.nn.attention.flex_attention import BlockMask

    batch, queries = max(len(bounds.low), len(bounds.high)), bounds.low.shape[1]
    low, high = (edge.expand(batch, -1).contiguous() for edge in bounds)
    rows = torch.arange(-(-queries // BLOCK) * BLOCK, device=low.device).clamp(max=queries - 1)
    lows, highs = (edge[:, rows].view(batch, -1, BLOCK) for edge in (low, high))
    places = torch.arange(-(-keys // BLOCK), device=low.device)[None, None] * BLOCK
    ends = places + BLOCK
    some = (lows.amin(-1, keepdim=True) < ends) & (highs.amax(-1, keepdim=True) > places)
    every = (lows.amax(-1, keepdim=True) <= places) & (highs.amin(-1, keepdim=True) >= ends)
    (masked, at_masked), (whole, at_whole) = (_counted(chosen[:, None]) for chosen in (some & ~every, every))

    def seen(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        row = row if batch > 1 else 0 * row
        inside: Tensor = (low[row, query] <= key) & (key < high[row, query])
        return inside

    return BlockMask.from_kv_blocks(
        masked, at_masked, whole, at_whole, BLOCK_SIZE=BLOCK, mask_mod=seen, seq_lengths=(queries, keys)
    )


def _counted(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number of chosen blocks of keys in each row of blocks, and all blocks, the chosen ones first."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _softcap(cap: float) -> Callable[..., Tensor]:
    def capped(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return capped


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)
