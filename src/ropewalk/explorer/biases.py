"""What each encoding does to the scores of equal tokens: one surface for each head, by query and key position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk.encodings import ENCODINGS, Encoding, Places, Sizes, resolve
from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.embedding import RotaryEmbedding

TOKENS = 32
SIZES = Sizes(hidden_size=64, num_attention_heads=4, head_dim=16)
"""A small model's: enough to show a shape. Learned encodings stand as they are drawn before training (seed 0)."""


def encoding_entries() -> list[dict[str, Any]]:
    """RoPE and each registered rival, with its score of equal tokens `[heads][query][key]`, keys up to the query."""
    return [_entry("rope", "RoPE, theta 10,000", None, _of_rope()), *map(_of_rival, ENCODINGS)]


def _of_rival(name: str) -> dict[str, Any]:
    config = ENCODINGS[name]()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        module = config.build(SIZES).eval()
        surface = _surface(module)
    learned = sum(parameter.numel() for parameter in module.parameters())
    line = (type(config).__doc__ or "").strip().partition("\n")[0]
    return _entry(name, type(config).__name__, line, surface, learned)


def _surface(module: Encoding) -> Tensor:
    """Scores after 1/sqrt(head_dim) of tokens that are all alike, less what they would be without the encoding."""
    heads, dim = SIZES.num_attention_heads, SIZES.head_dim
    ids = torch.arange(TOKENS)
    if module.in_embeddings:
        added = module.embedded(torch.zeros(1, TOKENS, SIZES.hidden_size), ids[None])[0]
        similar: Tensor = added @ added.T / SIZES.hidden_size**0.5
        return similar[None]
    alike = torch.ones(1, TOKENS, heads, dim)
    q, k = module.turned(alike, alike, ids)
    q, bias = module.biased(q, Places(ids, ids))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / dim**0.5
    surface: Tensor = (scores if bias is None else scores + bias).reshape(heads, TOKENS, TOKENS) - dim**0.5
    return surface


def _of_rope() -> Tensor:
    rope = resolve("rope", SIZES.head_dim)
    assert isinstance(rope, RopeConfig)
    alike = torch.ones(1, TOKENS, 1, SIZES.head_dim)
    turned = RotaryEmbedding(rope).rotate(alike, position_ids=torch.arange(TOKENS))[0, :, 0]
    scores: Tensor = turned @ turned.T / SIZES.head_dim**0.5 - SIZES.head_dim**0.5
    return scores[None]


def _entry(name: str, title: str, line: str | None, surface: Tensor, learned: int = 0) -> dict[str, Any]:
    """Heads that are all alike are one."""
    if all(torch.equal(surface[0], other) for other in surface[1:]):
        surface = surface[:1]
    seen = torch.ones(TOKENS, TOKENS).tril().bool()
    rows = [
        [[float(f"{value:.3g}") for value in row[kept].tolist()] for row, kept in zip(head, seen, strict=True)]
        for head in surface
    ]
    return {"name": name, "title": title, "line": line or "", "learned": learned, "heads": rows}
