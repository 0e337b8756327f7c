"""Tiny random models for the doctor's tests."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from ropewalk.diagnosis.settings import DoctorSettings, Protocol
from ropewalk.methods import METHODS, Reach
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.readers.adapters import reader_of
from ropewalk.rope.config import RopeConfig

ROPE = RopeConfig(8, interleaved=False, max_position_embeddings=16)


def tiny_decoder(rope: Any = ROPE, **changes: Any) -> Decoder:
    """Two layers of random weights, large enough that attention matters."""
    torch.manual_seed(1)
    fields: dict[str, Any] = {
        "vocab_size": 50,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope": rope,
        "initializer_range": 0.3,
    }
    return Decoder(DecoderConfig(**{**fields, **changes})).eval()


def under_method(model: Decoder, method: str, *, trained: int, target: int) -> Decoder:
    """The decoder under an extension method, its weights shared."""
    positions = METHODS[method].positions(model.config.positions, Reach(trained, target))
    return model.with_positions(rope=positions.ropes, extension=positions.extensions)


def window_losses(model: Decoder, ids: torch.Tensor, **options: Any) -> Any:
    """Losses of a window by the reader of a decoder, which transformers computes."""
    return reader_of(model).window_losses(ids, **options)


def random_ids(tokens: int) -> torch.Tensor:
    """int64 [tokens] below 50."""
    return torch.randint(0, 50, (tokens,), generator=torch.Generator().manual_seed(2))


def with_protocol(given: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `rw.doctor`, those that belong to the protocol put into one."""
    names = {field.name for field in fields(Protocol)} & given.keys()
    others = {name: value for name, value in given.items() if name not in names}
    return {**others, "protocol": Protocol(**{name: given[name] for name in names})}


def settings_of(**given: Any) -> DoctorSettings:
    """The doctor's settings, those of the protocol by their own names."""
    return DoctorSettings(**with_protocol(given))
