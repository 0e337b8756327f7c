"""What a model needs of a tokenizer: the protocol; `checkpoints.tokenizer.TextTokenizer` is the one that we have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back.

    `bos_id` begins a text, or is None; generation stops after any of `eos_ids`. `tokenizer` is the
    `tokenizers.Tokenizer` that does the work.
    """

    tokenizer: Any
    bos_id: int | None
    eos_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""

    @property
    def prefix_ids(self) -> list[int]:
        """The ids that the checkpoint puts before every text."""

    def encode_prompt(self, text: str, *, bos: bool | None = None) -> list[int]:
        """The ids of a text that a model continues; see `TextTokenizer.encode_prompt`."""

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """The ids of `text`."""

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of `ids`."""

    def stream(self, skip_special: bool = True) -> Any:
        """The text of ids that arrive one by one; see `TextTokenizer.stream`."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write it into `folder`."""
