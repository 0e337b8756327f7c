"""The copy test's windows: closing blocks of random words, present or absent at their distances."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import cached_property
from random import Random
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.measure.haystack import passage, words_of
from ropewalk.models.prompts import Tokenizer

CUE = 4
"""Number of first tokens of a block that are not scored: they identify the block."""
BLOCK, LEAST_BLOCK = 32, 8  # tokens
MOST_DISTANCES = 6  # more would make intervals that hold for all of them wide: at three windows, Student's t is 11
PER_DISTANCE = ((48, 8), (16, 4), (2, 2))
"""Pairs of (blocks that fit, blocks at each distance); half of the blocks are present at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyDesign:
    """One window of the copy test; lengths in tokens.

    The window ends with `closing` tokens of random words, in blocks of `block`; `per_distance` of the blocks (an even
    number) belong to each of `distances`. A present block also occurs that many tokens earlier.

    >>> CopyDesign(window=1024, block=16, per_distance=2, distances=(128, 240)).first
    960
    """

    window: int
    block: int
    per_distance: int
    distances: tuple[int, ...]

    @property
    def closing(self) -> int:
        """Return the number of tokens of all closing blocks."""
        return self.block * self.per_distance * len(self.distances)

    @property
    def first(self) -> int:
        """Return the index of the first token of the closing blocks."""
        return self.window - self.closing


@dataclasses.dataclass(frozen=True, kw_only=True)
class UseProtocol:
    """The settings of the copy test; lengths in tokens. It reads windows of the target, its control windows of the
    trained length; a design that does not fit is None.

    - `windows`: number of windows of each text. `seed` draws the words and their order.
    """

    trained_length: int
    target: int
    texts: tuple[str, ...]
    windows: int
    seed: int
    copy: CopyDesign | None
    copy_control: CopyDesign | None

    @classmethod
    def choose(
        cls,
        *,
        trained_length: int,
        target: int,
        texts: tuple[str, ...],
        windows: int,
        seed: int = 0,
    ) -> UseProtocol:
        """Choose blocks and distances for these lengths.

        Closing blocks take at most half the trained length (a quarter in the control, and half of what lies beyond
        the trained length), distances run from half the trained length to the window's beginning, evenly on a
        logarithmic scale. Those between three quarters of the trained length and all of it are moved below, because
        crop sees only some tokens so far back.

        >>> found = UseProtocol.choose(trained_length=256, target=1024, texts=("t",), windows=2)
        >>> found.copy.distances, found.copy_control.distances
        ((128, 176, 464, 880), (64, 176))
        """
        if trained_length < 1 or target < 1 or windows < 1:
            raise RopeError(
                "use: lengths and windows are at least 1.",
                facts={"trained_length": trained_length, "target": target, "windows": windows},
                cure="Give lengths in tokens.",
            )
        near, beyond = min(trained_length, target), target - trained_length
        block = min(BLOCK, near // 16)
        copy = control = None
        if block >= LEAST_BLOCK:
            control = _copy_design(near, block, closing=near // 4, shortest=near // 4)
            closing = min(trained_length // 2, beyond // 2)
            seen = trained_length - trained_length // 4 - CUE  # by crop under its default stride
            copy = _copy_design(target, block, closing=closing, shortest=trained_length // 2)
            if copy is not None:
                moved = (seen // block * block if seen < at <= trained_length else at for at in copy.distances)
                copy = dataclasses.replace(copy, distances=tuple(sorted(set(moved))))
        return cls(
            trained_length=trained_length,
            target=target,
            texts=texts,
            windows=windows,
            seed=seed,
            copy=copy,
            copy_control=control,
        )

    @property
    def total_windows(self) -> int:
        """Return the number of windows of all texts."""
        return self.windows * len(self.texts)


def _copy_design(window: int, block: int, *, closing: int, shortest: int) -> CopyDesign | None:
    """Return the design with up to six distances that fit; None if none fits."""
    blocks = closing // block
    per = next((per for room, per in PER_DISTANCE if blocks >= room), 2)
    count = min(MOST_DISTANCES, blocks // per)
    if count < 1:
        return None
    longest = window - count * per * block - block  # the window begins with real text
    shortest = max(shortest, count * per * block)
    if longest < shortest:
        return None
    return CopyDesign(
        window=window, block=block, per_distance=per, distances=_spaced(shortest, longest, count, step=block)
    )


def _spaced(shortest: int, longest: int, count: int, *, step: int) -> tuple[int, ...]:
    """Return at most `count` multiples of `step`, evenly on a logarithmic scale; a single one is the longest."""
    low, high = -(-shortest // step), longest // step
    values = np.geomspace(low, high, count) if count > 1 else [high]
    return tuple(sorted({step * round(float(value)) for value in values}))


Half = Literal["odd", "even"]
HALVES: tuple[Half, Half] = ("odd", "even")
LEAST_WORDS = 100
_TRIES = 200


@dataclasses.dataclass(frozen=True)
class ClosingBlock:
    """One closing block: its first token, the distance of its earlier copy, and the half that it is present in."""

    start: int
    distance: int
    half: Half

    @property
    def source(self) -> int:
        """Return the index of the first token of its earlier copy."""
        return self.start - self.distance


def arrange(design: CopyDesign, rng: Random) -> tuple[ClosingBlock, ...]:
    """Return the closing blocks: distances and halves in random order, no two earlier copies overlapping.

    Each distance has as many odd blocks as even ones, so that what changes all losses of one reading cancels out.
    """
    kinds = [
        (distance, HALVES[number % 2])
        for distance in sorted(design.distances, reverse=True)
        for number in range(design.per_distance)
    ]
    for _ in range(_TRIES):
        shuffled = rng.sample(kinds, len(kinds))
        blocks = _in_order(design, shuffled)
        if len({block.source for block in blocks}) == len(blocks):
            return blocks
    return _in_order(design, kinds)  # distances that fall from block to block never meet


def _in_order(design: CopyDesign, kinds: list[tuple[int, Half]]) -> tuple[ClosingBlock, ...]:
    return tuple(
        ClosingBlock(design.first + number * design.block, distance, half)
        for number, (distance, half) in enumerate(kinds)
    )


def copy_windows(input_ids: Tensor, design: CopyDesign, words: RandomWords, rng: Random) -> dict[Half, Tensor]:
    """Return both readings of one window: int64 `[window]` each, the same but for the earlier places of the blocks.

    - `input_ids`: the window's real text, int64 `[window]`.

    In the reading "odd", the odd blocks occur at their earlier places, fresh random words at those of the even ones.
    """
    blocks, drawn = arrange(design, rng), words.blocks(design.block, rng)
    readings = {half: input_ids.clone() for half in HALVES}
    for block in blocks:
        own, fresh = next(drawn), next(drawn)
        for half, ids in readings.items():
            ids[block.start : block.start + design.block] = own
            ids[block.source : block.source + design.block] = own if half == block.half else fresh
    return readings


class RandomWords:
    """Blocks of random words out of a text's own, as token ids.

    The words are the text's different words of 4 to 8 small letters; in a text without enough of them, its words of
    any kind, or pieces of a few characters where it has no spaces. `enough` says whether there are a hundred.
    """

    def __init__(self, tokenizer: Tokenizer, text: str) -> None:
        self.tokenizer = tokenizer
        self.words, self.glue = list(words_of(text)), " "
        if len(self.words) < LEAST_WORDS:
            haystack = passage(text)
            self.words, self.glue = sorted(set(haystack.units)), haystack.glue

    @property
    def enough(self) -> bool:
        """Return whether blocks can differ from each other."""
        return len(self.words) >= LEAST_WORDS

    def blocks(self, tokens: int, rng: Random) -> Iterator[Tensor]:
        """Draw blocks of a given number of tokens, int64, without end; no word is repeated before all are drawn."""
        drawn = self._draw(rng)
        while True:
            text, ids = "", list[int]()
            while len(ids) < tokens:
                text += self.glue + next(drawn)
                ids = self.tokenizer.encode(text)
            yield torch.tensor(ids[:tokens], dtype=torch.int64, device="cpu")

    def _draw(self, rng: Random) -> Iterator[str]:
        while True:
            yield from rng.sample(self.words, len(self.words))


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
        """Return the reading's part of a key in the ledger."""
        return f"{self.where}/copy/{self.half}"

    @property
    def description(self) -> str:
        """Describe the reading for progress displays."""
        return f"copy test, {self.half} blocks present" + ("" if self.where == "far" else " (control)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UseInputs:
    """The readings of a protocol on its texts; everything that is random follows from the protocol's seed."""

    protocol: UseProtocol
    texts: tuple[UseText, ...]
    tokenizer: Tokenizer

    def copy(self, where: Where) -> CopyDesign | None:
        """Return the copy test's design; None if the lengths do not allow it."""
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
        """Return the closing blocks of one window of the copy test."""
        design = self.copy(where)
        assert design is not None, "only what can be read is asked for"
        return arrange(design, self._rng("copy", where, window))

    def real(self, where: Where, window: int) -> Tensor:
        """Return the real text of a window; the control processes its end."""
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
            found.append("No copy test: these lengths are too short for its blocks.")
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
