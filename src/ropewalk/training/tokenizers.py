"""Which tokenizer a run uses."""

from __future__ import annotations

from pathlib import Path

from ropewalk.errors import RopeError
from ropewalk.models.tokenizer import TextTokenizer
from ropewalk.training.settings import TrainSettings


def make_tokenizer(settings: TrainSettings, texts: list[str]) -> TextTokenizer:
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
