"""Attention in plain PyTorch, written out: the definition that every kernel must agree with."""

from __future__ import annotations

import torch
from torch import Tensor

from ropewalk.backends import reference
from ropewalk.backends.attention_request import AttentionRegion, AttentionRequest
from ropewalk.backends.request import Turn

name = "reference"
kernels = False
before_torch = False
most_regions = 1 << 30


def reasons_not_to_attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> list[str]:
    """Why this backend could not attend: it always can."""
    return []


def attend(request: AttentionRequest) -> Tensor:
    """All scores at once, in float32 (float64 for float64)."""
    q, values = request.regions[0].q, request.values
    groups = q.shape[1] // values.shape[1]
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    scale = request.scale if isinstance(request.scale, float) else request.scale[:, None, :, None].to(compute)
    places = torch.arange(values.shape[2], device=q.device)
    scores = torch.full((), float("-inf"), dtype=compute, device=q.device)
    for region in request.regions:
        keys = _turned(region).to(compute).repeat_interleave(groups, 1)
        logits = region.q.to(compute) @ keys.transpose(-1, -2) * scale
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


def _turned(region: AttentionRegion) -> Tensor:
    if region.turn is None:
        return region.k
    cos, sin, interleaved, factor = region.turn
    return reference.rotate([region.k], cos, sin, Turn(interleaved, factor, False, "bhsd"))[0]
