"""Checkpoints of transformers' own making, small and random, and what both sides compute on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from ropewalk.checkpoints.load import load_decoder
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.extend.job import Exported
from ropewalk.extend.job import export as export_reader
from ropewalk.extend.writable import WritableDecoder
from ropewalk.methods import METHODS, Reach, method_named
from ropewalk.models.decoder import Decoder

TRAINED, TARGET = 16, 64
REACH = Reach(TRAINED, TARGET)
LENGTHS = (7, 16, 17, 40, 64)  # below the trained length, at it, beyond it

_SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": TRAINED,
    "initializer_range": 0.2,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 8}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0], "pad_token_id": None}),
}


_WRITTEN: dict[str, dict[str, bytes]] = {}


def checkpoint(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """A folder that transformers wrote: random weights large enough that positions matter, and a tokenizer of bytes.

    Equal checkpoints are made once and then copied.
    """
    key = json.dumps([family, changes], sort_keys=True)
    if key not in _WRITTEN:
        name, own = FAMILIES[family]
        torch.manual_seed(3)
        config = getattr(transformers, f"{name}Config")(
            **{**_SHAPE, **own, "bos_token_id": 256, "eos_token_id": 256, **changes}
        )
        getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)
        TextTokenizer.bytes().save(folder)
        _WRITTEN[key] = {path.name: path.read_bytes() for path in folder.iterdir()}
    else:
        folder.mkdir(parents=True)
        for file, content in _WRITTEN[key].items():
            (folder / file).write_bytes(content)
    torch.manual_seed(3)
    return folder


def checkpoint_with_merges(folder: Path, family: str = "llama", **changes: Any) -> Path:
    """The same with a trained tokenizer, which llama.cpp asks for."""
    checkpoint(folder, family, **{"bos_token_id": 0, "eos_token_id": 0, **changes})
    TextTokenizer.train(["the rain in Spain stays mainly in the plain; Call me Ishmael, 1851. "] * 40, 300).save(folder)
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


def reader_under(model: Decoder | Path, method: str, reach: Reach = REACH) -> WritableDecoder:
    """A model, or the checkpoint of a folder in float32, under a method."""
    decoder = model if isinstance(model, Decoder) else load_decoder(model, dtype=torch.float32)
    reader = WritableDecoder(decoder)
    return reader.under(method_named(method).positions(reader.positions, reach))


INEXPRESSIBLE = tuple(name for name, method in METHODS.items() if method.config is None)
EXPORTABLE = tuple(name for name in METHODS if name not in INEXPRESSIBLE)
HOW = {"reach": REACH}


def extended(folder: Path, method: str) -> Decoder:
    """The checkpoint under a method, in float32."""
    return reader_under(folder, method).module


def under(model: Decoder, method: str, reach: Reach = REACH) -> Decoder:
    """A model under a method."""
    return reader_under(model, method, reach).module


def export(model: Decoder, out: Path, **how: Any) -> Exported:
    """`extend.job.export` of a decoder."""
    return export_reader(WritableDecoder(model), out, **how)
