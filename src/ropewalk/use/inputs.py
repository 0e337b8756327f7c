"""The readings of a run: the tokens of each window of the copy test, made from the texts and a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import Literal

import torch
from torch import Tensor

from ropewalk.models.tokens import Tokenizer
from ropewalk.use.blocks import HALVES, LEAST_WORDS, ClosingBlock, Half, RandomWords, arrange, copy_windows
from ropewalk.use.protocol import CopyDesign, UseProtocol

Where = Literal["far", "control"]
PLACES: tuple[Where, Where] = ("far", "control")


@dataclasses.dataclass(frozen=True)
class UseText:
    """One text: its name, its contents, their tokens, and the first token of each of its windows."""

    name: str
    contents: str
    tokens: Sequence[int]
    starts: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Reading:
    """One way to read a window of the copy test.

    - `where`: "far" (a window of the target) or "control" (of the trained length).
    - `half`: the half of the blocks that are present.
    """

    where: Where
    half: Half

    @property
    def label(self) -> str:
        """The reading's part of a key in the ledger."""
        return f"{self.where}/copy/{self.half}"

    @property
    def description(self) -> str:
        """The reading as progress shows it."""
        return f"copy test, {self.half} blocks present" + ("" if self.where == "far" else " (control)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UseInputs:
    """The readings of a protocol on its texts; everything that is random follows from the protocol's seed."""

    protocol: UseProtocol
    texts: tuple[UseText, ...]
    tokenizer: Tokenizer

    def copy(self, where: Where) -> CopyDesign | None:
        """The copy test's design, None where it cannot be read."""
        design = self.protocol.copy if where == "far" else self.protocol.copy_control
        return design if all(words.enough for words in self._words) else None

    def readings(self, where: Where) -> tuple[Reading, ...]:
        """Return every reading of one window."""
        return () if self.copy(where) is None else tuple(Reading(where, half) for half in HALVES)

    def first(self, reading: Reading) -> int:
        """Return the first scored token of a reading."""
        design = self.copy(reading.where)
        assert design is not None, "only readings that fit are requested"
        return design.first

    def ids(self, reading: Reading, window: int) -> Tensor:
        """Return the tokens of one reading, int64 `[target]` or `[trained length]`."""
        design, words = self.copy(reading.where), self._words[window // self.protocol.windows]
        assert design is not None, "only readings that fit are requested"
        draw = self._rng("copy", reading.where, window)
        return copy_windows(self.real(reading.where, window), design, words, draw)[reading.half]

    def blocks(self, where: Where, window: int) -> tuple[ClosingBlock, ...]:
        """The closing blocks of one window of the copy test."""
        design = self.copy(where)
        assert design is not None, "only what can be read is asked for"
        return arrange(design, self._rng("copy", where, window))

    def real(self, where: Where, window: int) -> Tensor:
        """The real text of a window; the control reads its end."""
        text, start = self._place(window)
        ids = text.tokens[start : start + self.protocol.target]
        if where == "control":
            ids = ids[-min(self.protocol.trained_length, self.protocol.target) :]
        return torch.tensor(list(ids), dtype=torch.int64, device="cpu")

    def notes(self) -> list[str]:
        """Why a test is absent."""
        protocol, found = self.protocol, []
        if protocol.target <= protocol.trained_length:  # the control is all
            found.append("The target lies within the trained length, so there are no tokens beyond it to use.")
        elif protocol.copy_control is None or protocol.copy is None:
            found.append("No copy test: these lengths leave no room for its blocks.")
        elif not all(words.enough for words in self._words):
            found.append(f"No copy test: the text has fewer than {LEAST_WORDS} different words.")
        return found

    def _place(self, window: int) -> tuple[UseText, int]:
        text = self.texts[window // self.protocol.windows]
        return text, text.starts[window % self.protocol.windows]

    def _rng(self, *parts: object) -> Random:
        return Random(":".join(map(str, (self.protocol.seed, *parts))))

    @cached_property
    def _words(self) -> tuple[RandomWords, ...]:
        return tuple(RandomWords(self.tokenizer, text.contents) for text in self.texts)
