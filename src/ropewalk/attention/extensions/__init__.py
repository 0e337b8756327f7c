"""Position rules in attention, which let a trained model process longer texts, each a subclass of `Extension`.

A subclass registers itself: `Attention`, `DecoderConfig` and saved configs accept it by its name.
"""

from __future__ import annotations

from typing import Any

from ropewalk.attention.extensions.base import Extension, Region, Retained
from ropewalk.attention.extensions.rules import (
    DPE,
    STRING,
    DroPE,
    DualChunk,
    JetLong,
    LaMPE,
    LogN,
    ReRoPE,
    SelfExtend,
    StreamingLLM,
)

__all__ = [
    "DPE",
    "STRING",
    "DroPE",
    "DualChunk",
    "Extension",
    "JetLong",
    "LaMPE",
    "LogN",
    "ReRoPE",
    "Region",
    "Retained",
    "SelfExtend",
    "StreamingLLM",
]


def __getattr__(name: str) -> Any:
    """Return a rule that the caller registered, by its name."""
    if name in Extension.registry:
        return Extension.registry[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
