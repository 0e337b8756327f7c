"""Attention written out in NumPy float64, one query at a time: shares no code with the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def turn(
    x: np.ndarray, position: float | np.ndarray, *, theta: float, rotary_dim: int, interleaved: bool
) -> np.ndarray:
    """One head's features turned by one position, or one for each pair, as complex numbers."""
    half = rotary_dim // 2
    angle = np.exp(1j * position * theta ** (-np.arange(half) / half))
    if interleaved:
        turned = (x[0:rotary_dim:2] + 1j * x[1:rotary_dim:2]) * angle
        first = np.stack([turned.real, turned.imag], -1).reshape(-1)
    else:
        turned = (x[:half] + 1j * x[half:rotary_dim]) * angle
        first = np.concatenate([turned.real, turned.imag])
    return np.concatenate([first, x[rotary_dim:]])


def rms(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """x over its root mean square, times a weight."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def attention(
    weights: dict[str, Any],
    x: np.ndarray,
    positions: np.ndarray,
    sees: Callable[[int, int], bool],
    *,
    heads: int,
    kv_heads: int,
    theta: float = 10_000.0,
    rotary_dim: int = 0,
    interleaved: bool = False,
    eps: float = 1e-6,
    softcap: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Output `[seq, hidden]` and weights `[heads, seq, seq]` of one row; `sees(query, key)` says what is visible."""
    w = {name: np.asarray(value, dtype=np.float64) for name, value in weights.items()}
    seq = len(x)

    def project(name: str, count: int) -> np.ndarray:
        out = x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)
        return out.reshape(seq, count, -1)

    q, k, v = project("q_proj", heads), project("k_proj", kv_heads), project("v_proj", kv_heads)
    if "q_norm.weight" in w:
        q, k = rms(q, w["q_norm.weight"], eps), rms(k, w["k_norm.weight"], eps)
    if rotary_dim:
        how: dict[str, Any] = {"theta": theta, "rotary_dim": rotary_dim, "interleaved": interleaved}
        q = np.array([[turn(head, p, **how) for head in token] for token, p in zip(q, positions, strict=True)])
        k = np.array([[turn(head, p, **how) for head in token] for token, p in zip(k, positions, strict=True)])
    out, probabilities = np.zeros((seq, heads, q.shape[-1])), np.zeros((heads, seq, seq))
    for head in range(heads):
        group = head * kv_heads // heads
        for query in range(seq):
            keys = [key for key in range(seq) if sees(query, key)]
            if not keys:
                continue
            scores = np.array([q[query, head] @ k[key, group] for key in keys]) / np.sqrt(q.shape[-1])
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            sink = w["sinks"][head] if "sinks" in w else -np.inf
            best = max(scores.max(), sink)
            p = np.exp(scores - best)
            p /= p.sum() + np.exp(sink - best)
            probabilities[head, query, keys] = p
            out[query, head] = p @ v[keys, group]
    return out.reshape(seq, -1) @ w["o_proj.weight"].T + w.get("o_proj.bias", 0.0), probabilities
