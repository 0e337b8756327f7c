"""What the tests of extensions share: each of them, the papers' relative positions as an oracle, layers and models."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.layers.attention import Attention
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.decoder import Decoder
from ropewalk.rope.extensions import STRING, DualChunk, Extension, LaMPE, LogN, ReRoPE, SelfExtend
from ropewalk.rope.scaling import DynamicNTK
from tests.layers.oracle import turn

HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
ROPE = rw.RopeConfig(head_dim=HEAD_DIM, interleaved=False)
DYNAMIC = replace(ROPE, scaling=DynamicNTK(1.0), max_position_embeddings=4)
EXTENSIONS: list[Extension] = [
    ReRoPE(window=5),
    ReRoPE(window=7, leak=0.25, log_n=9),
    SelfExtend(group=3, window=6),
    SelfExtend(group=4, window=5, log_n=6),
    DualChunk(chunk=6, trained_length=8),
    DualChunk(chunk=5, trained_length=16, log_n=7),
    STRING(shift=6, window=2),
    STRING(shift=5, window=5, scale=1.0),
    LaMPE(window=4, mapped=7, length=19),
    LaMPE(window=5, mapped=30, length=11, scale=1.0),
    LogN(trained_length=5),
]
REMAPPING = [extension for extension in EXTENSIONS if extension.remaps]
REPEATS = pytest.mark.repeats_shapes


def each_once(extensions: list[Extension]) -> list[Any]:
    """All of them, of which the second of a class has the first one's shapes."""
    pairs = zip([None, *extensions], extensions, strict=False)
    return [pytest.param(each, marks=[REPEATS] * (type(each) is type(before))) for before, each in pairs]


LEAK = EXTENSIONS[1]
COMPILED = [
    pytest.param(each, marks=[pytest.mark.thorough] * (each is LEAK or isinstance(each, STRING)))
    for each in (*{type(each): each for each in reversed(EXTENSIONS)}.values(), LEAK)
]
"""The first of each class, and a leak with a scale."""


def relative(extension: Extension, m: int, n: int) -> float | np.ndarray | None:
    """The paper's relative position of a query at m and a key at n <= m, or one for each pair; None: it is not seen."""
    d = m - n
    match extension:
        case ReRoPE(window=w, leak=leak):
            return d if d < w else w + leak * (d - w)
        case SelfExtend(group=g, window=w):
            return d if d < w else m // g - n // g + w - w // g
        case STRING(shift=s, window=w):
            return d if d < s else d - s + w
        case LaMPE(window=w, mapped=mapped, length=length):
            place = [math.floor(i * mapped / (length - 1)) for i in range(max(m, w) + 1)]
            return d if d < w else place[m] - place[n] + w - (place[w] + 1)
        case DualChunk(chunk=s, trained_length=c):
            if m // s == n // s:
                return d
            within = min(s + m % s, c - 1) if m // s - n // s == 1 else c - 1
            return within - n % s
    return d


def factor(extension: Extension, m: int) -> float:
    """What the logits of query m are multiplied by."""
    if isinstance(extension, STRING | LaMPE):
        return extension.scale
    length = extension.trained_length if isinstance(extension, LogN) else getattr(extension, "log_n", None)
    return 1.0 if length is None else max(1.0, math.log(m + 1) / math.log(length))


def oracle(layer: Attention, x: np.ndarray, extension: Extension) -> np.ndarray:
    """Output `[seq, hidden]` of one row: each score formed alone, in float64 NumPy."""
    w = {name: value.detach().double().numpy() for name, value in layer.state_dict().items()}
    of_rope = layer.rotary.attention_factor_at(len(x)) ** 2
    seq = len(x)
    q, k, v = ((x @ w[f"{name}_proj.weight"].T).reshape(seq, -1, HEAD_DIM) for name in "qkv")
    out = np.zeros((seq, HEADS, HEAD_DIM))
    for head in range(HEADS):
        group = head * KV_HEADS // HEADS
        for m in range(seq):
            scores = np.full(seq, -np.inf)
            for n in range(m + 1):
                d = relative(extension, m, n)
                if d is not None:
                    turned = turn(q[m, head], d, theta=10_000.0, rotary_dim=HEAD_DIM, interleaved=False)
                    scores[n] = turned @ k[n, group] * of_rope / math.sqrt(HEAD_DIM) * factor(extension, m)
                    if layer.softcap is not None:
                        scores[n] = layer.softcap * math.tanh(scores[n] / layer.softcap)
            sink = w["sinks"][head] if "sinks" in w else -np.inf
            best = max(scores.max(), sink)
            share = np.exp(scores - best)
            out[m, head] = share @ v[:, group] / (share.sum() + np.exp(sink - best))
    return out.reshape(seq, -1) @ w["o_proj.weight"].T


def make_layer(extension: Extension | None, dtype: torch.dtype = torch.float64, **form: Any) -> Attention:
    torch.manual_seed(1)
    given = {"num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rope": ROPE, **form}
    layer = Attention(24, HEADS, extension=extension, **given)
    for weight in layer.parameters():
        weight.data.mul_(3)
    if layer.sinks is not None:
        layer.sinks.data += torch.linspace(-1.0, 2.0, HEADS)
    return layer.to(dtype).eval()


def make_model(extension: Extension | None, layers: int = 3) -> Decoder:
    torch.manual_seed(2)
    config = DecoderConfig(
        vocab_size=50, hidden_size=24, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, rope=ROPE, extension=extension,
    )  # fmt: skip
    model = Decoder(config).double().eval()
    for weight in model.parameters():
        weight.data.mul_(5)
    return model
