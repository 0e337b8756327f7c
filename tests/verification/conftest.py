"""A small decoder with random weights whose answers depend on every rope: 2 layers, bytes for tokens."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.config import RopeConfig
from ropewalk.tokenizer import TextTokenizer


def model_of(rope: Any) -> Decoder:
    """The decoder with one rope, or one for each layer."""
    torch.manual_seed(0)
    tokenizer = TextTokenizer.bytes()
    config = DecoderConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, rope=rope, initializer_range=0.25,
    )  # fmt: skip
    model = Decoder(config)
    model.tokenizer = tokenizer
    return model.eval()


@pytest.fixture(scope="session")
def small() -> Decoder:
    """Trained length 256, theta 10,000, float32."""
    return model_of(RopeConfig(head_dim=32, interleaved=False, max_position_embeddings=256))


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of our own predictions, which all tests share."""
    return tmp_path_factory.mktemp("verify")


@pytest.fixture(scope="session")
def verify(state: Path) -> Any:
    """`rw.verify` with these predictions."""
    return partial(rw.verify, state=state)
