"""The copy test's windows: closing blocks of random words, present or absent at their distances."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from random import Random
from typing import Literal

import torch
from torch import Tensor

from ropewalk.models.tokens import Tokenizer
from ropewalk.retrieval.questions import passage, words_of
from ropewalk.use.protocol import CopyDesign

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
        """The first token of its earlier copy."""
        return self.start - self.distance


def arrange(design: CopyDesign, rng: Random) -> tuple[ClosingBlock, ...]:
    """The closing blocks from first to last: distances and halves in random order, no two earlier copies overlapping.

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
    """Both readings of one window: int64 `[window]` each, the same but for the earlier places of the blocks.

    - `input_ids`: the window's real text, int64 `[window]`.

    In the reading "odd" the odd blocks stand at their earlier places and fresh random words at those of the even ones.
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
        """Whether blocks can differ from each other."""
        return len(self.words) >= LEAST_WORDS

    def blocks(self, tokens: int, rng: Random) -> Iterator[Tensor]:
        """Endless blocks of so many tokens, int64; no word comes again before all have been drawn."""
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
