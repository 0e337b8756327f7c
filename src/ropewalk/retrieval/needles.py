"""Needles in a haystack: passkey, and RULER's single, multi-key and multi-value needles."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import ClassVar

from ropewalk.models.tokens import Tokenizer
from ropewalk.retrieval.example import Draft, Example, finish, fit
from ropewalk.retrieval.material import Haystack, alike, draw_words, hide, number, unused

CHOICES = 8
"""Choices where distractors are drawn rather than found in the text."""
PASSKEY_DIGITS, RULER_DIGITS = 5, 7


@dataclasses.dataclass(frozen=True)
class PassKey:
    """A number of five digits between repeated noise; the distractors are numbers that the text does not hold.

    Source of the format: Mohtashami and Jaggi 2023 (arXiv:2305.16300); Chen et al. 2023, section 3.4
    (arXiv:2306.15595).
    """

    haystack: Haystack
    name: ClassVar[str] = "passkey"
    by_depth: ClassVar[bool] = True
    choices: ClassVar[int] = CHOICES

    def make(self, tokenizer: Tokenizer, length: int, depth: float, rng: Random) -> Example:
        """An example of at most `length` tokens, the needle at `depth` (0: first, 1: last) of the filler."""
        start = rng.randrange(len(self.haystack.units))
        filler = self.haystack.text(start, length)  # at most: a unit has a token or more
        key, *others = alike(tokenizer, CHOICES, lambda: number(rng, PASSKEY_DIGITS), beside=filler)
        needle = f"The pass key is {key}. Remember it. {key} is the pass key."
        head = (
            "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
            "I will quiz you about the important information there.\n"
        )

        def render(count: int) -> Draft:
            placed = hide(self.haystack.take(start, count), [(depth, needle)], self.haystack.glue)
            return Draft(
                prompt=f"{head}{placed.text}\nWhat is the pass key? The pass key is",
                answers=(key,),
                distractors=tuple(others),
                needles=(len(head) + placed.starts[0],),
                needle_length=len(needle),
                filler=(len(head), len(head) + len(placed.text)),
            )

        return finish(tokenizer, fit(tokenizer, length, render, task=self.name))


@dataclasses.dataclass(frozen=True)
class Needles:
    """RULER's needles: "One of the special magic numbers for KEY is: NUMBER.", the keys words of the text.

    One key is asked for, at `depth` its first value; the other values and keys lie at random depths. With several keys
    the distractors are the other keys' values, which are in the text; with one they are numbers that it does not hold.
    Source: Hsieh et al. 2024, section 3 and appendix B (arXiv:2404.06654); the numbers have seven digits, as there.
    """

    name: str
    haystack: Haystack
    words: tuple[str, ...]
    keys: int = 1
    values: int = 1
    by_depth: ClassVar[bool] = True

    @property
    def choices(self) -> int:
        """Choices of one example."""
        return CHOICES if self.keys == 1 else 1 + (self.keys - 1) * self.values

    def make(self, tokenizer: Tokenizer, length: int, depth: float, rng: Random) -> Example:
        """An example of at most `length` tokens, the asked key's first value at `depth` of the filler."""
        start, count = rng.randrange(len(self.haystack.units)), self.values * self.keys
        head = self._head(count)
        keys = draw_words(tokenizer, self.keys, unused(self.words, head + self._tail("") + _needle("", "")), rng)
        drawn = alike(
            tokenizer,
            count if self.keys > 1 else count - 1 + CHOICES,
            lambda: number(rng, RULER_DIGITS),
            beside=self.haystack.text(start, length),  # at most: a unit has a token or more
        )
        held = drawn[:count]
        depths = [depth, *(rng.random() for _ in held[1:])]
        needles = [
            (place, _needle(keys[index // self.values], value))
            for index, (place, value) in enumerate(zip(depths, held, strict=True))
        ]
        tail = self._tail(keys[0])

        def render(filler: int) -> Draft:
            placed = hide(self.haystack.take(start, filler), needles, self.haystack.glue)
            return Draft(
                prompt=f"{head}{placed.text}{tail}",
                answers=tuple(held[: self.values]),
                distractors=tuple(drawn[self.values :]),
                needles=tuple(len(head) + begin for begin in placed.starts),
                needle_length=len(needles[0][1]),
                filler=(len(head), len(head) + len(placed.text)),
            )

        return finish(tokenizer, fit(tokenizer, length, render, task=self.name))

    def _head(self, count: int) -> str:
        if count > 1:
            opening = "Some special magic numbers are hidden within the following text. Make sure to memorize them. "
        else:
            opening = "A special magic number is hidden within the following text. Make sure to memorize it. "
        return f"{opening}I will quiz you about the number{'s' if count > 1 else ''} afterwards.\n"

    def _tail(self, key: str) -> str:
        asked = f"for {key} mentioned in the provided text"
        if self.values > 1:
            return f"\nWhat are all the special magic numbers {asked}? The special magic numbers {asked} are"
        return f"\nWhat is the special magic number {asked}? The special magic number {asked} is"


def _needle(key: str, value: str) -> str:
    return f"One of the special magic numbers for {key} is: {value}."
