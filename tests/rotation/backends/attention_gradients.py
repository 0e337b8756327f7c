"""The truth about attention's gradients: the definition in float64, differentiated by torch, and what rounding may do.

Nothing of the package is used. The bound is the same sum with absolute values, times the relative errors of its factors
to first order: float32 (u = 2^-24) for products, sums and powers, and for 16 bits the rounding of weights, of logits'
gradients, of the kept result and of what is given back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.rotation.backends.attention_truth import HALF_UNIT, POWER, TILE, U

RESULT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@dataclass(frozen=True)
class Meets:
    """One region: queries, keys, bool `[batch, queries, keys]`."""

    q: Tensor
    k: Tensor
    seen: Tensor


@dataclass(frozen=True)
class Truth:
    """A gradient and by how much it may be missed."""

    expected: Tensor
    off: Tensor

    def check(self, found: Tensor, what: str) -> None:
        """Raises AssertionError where a number is out of bounds."""
        wrong = ~((found.double() - self.expected).abs() <= self.off)
        assert not wrong.any(), f"{what}: {int(wrong.sum())} of {wrong.numel()} are wrong"


def gradients(
    regions: list[Meets], v: Tensor, scale: float | Tensor, softcap: float, sinks: Tensor | None, grad: Tensor
) -> list[Truth]:
    """Of each region's queries and keys, then of values and sinks; `scale` is a number or `[batch, queries]`."""
    dtype, groups = v.dtype, regions[0].q.shape[1] // v.shape[1]
    leaves = [x.double().requires_grad_() for region in regions for x in (region.q, region.k)]
    values = v.double().requires_grad_()
    logits_of_sinks = None if sinks is None else sinks.double().requires_grad_()
    factor = scale if isinstance(scale, float) else scale.double()[:, None, :, None]
    scores: Tensor = torch.full((), float("-inf"), dtype=torch.float64)
    slips, slopes = torch.zeros(()), []
    for region, q, k in zip(regions, leaves[::2], leaves[1::2], strict=True):
        wide, seen = k.repeat_interleave(groups, 1), region.seen[:, None]
        logits = q @ wide.mT * factor
        slip = (q.shape[-1] + 6) * U * (q.detach().abs() @ wide.detach().abs().mT * factor)
        slope = torch.ones_like(logits)
        if softcap:
            slope = slope - (logits / softcap).tanh().square() + 1e-6
            slip, logits = slip + 2e-6 * softcap, softcap * (logits / softcap).tanh()
        scores, slips = torch.where(seen, logits, scores), torch.where(seen, slip.double(), slips)
        slopes.append((slope.detach(), seen))
    if logits_of_sinks is not None:
        scores = torch.cat([scores, logits_of_sinks[:, None, None].expand(*scores.shape[:3], 1)], -1)
    empty = (scores == float("-inf")).all(-1, keepdim=True)
    weights = scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)[..., : v.shape[2]]
    wide_v = values.repeat_interleave(groups, 1)
    out, g = weights @ wide_v, grad.double()
    wanted = [*leaves, values, *([] if logits_of_sinks is None else [logits_of_sinks])]
    found = torch.autograd.grad(out, wanted, g, allow_unused=True)

    p, half = weights.detach(), HALF_UNIT[dtype] if dtype == torch.bfloat16 else 0.0
    far = torch.where(p > 0, (-p.clamp(min=1e-300).log()), 0.0)
    of_weights = 2 * slips.amax(-1, keepdim=True) + slips + 4 * U * (far + 12) + POWER  # relative
    sums = (v.shape[-1] + TILE + 4 * v.shape[2] / TILE + 8) * U + 2 * groups * v.shape[2] * U
    size_of_p = (g.abs() @ wide_v.detach().abs().mT) + (out.detach().abs() * g.abs()).sum(-1, keepdim=True)
    of_out = out.detach().abs() * RESULT[dtype] + p @ wide_v.detach().abs() * half  # the result as it was rounded
    kept = (of_out * g.abs()).sum(-1, keepdim=True)
    missed = p * (size_of_p * (of_weights + sums + half) + kept)

    def by_key_heads(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, groups)).sum(2)

    offs = []
    for (slope, seen), q, k in zip(slopes, leaves[::2], leaves[1::2], strict=True):
        ds = torch.where(seen, missed + 8 * U * p * size_of_p, 0.0) * slope * factor
        at = torch.where(seen, p * size_of_p, 0.0) * slope * factor * (sums + half)
        if softcap:  # the slope's own error
            ds = ds + torch.where(seen, p * size_of_p * (2 * slips / softcap + 4e-6), 0.0) * factor
        wide = k.detach().abs().repeat_interleave(groups, 1)
        offs += [(ds + at) @ wide, by_key_heads((ds + at).mT @ q.detach().abs())]
    parts = 2 * RESULT[dtype] if len(regions) > 1 else 0.0  # each region's part is rounded
    offs.append(by_key_heads((p * (of_weights + sums + half + parts)).mT @ g.abs()))
    if logits_of_sinks is not None:
        share = 1.0 - p.sum(-1, keepdim=True)
        off = (
            share * (kept + size_of_p.amax(-1, keepdim=True) * (of_weights.amax(-1, keepdim=True) + sums)) + 1e-6 * kept
        )
        offs.append(off.sum((0, 2, 3)) + 2e-6 * (share * size_of_p.amax(-1, keepdim=True)).sum((0, 2, 3)))
    truths = []
    for x, expected, off in zip(wanted, found, offs, strict=True):
        exact = torch.zeros_like(x) if expected is None else expected
        dtype_of = torch.float32 if x is logits_of_sinks else dtype
        truths.append(
            Truth(exact, 1.05 * off + exact.abs() * RESULT[dtype_of] + 1e-7 * (dtype == torch.float16) + 1e-30)
        )
    return truths
