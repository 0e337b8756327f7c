"""A layer of attention written out in NumPy float64, from the papers' formulas: only frequencies are the package's."""

from __future__ import annotations

import math

import numpy as np

import ropewalk as rw
from ropewalk.rope.extensions import DualChunk, Extension, LaMPE, ReRoPE, SelfExtend
from tests.models.forms import Louder


def relative(extension: Extension | None, m: int, n: int) -> float | None:
    """The paper's relative position of a query at m and a key at n <= m; None: it is not seen."""
    d = m - n
    match extension:
        case ReRoPE(window=w):
            return min(d, w)
        case SelfExtend(group=g, window=w):
            return d if d < w else m // g - n // g + w - w // g
        case LaMPE(window=w, mapped=mapped, length=length):
            place = [math.floor(i * mapped / (length - 1)) for i in range(max(m, w) + 1)]
            return d if d < w else place[m] - place[n] + w - (place[w] + 1)
        case DualChunk(chunk=s, trained_length=c):
            if m // s == n // s:
                return d
            within = min(s + m % s, c - 1) if m // s - n // s == 1 else c - 1
            return within - n % s
    return d


def factor(extension: Extension | None, m: int) -> float:
    """What the logits of query m are multiplied by."""
    if isinstance(extension, LaMPE):
        return (0.1 * math.log(2) + 1) ** 2
    if isinstance(extension, Louder):
        return 1 + m / 10
    length = getattr(extension, "log_n", None)
    return 1.0 if length is None else max(1.0, math.log(m + 1) / math.log(length))


def sees(layer: rw.Attention, query: int, key: int) -> bool:
    """Whether a token sees another: causal or not, within a window that reaches back, or both ways."""
    window = math.inf if layer.sliding_window is None else layer.sliding_window
    return query - window < key <= query if layer.causal else abs(query - key) <= window


def pairs_of(x: np.ndarray, rope: rw.RopeConfig) -> tuple[np.ndarray, np.ndarray]:
    """The pairs that turn as complex numbers, and the other features."""
    width = 2 * rope.pairs
    first, second = (slice(0, width, 2), slice(1, width, 2)) if rope.interleaved else (
        slice(0, width // 2), slice(width // 2, width))  # fmt: skip
    return x[..., first] + 1j * x[..., second], x[..., width:]


def attention(
    layer: rw.Attention, x: np.ndarray, positions: np.ndarray | None = None, seq_len: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Output `[seq, hidden]` and weights `[heads, seq, seq]` of one row `[seq, hidden]`."""
    w = {name: value.detach().double().numpy() for name, value in layer.state_dict().items()}
    seq, heads, kv_heads, dim = len(x), layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim
    at = np.arange(seq) if positions is None else np.asarray(positions)

    def project(name: str, count: int) -> np.ndarray:
        return (x @ w[f"{name}_proj.weight"].T + w.get(f"{name}_proj.bias", 0.0)).reshape(seq, count, dim)

    q, k, v = project("q", heads), project("k", kv_heads), project("v", kv_heads)
    k, v = (np.repeat(each, heads // kv_heads, axis=1) for each in (k, v))
    distance = [[relative(layer.extension, m, n) if n <= m else m - n for n in at] for m in at]
    seen = np.array([[sees(layer, m, n) and distance[m][n] is not None for n in range(seq)] for m in range(seq)])
    if layer.rope is None:
        scores = np.einsum("mhf,nhf->hmn", q, k)
    else:
        frequencies = rw.inverse_frequencies(layer.rope, seq_len if layer.rope.needs_seq_len else None)
        (of_q, q_rest), (of_k, k_rest) = (pairs_of(each, layer.rope) for each in (q, k))
        turn = np.exp(
            1j * np.where(seen, np.array(distance, dtype=float), 0.0)[..., None] * frequencies.inv_freq[0].numpy()
        )
        scores = np.einsum("mhp,nhp,mnp->hmn", of_q, of_k.conj(), turn).real + np.einsum("mhf,nhf->hmn", q_rest, k_rest)
        scores = scores * frequencies.attention_factor**2
    scores = scores / math.sqrt(dim) * np.array([factor(layer.extension, m) for m in at])[:, None]
    if layer.softcap is not None:
        scores = layer.softcap * np.tanh(scores / layer.softcap)
    sinks = w["sinks"][:, None, None] if "sinks" in w else np.full((heads, 1, 1), -np.inf)
    scores = np.where(seen, scores, -np.inf)
    best = np.maximum(scores.max(-1, keepdims=True), sinks)
    shares = np.exp(scores - best)
    weights = shares / (shares.sum(-1, keepdims=True) + np.exp(sinks - best))
    out = np.einsum("hmn,nhf->mhf", weights, v).reshape(seq, -1)
    return out @ w["o_proj.weight"].T + w.get("o_proj.bias", 0.0), weights
