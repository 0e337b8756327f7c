"""Tiny random models for the doctor's tests."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

import ropewalk as rw
from ropewalk.checkpoints.opening import reader_of
from ropewalk.checkpoints.texts import novel
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.config import RopeConfig

SAVED = Path(__file__).parents[2] / "benchmarks" / "results" / "doctor-terminal.json"  # of `ropewalk doctor tiny`
ROPE = RopeConfig(8, interleaved=False, max_position_embeddings=16)


def tiny_decoder(rope: Any = ROPE, **changes: Any) -> Decoder:
    """Two layers of random weights, large enough that attention matters."""
    torch.manual_seed(1)
    fields: dict[str, Any] = {
        "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "rope": rope, "initializer_range": 0.3,
    }  # fmt: skip
    return Decoder(DecoderConfig(**{**fields, **changes})).eval()


def window_losses(model: Decoder, ids: torch.Tensor, **options: Any) -> Any:
    """Losses of a window by the reader of a decoder, which transformers computes."""
    return reader_of(model).window_losses(ids, **options)


def random_ids(tokens: int) -> torch.Tensor:
    """int64 [tokens] below 50."""
    return torch.randint(0, 50, (tokens,), generator=torch.Generator().manual_seed(2))


@cache
def small_diagnosis() -> Diagnosis:
    """What one window of 512 tokens says about `tiny`."""
    text = [("whale", novel(40_000, 9_000))]
    with tempfile.TemporaryDirectory() as state:
        return rw.doctor(
            "tiny", target=512, text=text, windows=1, methods="ntk,dynamic,yarn", state=state, progress=False
        )
