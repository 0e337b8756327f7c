"""What examples are filled with: a repeated noise or real text, numbers, names and words drawn from a seed."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random

from ropewalk.errors import RopeError
from ropewalk.models.tokenizer import TextTokenizer

NOISE = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
"""Mohtashami and Jaggi 2023 (arXiv:2305.16300), appendix; also Chen et al. 2023, section 3.4 (arXiv:2306.15595)."""
LETTERS = "abcdefghijklmnopqrstuvwxyz"
_TRIES = 40
_CLOSING = "\"'\u201d\u2019)_"  # quotes, brackets and underscores that may follow a full stop


@dataclasses.dataclass(frozen=True)
class Haystack:
    """Filler in units (sentences of noise, or words of a text), endless: after the last unit comes the first again."""

    units: tuple[str, ...]

    def take(self, start: int, count: int) -> list[str]:
        """`count` units from unit `start` on.

        >>> Haystack(("a", "b.", "c")).take(2, 4)
        ['c', 'a', 'b.', 'c']
        """
        return [self.units[(start + index) % len(self.units)] for index in range(count)]


def noise() -> Haystack:
    """The five sentences of the passkey test."""
    return Haystack(NOISE)


def passage(text: str) -> Haystack:
    """The words of a text, any white space between them. Raises `RopeError` for a text without words."""
    units = tuple(text.split())
    if not units:
        raise RopeError(
            "retrieval: the text holds no words.",
            facts={"characters": len(text)},
            cure="Give a text, or take the noise as haystack.",
        )
    return Haystack(units)


def words_of(text: str) -> tuple[str, ...]:
    """The different words of 4 to 8 small letters in a text, in order of the alphabet.

    >>> words_of("Some whales, whales; don't swim.")
    ('swim', 'whales')
    """
    return tuple(sorted(set(re.findall(r"(?<![\w'\u2019-])[a-z]{4,8}(?![\w'\u2019-])", text))))


@dataclasses.dataclass(frozen=True)
class Placed:
    """Filler with needles in it: the text, and the character at which each needle begins, as they were given."""

    text: str
    starts: tuple[int, ...]


def hide(units: Sequence[str], needles: Sequence[tuple[float, str]]) -> Placed:
    """Put each needle (depth from 0 to 1, text) at the end of the sentence nearest to its depth, joined by spaces.

    Needles that meet at one place keep their order.

    >>> hide(["One.", "Two", "three.", "Four."], [(0.6, "HERE."), (0.0, "FIRST.")])
    Placed(text='FIRST. One. Two three. HERE. Four.', starts=(23, 0))
    """
    ends = [index + 1 for index, unit in enumerate(units) if unit.rstrip(_CLOSING).endswith((".", "!", "?"))]
    breaks = sorted({0, len(units), *ends})
    standing: dict[int, list[int]] = defaultdict(list)
    for index, (depth, _) in enumerate(needles):
        standing[min(breaks, key=lambda place: abs(place - depth * len(units)))].append(index)
    parts: list[str] = []
    starts, length = [0] * len(needles), 0
    for place in range(len(units) + 1):
        for index in standing.get(place, ()):
            starts[index] = length
            parts.append(needles[index][1])
            length += len(parts[-1]) + 1
        if place < len(units):
            parts.append(units[place])
            length += len(parts[-1]) + 1
    return Placed(" ".join(parts), tuple(starts))


def number(rng: Random, digits: int) -> str:
    """A number of so many digits, the first not 0."""
    return str(rng.randrange(10 ** (digits - 1), 10**digits))


def letters(rng: Random, count: int, *, upper: bool = False) -> str:
    """A word of random letters that means nothing."""
    word = "".join(rng.choice(LETTERS) for _ in range(count))
    return word.upper() if upper else word


def alike(tokenizer: TextTokenizer, count: int, draw: Callable[[], str]) -> list[str]:
    """`count` different texts from `draw`, with as many tokens each where 40 draws for each of them give that many.

    Raises `RopeError` where `draw` has not so many different ones.
    """
    by_tokens: dict[int, list[str]] = defaultdict(list)
    drawn: dict[str, None] = {}
    for _ in range(_TRIES * count):
        text = draw()
        if text in drawn:
            continue
        drawn[text] = None
        same = by_tokens[len(tokenizer.encode(f" {text}"))]
        same.append(text)
        if len(same) == count:
            return same
    if len(drawn) < count:
        raise RopeError(
            "retrieval: the text has too few different words.",
            facts={"words of 4 to 8 letters wanted": count, "found": len(drawn)},
            cure="Give a longer text.",
        )
    return list(drawn)[:count]
