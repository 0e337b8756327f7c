"""stories260K, in llama2.c's own format: read here, for tests, into a Decoder's weights or a GGUF's tokenizer.

Source: karpathy/llama2.c, run.c (the order of the tensors) and tokenizer.py (the vocabulary).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


def read_model(path: Path) -> tuple[dict[str, int], dict[str, Tensor]]:
    """The header's numbers, and the weights by the Decoder's names; q and k are for interleaved pairs."""
    raw = path.read_bytes()
    names = ("hidden_size", "intermediate_size", "layers", "heads", "kv_heads", "vocab_size", "length")
    sizes = dict(zip(names, struct.unpack("<7i", raw[:28]), strict=True))
    numbers, at = torch.from_numpy(np.frombuffer(raw, dtype=np.float32, offset=28).copy()), 0

    def take(*shape: int) -> Tensor:
        nonlocal at
        count = int(np.prod(shape))
        at += count
        return numbers[at - count : at].view(shape)

    dim, hidden, layers = sizes["hidden_size"], sizes["intermediate_size"], sizes["layers"]
    kv = dim // sizes["heads"] * sizes["kv_heads"]
    vocab = abs(sizes["vocab_size"])
    weights = {"embed_tokens.weight": take(vocab, dim)}
    for part, shape in (
        ("input_layernorm", (dim,)),
        ("self_attn.q_proj", (dim, dim)),
        ("self_attn.k_proj", (kv, dim)),
        ("self_attn.v_proj", (kv, dim)),
        ("self_attn.o_proj", (dim, dim)),
        ("post_attention_layernorm", (dim,)),
        ("mlp.gate_proj", (hidden, dim)),
        ("mlp.down_proj", (dim, hidden)),
        ("mlp.up_proj", (hidden, dim)),
    ):
        stacked = take(layers, *shape)
        weights |= {f"layers.{layer}.{part}.weight": stacked[layer] for layer in range(layers)}
    weights["norm.weight"] = take(dim)
    return sizes, weights


def tokenizer_metadata(path: Path) -> dict[str, Any]:
    """tok512.bin as a GGUF would describe it: SentencePiece, scores and byte fallback."""
    raw, at = path.read_bytes(), 4
    tokens, scores = [], []
    while at < len(raw):
        score, length = struct.unpack_from("<fi", raw, at)
        at += 8 + length
        tokens.append(raw[at - length : at].decode("utf-8").replace(" ", "▁"))
        scores.append(score)
    tokens[:3] = ["<unk>", "<s>", "</s>"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
