"""Rotation and attention in plain PyTorch: the definition of every kernel, and what compilers fuse."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.compiled import PLAIN, is_compiling
from ropewalk.rotation.backends.request import AttentionRegion, AttentionRequest, Norm, Store, Turn

name = "reference"
kernels = False
most_regions = sys.maxsize


def reasons_not_to(x: Tensor) -> list[str]:
    """Return no reasons: it can rotate every tensor."""
    return []


def rotate(
    xs: Sequence[Tensor], cos: Tensor, sin: Tensor, turn: Turn, outs: Sequence[Tensor] | None = None
) -> list[Tensor]:
    """Rotate 2 * pairs features of each of `xs`, from `turn.rotary_offset` on, by each token's angles, and scale them.

    Arithmetic in float32, in float64 for float64 `x`; one rounding.
    """
    rotated = _one_token(xs, cos, sin, turn) or [_rotate(x, cos, sin, turn) for x in xs]
    return rotated if outs is None else [out.copy_(new) for out, new in zip(outs, rotated, strict=True)]


def norm_rotate(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, turn: Turn, norm: Norm | None, store: Store | None
) -> tuple[Tensor, Tensor]:
    """Norm, then rotate, in float32 (float64 for float64) with one rounding at the end."""
    dtype = q.dtype
    if norm is not None:
        q, k = (normalised(x, weight, norm.eps) for x, weight in ((q, norm.q_weight), (k, norm.k_weight)))
    q, k = (_rotate(x, cos, sin, turn) for x in (q, k))
    if store is None:
        return q.to(dtype), k.to(dtype)
    for buffer, new in ((store.keys, k), (store.values, store.fresh)):
        new = new[None] if turn.layout == "thd" else new.transpose(1, 2) if turn.layout == "bhsd" else new
        slots = store.slots.expand(new.shape[:2])
        rows, columns = (slots >= 0).nonzero(as_tuple=True)
        buffer[rows, :, slots[rows, columns]] = new[rows, columns].to(buffer.dtype)
    return q.to(dtype), store.keys


def broadcast_rows(cos: Tensor, layout: str) -> Tensor:
    """Return a table that broadcasts against `x[..., :pairs]` of a layout."""
    if layout == "thd":
        return cos[:, None] if cos.ndim == 2 else cos
    if cos.ndim == 4:
        return cos if layout == "bshd" else cos.transpose(1, 2)
    if layout == "bshd":
        return cos.unsqueeze(-2)
    return cos if cos.ndim == 2 else cos.unsqueeze(-3)


def pairs_of(x: Tensor, pairs: int, turn: Turn) -> tuple[Tensor, Tensor]:
    """Return first and second features of every rotated pair, each `[..., pairs]`."""
    window = x[..., turn.rotary_offset : turn.rotary_offset + 2 * pairs]
    if turn.interleaved:
        return window[..., 0::2], window[..., 1::2]
    return window[..., :pairs], window[..., pairs:]


def _joined(first: Tensor, second: Tensor, turn: Turn) -> Tensor:
    """Return the window of rotated features: the inverse of `pairs_of`."""
    if turn.interleaved:
        return torch.stack((first, second), -1).flatten(-2)
    return torch.cat((first, second), -1)


def _one_token(xs: Sequence[Tensor], cos: Tensor, sin: Tensor, turn: Turn) -> list[Tensor] | None:
    """Rotate queries and keys of one token together, for half the time: small operations cost their launch only.

    None for anything else than one token of plain tensors with whole, half-split heads and without gradients.
    """
    q, k, sizes, heads = xs[0], xs[-1], xs[0].shape, -3 if turn.layout == "bhsd" else -2
    if is_compiling() or q.numel() != sizes[-1] * sizes[heads] or cos.numel() != cos.shape[-1]:
        return None
    if turn.interleaved or 2 * cos.shape[-1] != sizes[-1]:
        return None
    if type(q) not in PLAIN or type(k) not in PLAIN:
        return None
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or cos.requires_grad or sin.requires_grad):
        return None
    compute = _compute_dtype(q)
    if cos.dtype != compute:
        cos, sin = cos.to(compute), sin.to(compute)
    if turn.scale != 1.0:
        cos, sin = cos * turn.scale, sin * turn.scale
    cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, -sin) if turn.inverse else (-sin, sin), -1)
    both = q if len(xs) == 1 else torch.cat((q, k), heads)
    new = torch.addcmul(both * cos, both.roll(sizes[-1] // 2, -1), sin)
    new = new if new.dtype == q.dtype else new.to(q.dtype)
    if len(xs) == 1:
        return [new]
    return list(torch.unsafe_split_with_sizes(new, [sizes[heads], k.shape[heads]], heads))  # separate versions


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, turn: Turn) -> Tensor:
    cos, sin = (_placed_as(x, broadcast_rows(table, turn.layout)) for table in (cos, sin))
    compute = _compute_dtype(x)
    cos, sin = cos.to(compute), sin.to(compute)
    if turn.scale != 1.0:
        cos, sin = cos * turn.scale, sin * turn.scale
    pairs = cos.shape[-1]
    a, b = (half.to(compute) for half in pairs_of(x, pairs, turn))
    if turn.inverse:
        sin = -sin
    rotated = _joined(a * cos - b * sin, b * cos + a * sin, turn).to(x.dtype)
    if 2 * pairs == x.shape[-1]:
        return rotated
    last = turn.rotary_offset + 2 * pairs
    return torch.cat((x[..., : turn.rotary_offset], rotated, x[..., last:]), dim=-1)


def normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return RMSNorm of each head in float32 (float64 for float64)."""
    x, weight = x.to(_compute_dtype(x)), weight.to(_compute_dtype(x))
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * _placed_as(x, weight)


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _placed_as(x: Tensor, table: Tensor) -> Tensor:
    """Return a plain table as a replicated DTensor if `x` is a DTensor: each rank has a whole copy already."""
    if type(x) is Tensor or not torch.distributed.is_available():
        return table
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(x, DTensor) or isinstance(table, DTensor):
        return table
    return DTensor.from_local(table, x.device_mesh, [Replicate()] * x.device_mesh.ndim, run_check=False)


def reasons_not_to_attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> list[str]:
    """Return no reasons: it can attend with all tensors."""
    return []


def attend(request: AttentionRequest) -> Tensor:
    """Attend with all scores at once, in float32 (float64 for float64)."""
    q, values = request.regions[0].q, request.values
    groups = q.shape[1] // values.shape[1]
    compute = _compute_dtype(q)
    places = torch.arange(values.shape[2], device=q.device)
    scores = torch.full((), float("-inf"), dtype=compute, device=q.device)
    for region in request.regions:
        keys = rotated_keys(region).to(compute).repeat_interleave(groups, 1)
        logits = region.q.to(compute) @ keys.transpose(-1, -2) * request.scale
        if request.softcap:
            logits = request.softcap * torch.tanh(logits / request.softcap)
        low, high = (bound[:, None, :, None] for bound in region.bounds)
        scores = torch.where((low <= places) & (places < high), logits, scores)
    if request.sinks is not None:
        sinks = request.sinks.to(compute)[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    nothing = (scores == float("-inf")).all(-1, keepdim=True)
    weights = scores.masked_fill(nothing, 0.0).softmax(-1).masked_fill(nothing, 0.0)
    wide = values.to(compute).repeat_interleave(groups, 1)
    return (weights[..., : wide.shape[2]] @ wide).to(q.dtype)


def rotated_keys(region: AttentionRegion) -> Tensor:
    """Return the keys of a region, rotated if it has a turn."""
    if region.turn is None:
        return region.k
    cos, sin, interleaved, factor = region.turn
    return rotate([region.k], cos, sin, Turn(interleaved, factor, False, "bhsd"))[0]
