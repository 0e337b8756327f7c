"""A small decoder with random weights whose answers depend on every rope: 2 layers, bytes for tokens."""

from __future__ import annotations

import pytest
import torch

from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.decoder import Decoder
from ropewalk.rope.config import RopeConfig


@pytest.fixture(scope="session")
def small() -> Decoder:
    """Trained length 256, theta 10,000, float32."""
    torch.manual_seed(0)
    tokenizer = TextTokenizer.bytes()
    rope = RopeConfig(head_dim=32, interleaved=False, max_position_embeddings=256)
    model = Decoder(
        DecoderConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            rope=rope,
            initializer_range=0.25,
        )
    )
    model.tokenizer = tokenizer
    return model.eval()
