"""The readings of a run: the tokens of each window under each test, made from the texts and a seed."""

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
from ropewalk.use.exchange import Mask, exchanged, rare_tokens, shuffled, stretch_start
from ropewalk.use.key_tokens import Spans, spans_of
from ropewalk.use.protocol import CopyDesign, ExchangeDesign, UseProtocol

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
    """One way to read a window: `where` is "far" (a window of the target) or "control" (of the trained length).

    `form` is "odd" or "even" in the copy test, "real", "other" or "shuffled" in the exchange test.
    """

    where: Where
    test: Literal["copy", "exchange"]
    form: str

    @property
    def label(self) -> str:
        """As the ledger has it."""
        return f"{self.where}/{self.test}/{self.form}"

    @property
    def description(self) -> str:
        """As progress shows it."""
        what = f"{self.form} blocks present" if self.test == "copy" else f"{self.form} text far back"
        return f"{self.test} test, {what}" + ("" if self.where == "far" else " (control)")


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

    def exchange(self, where: Where) -> ExchangeDesign | None:
        """The exchange test's design, None where it cannot be read."""
        design = self.protocol.exchange if where == "far" else self.protocol.exchange_control
        return None if None in self._stretches else design

    def readings(self, where: Where) -> tuple[Reading, ...]:
        """Every reading of one window."""
        found = []
        if self.copy(where) is not None:
            found += [Reading(where, "copy", half) for half in HALVES]
        if self.exchange(where) is not None:
            forms = ("real", "other", "shuffled") if self.protocol.shuffled else ("real", "other")
            found += [Reading(where, "exchange", form) for form in forms]
        return tuple(found)

    def first(self, reading: Reading) -> int:
        """The first scored token of a reading."""
        design = self.copy(reading.where) if reading.test == "copy" else self.exchange(reading.where)
        assert design is not None, "only what can be read is asked for"
        return design.first

    def ids(self, reading: Reading, window: int) -> Tensor:
        """The tokens of one reading, int64 `[target]` or `[trained length]`."""
        real = self.real(reading.where, window)
        if reading.test == "copy":
            half: Half = "odd" if reading.form == "odd" else "even"
            return self._copy_windows(reading.where, window)[half]
        design = self.exchange(reading.where)
        assert design is not None, "only what can be read is asked for"
        if reading.form == "other":
            return exchanged(real, design, self.stretch(window))
        return real if reading.form == "real" else shuffled(real, design, self._rng("shuffled", reading.where, window))

    def blocks(self, where: Where, window: int) -> tuple[ClosingBlock, ...]:
        """The closing blocks of one window of the copy test."""
        design = self.copy(where)
        assert design is not None, "only what can be read is asked for"
        return arrange(design, self._rng("copy", where, window))

    def rare(self, where: Where, window: int) -> Mask:
        """Which scored tokens of the exchange test only the far part shows."""
        design = self.exchange(where)
        assert design is not None, "only what can be read is asked for"
        return rare_tokens(self.real(where, window), design, self.stretch(window))

    def real(self, where: Where, window: int) -> Tensor:
        """The real text of a window; the control reads its end."""
        text, start = self._place(window)
        ids = text.tokens[start : start + self.protocol.target]
        if where == "control":
            ids = ids[-min(self.protocol.trained_length, self.protocol.target) :]
        return torch.tensor(list(ids), dtype=torch.int64, device="cpu")

    def stretch(self, window: int) -> Tensor:
        """What takes the far part's place in a window."""
        (text, _), start = self._place(window), self._stretches[window]
        assert start is not None, "only what can be read is asked for"
        return torch.tensor(list(text.tokens[start : start + self._exchanged]), dtype=torch.int64, device="cpu")

    def window_text(self, where: Where, window: int) -> tuple[str, Spans]:
        """The text of a window, and the characters of it that each token stands for."""
        text, start = self._place(window)
        number = window // self.protocol.windows
        spans = self._spans[number][start : start + self.protocol.target][-len(self.real(where, window)) :]
        begin, end = spans[0][0], max(end for _, end in spans)
        return text.contents[begin:end], [(one - begin, other - begin) for one, other in spans]

    def notes(self) -> list[str]:
        """Why a test is absent."""
        protocol, found = self.protocol, []
        if protocol.target <= protocol.trained_length:  # the control is all
            found.append("The target lies within the trained length, so there are no tokens beyond it to use.")
        elif protocol.copy_control is None or protocol.copy is None:
            found.append("No copy test: these lengths leave no room for its blocks.")
        elif not all(words.enough for words in self._words):
            found.append(f"No copy test: the text has fewer than {LEAST_WORDS} different words.")
        if None in self._stretches:
            found.append(
                f"No exchange test: the text holds no {self._exchanged:,} tokens beside a window to take the place "
                "of its far part."
            )
        elif protocol.target > protocol.trained_length and protocol.exchange is None:
            found.append("No exchange test: the target leaves too little text beyond the trained length.")
        return found

    def _place(self, window: int) -> tuple[UseText, int]:
        text = self.texts[window // self.protocol.windows]
        return text, text.starts[window % self.protocol.windows]

    def _rng(self, *parts: object) -> Random:
        return Random(":".join(map(str, (self.protocol.seed, *parts))))

    def _copy_windows(self, where: Where, window: int) -> dict[Half, Tensor]:
        design, words = self.copy(where), self._words[window // self.protocol.windows]
        assert design is not None, "only what can be read is asked for"
        return copy_windows(self.real(where, window), design, words, self._rng("copy", where, window))

    @property
    def _exchanged(self) -> int:
        designs = (self.protocol.exchange, self.protocol.exchange_control)
        return max((design.exchanged for design in designs if design is not None), default=0)

    @cached_property
    def _words(self) -> tuple[RandomWords, ...]:
        return tuple(RandomWords(self.tokenizer, text.contents) for text in self.texts)

    @cached_property
    def _stretches(self) -> tuple[int | None, ...]:
        """The first token of each window's stretch."""
        target, length = self.protocol.target, self._exchanged
        return tuple(
            stretch_start(len(text.tokens), start, target, length, self._rng("stretch", window))
            for window in range(self.protocol.total_windows)
            for text, start in [self._place(window)]
        )

    @cached_property
    def _spans(self) -> tuple[Spans, ...]:
        return tuple(spans_of(self.tokenizer, text.contents) for text in self.texts)
