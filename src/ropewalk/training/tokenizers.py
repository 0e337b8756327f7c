"""Which tokenizer a run uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError


@runtime_checkable
class Asked(Protocol):
    """The settings that say which tokenizer."""

    @property
    def tokenizer(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...


def make_tokenizer(settings: Asked, texts: Sequence[str]) -> TextTokenizer:
    """The tokenizer that the settings ask for: trained on the texts, bytes, or read from a tokenizer.json."""
    if settings.tokenizer == "bpe":
        return TextTokenizer.train(texts, settings.vocab_size)
    if settings.tokenizer == "bytes":
        return TextTokenizer.bytes()
    path = Path(settings.tokenizer)
    if path.name == "tokenizer.json" and path.is_file():
        return TextTokenizer.from_folder(path.parent)
    if path.is_dir():
        return TextTokenizer.from_folder(path)
    raise RopeError(
        "train: unknown tokenizer.",
        facts={"tokenizer": settings.tokenizer},
        cure='Pass "bpe", "bytes", or the path of a tokenizer.json.',
    )
