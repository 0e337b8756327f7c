"""A small decoder, and changes to the config.json of a folder that holds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import ropewalk as rw
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from tests.models.families import input_ids

SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
HALF = rw.RopeConfig(head_dim=8, interleaved=False, max_position_embeddings=64)


def make(**changes: Any) -> Decoder:
    """A small random decoder in eval mode."""
    return Decoder(DecoderConfig(**SIZES | {"rope": HALF, "initializer_range": 0.2} | changes)).eval()


def logits(model: Decoder) -> torch.Tensor:
    """Logits over a fixed batch."""
    with torch.no_grad():
        return model(input_ids(40), seq_len=40 if model.config.needs_seq_len else None)


def change_config(folder: Path, **changes: Any) -> None:
    """Put other values into a folder's config.json; `...` takes a key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))
