"""The truth about a call of attention: float64 in numpy, and what rounding may do to it.

Nothing of the package is used. The bound follows the arithmetic that a kernel may use, to first order in its
roundings: products and sums in float32 (u = 2^-24), a softmax over tiles of 64 keys, weights and turned keys once
rounded to the dtype of 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from tests.rotation.backends.truth import OF_THE_PAIR, Allowed, Array, turn, wide

U = 2.0**-24
HALF_UNIT = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 0.0}
POWER = 3e-7  # relative error that 2^x may have
TILE = 64


@dataclass(frozen=True)
class Met:
    """Queries and keys of one region as numbers; `turned`: cos, sin `[batch, keys, pairs]`, interleaved, factor."""

    q: torch.Tensor
    k: torch.Tensor
    low: Array
    high: Array
    turned: tuple[Array, Array, bool, float] | None = field(default=None)


def attention(
    regions: list[Met], v: torch.Tensor, scale: float | Array, *, softcap: float = 0.0, sinks: Array | None = None
) -> Allowed:
    """What `[batch, heads, queries, head_dim]` may be; `scale` is a number or `[batch, queries]`."""
    dtype, values = v.dtype, wide(v)
    batch, heads, queries, size = regions[0].q.shape
    keys, groups = values.shape[2], heads // values.shape[1]
    factor = np.broadcast_to(np.asarray(scale, dtype=np.float64), (batch, queries))
    expected, off = np.zeros((batch, heads, queries, size)), np.zeros((batch, heads, queries, size))
    for b in range(batch):
        for h in range(heads):
            logits, slips = np.full((queries, keys), -np.inf), np.zeros((queries, keys))
            for met in regions:
                mine, slip = _logits(met, b, h, groups, factor[b], softcap)
                places = np.arange(keys)
                seen = (met.low[b][:, None] <= places) & (places < met.high[b][:, None])
                logits, slips = np.where(seen, mine, logits), np.where(seen, slip, slips)
            sink = -np.inf if sinks is None else sinks[h]
            v_here = values[b, h // groups]
            expected[b, h], off[b, h] = _mixed(logits, slips, sink, v_here, dtype)
    return Allowed(expected, off, dtype)


def _logits(met: Met, b: int, h: int, groups: int, factor: Array, softcap: float) -> tuple[Array, Array]:
    """Logits of one head, and by how much float32 may miss them."""
    q, k = wide(met.q)[b, h], wide(met.k)[b, h // groups]
    missed = np.zeros_like(k)
    if met.turned is not None:
        cos, sin, interleaved, by = met.turned
        k, lengths = turn(k, cos[b], sin[b], interleaved=interleaved, scale=by)
        missed = OF_THE_PAIR * lengths + HALF_UNIT[met.k.dtype] * np.abs(k)
    with np.errstate(invalid="ignore"):
        dots, sizes = q @ k.T, np.abs(q) @ np.abs(k).T
        slip = (q.shape[-1] + 2) * U * sizes + np.abs(q) @ missed.T
        logits, slip = dots * factor[:, None], slip * factor[:, None]
        if softcap:
            slip = slip + 2e-6 * softcap + 4 * U * np.abs(logits)
            logits = softcap * np.tanh(logits / softcap)
    return logits, slip + 4 * U * np.abs(logits)


def _mixed(logits: Array, slips: Array, sink: float, v: Array, dtype: torch.dtype) -> tuple[Array, Array]:
    """The values' mean under softmax, and its slack."""
    with np.errstate(invalid="ignore"):
        best = np.maximum(logits.max(-1, initial=-np.inf), sink)[:, None]
        shift = np.where(np.isneginf(best), 0.0, best)
        weights = np.where(np.isneginf(logits), 0.0, np.exp(logits - shift))
        total = weights.sum(-1, keepdims=True) + np.exp(sink - shift)
        weights = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
        out = np.where(weights[..., None] != 0, weights[..., None] * v, 0.0).sum(1)
        far = np.where(weights > 0, np.abs(logits - shift), 0.0)
        wrong = np.where(weights > 0, weights * (slips + 2 * U * (far + 8) + POWER), 0.0)  # of each weight
        tiles = logits.shape[1] / TILE + 3
        sums = (TILE + 4 * tiles) * U + HALF_UNIT[dtype]
        sizes = np.abs(np.where(np.isfinite(v), v, 0.0))
        off = wrong @ sizes + np.abs(out) * wrong.sum(-1, keepdims=True) + (weights @ sizes + np.abs(out)) * sums
    return out, np.where(np.isfinite(off), 1.01 * off + 1e-30, 0.0)
