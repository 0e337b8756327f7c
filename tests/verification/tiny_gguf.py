"""The built-in model as a GGUF file that llama.cpp's own code reads: weights in F32, its tokenizer as metadata."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from safetensors.torch import load_file

from ropewalk.checkpoints.sources import find
from tests.models.material import write_gguf

NORMAL, CONTROL = 1, 3  # kinds of tokens in GGUF's metadata


def write_tiny(path: Path) -> Path:
    """Write it; returns the path."""
    folder = find("tiny")
    config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",  # digits one by one, then GPT-2's words
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] + [NORMAL] * (len(tokens) - 1),
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": config.bos_token_id,
        "tokenizer.ggml.eos_token_id": config.eos_token_id,
        "tokenizer.ggml.add_bos_token": False,
    }
    return write_gguf(path, config, load_file(folder / "model.safetensors"), metadata=metadata)
