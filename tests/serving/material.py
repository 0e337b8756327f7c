"""Checkpoints of transformers' own making, small and random, and what both sides compute on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from ropewalk.checkpoints.load import load
from ropewalk.methods import METHODS, Reach, method_named
from ropewalk.models.decoder import Decoder
from ropewalk.tokenizer import TextTokenizer

TRAINED, TARGET = 16, 64
REACH = Reach(TRAINED, TARGET)
LENGTHS = (7, 16, 17, 40, 64)  # below the trained length, at it, beyond it

_SHAPE: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": TRAINED, "initializer_range": 0.2,
}  # fmt: skip
_WRITTEN: dict[str, dict[str, bytes]] = {}


def checkpoint(folder: Path, **changes: Any) -> Path:
    """A folder that transformers wrote: random weights large enough that positions matter, and a tokenizer of bytes.

    Equal checkpoints are made once and then copied.
    """
    key = json.dumps(changes, sort_keys=True)
    if key not in _WRITTEN:
        torch.manual_seed(3)
        config = transformers.LlamaConfig(**{**_SHAPE, "bos_token_id": 256, "eos_token_id": 256, **changes})
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
        TextTokenizer.bytes().save(folder)
        _WRITTEN[key] = {path.name: path.read_bytes() for path in folder.iterdir()}
    else:
        folder.mkdir(parents=True)
        for file, content in _WRITTEN[key].items():
            (folder / file).write_bytes(content)
    torch.manual_seed(3)
    return folder


def token_ids(tokens: int) -> torch.Tensor:
    """int64 [1, tokens] below 300."""
    return torch.randint(0, 300, (1, tokens), generator=torch.Generator().manual_seed(tokens))


def furthest(folder: Path, model: Decoder, lengths: tuple[int, ...] = LENGTHS) -> float:
    """The largest difference between the logits of transformers, on the folder, and ours; float32."""
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    most = 0.0
    with torch.no_grad():
        for tokens in lengths:
            ids = token_ids(tokens)
            most = max(most, float((theirs(ids).logits - model(ids, seq_len=tokens)).abs().max()))
    return most


QWEN: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention"], "head_dim": 16, "linear_num_value_heads": 4,
    "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": True},
}  # fmt: skip
"""Sizes of a small Qwen3.5: M-RoPE, half of each head rotates, one layer without attention."""
LOW_THETA = {"abf": {"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}}}
"""By method: a config that it changes. The theta of `abf` for the target lies below 10,000."""
INEXPRESSIBLE = tuple(name for name, method in METHODS.items() if method.config is None)
EXPORTABLE = tuple(name for name in METHODS if name not in INEXPRESSIBLE)


def extended(folder: Path, method: str) -> Decoder:
    """The checkpoint under a method, in float32."""
    return under(load(folder, dtype=torch.float32), method)


def under(model: Decoder, method: str, reach: Reach = REACH) -> Decoder:
    """A model under a method."""
    positions = method_named(method).positions(model.config.positions, reach)
    return model.with_positions(rope=positions.ropes, extension=positions.extensions)
