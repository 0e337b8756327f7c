"""Small decoders under every rule, their tokens, and their logits through a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ropewalk import RopeConfig
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.decoder import Decoder
from ropewalk.rope.scaling import NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Scaling, YaRN

VOCAB, DIM, TRAINED = 50, 8, 16


def rope(scaling: Scaling | None = None, **changes: Any) -> RopeConfig:
    """A rule for heads of 8 with a small trained length, so that its scaling acts."""
    given: dict[str, Any] = {"interleaved": False, "max_position_embeddings": TRAINED, "theta": 1000.0}
    return RopeConfig(DIM, scaling=scaling, **{**given, **changes})


LONG = LongRoPE((1.0, 1.1, 1.2, 1.3), (1.0, 2.0, 3.0, 4.0), TRAINED, factor=4.0)
PHIMOE = LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), TRAINED, short_mscale=1.1, long_mscale=1.3)
RULES: dict[str, tuple[Any, int]] = {
    "default": (rope(), 40),
    "interleaved": (rope(interleaved=True), 40),
    "linear": (rope(Linear(4.0)), 40),
    "ntk": (rope(NTK(4.0)), 40),
    "dynamic": (rope(DynamicNTK(2.0)), 40),
    "dynamic within": (rope(DynamicNTK(2.0)), 3),
    "dynamic paper": (rope(DynamicNTK(variant="paper")), 40),
    "yarn": (rope(YaRN(4.0, TRAINED)), 40),
    "longrope short": (rope(LONG), 12),
    "longrope long": (rope(LONG), 40),
    "longrope mscale": (rope(PHIMOE), 40),
    "llama3": (rope(Llama3(8.0, 1.0, 4.0, TRAINED)), 40),
    "proportional": (rope(Proportional(0.5)), 40),
    "partial": (rope(rotary_dim=4), 40),
    "nope": (None, 40),
    "nope layers": ((rope(), None, rope()), 40),
    "two thetas": ((rope(), rope(theta=20.0), rope()), 40),
    "mixed rules": ((rope(LONG), rope(Linear(2.0)), rope(DynamicNTK(2.0))), 40),
}


def make(ropes: Any = None, **changes: Any) -> Decoder:
    """A three-layer decoder whose weights are large enough that errors would show."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": DIM, "initializer_range": 0.15,
    }  # fmt: skip
    return Decoder(DecoderConfig(rope=ropes, **{**sizes, **changes})).eval()


def ids(batch: int, seq: int) -> Tensor:
    """Random tokens."""
    return torch.randint(0, VOCAB, (batch, seq))


def in_chunks(model: Decoder, tokens: Tensor, sizes: list[int], **cache: Any) -> Tensor:
    """Logits of tokens that go through a cache in chunks."""
    kept = model.new_cache(len(tokens), **cache)
    parts = [model(part, cache=kept) for part in tokens.split(sizes, 1)]
    assert kept.lengths.tolist() == [tokens.shape[1]] * len(tokens)
    return torch.cat(parts, 1)


def close(actual: Tensor, wanted: Tensor, atol: float = 1e-5) -> None:
    """Equal within 1e-5, as the design asks of float32."""
    torch.testing.assert_close(actual, wanted, rtol=0, atol=atol)
