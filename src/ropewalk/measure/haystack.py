"""The text around hidden answers: noise or a passage, split into units, with needles at chosen depths."""

from __future__ import annotations

import dataclasses
import itertools
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from ropewalk.errors import RopeError

NOISE = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
"""Mohtashami and Jaggi 2023 (arXiv:2305.16300), appendix; also Chen et al. 2023, section 3.4 (arXiv:2306.15595)."""


_STOPS = ".!?\u2026\u3002\uff01\uff1f\u061f\u06d4\u0964"  # and those of Chinese, Japanese, Arabic, Urdu and Hindi


_CLOSING = "\"'\u201d\u2019)_\u300d\u300f\uff09"  # quotes, brackets and underscores that may follow a stop


_NEAR = 0.05  # of the filler: a needle moves to the end of a sentence within this distance


_WORD = 20  # characters: where words are longer on average the text is not written with spaces between them


_PIECE = 8  # characters of a unit in such a text


@dataclasses.dataclass(frozen=True)
class Haystack:
    """Endless filler in units (sentences of noise, or words of a text); the first unit follows the last.

    `glue` joins units. It is empty for texts without spaces between words; their units are a few characters.
    """

    units: tuple[str, ...]
    glue: str = " "

    def take(self, start: int, count: int) -> list[str]:
        """Return `count` units, starting at unit `start`.

        >>> Haystack(("a", "b.", "c")).take(2, 4)
        ['c', 'a', 'b.', 'c']
        """
        return [self.units[(start + index) % len(self.units)] for index in range(count)]

    def text(self, start: int, count: int) -> str:
        """Return the units of `take` as one text; repetitions of the whole filler appear once."""
        return self.glue.join(self.take(start, min(count, len(self.units) + 1)))


def noise() -> Haystack:
    """Return the five sentences of the passkey test."""
    return Haystack(NOISE)


def passage(text: str) -> Haystack:
    """Return the words of a text, or pieces of 8 characters if the text has no spaces between words.

    Raises `RopeError` for a text without words.
    """
    units = tuple(text.split())
    if not units:
        raise RopeError(
            "retrieval: the text contains no words.",
            facts={"characters": len(text)},
            cure='Pass a text with words, or the haystack "noise".',
        )
    if sum(map(len, units)) <= _WORD * len(units):
        return Haystack(units)
    stop = rf"[{re.escape(_STOPS)}][{re.escape(_CLOSING)}]*"  # a piece ends with a sentence
    return Haystack(tuple(re.findall(rf".{{0,{_PIECE - 1}}}?{stop}|.{{1,{_PIECE}}}", " ".join(units), re.DOTALL)), "")


def words_of(text: str) -> tuple[str, ...]:
    """Return the different words of 4 to 8 lower-case letters in a text, sorted.

    >>> words_of("Some whales, whales; don't swim.")
    ('swim', 'whales')
    """
    return tuple(sorted(set(re.findall(r"(?<![\w'\u2019-])[a-z]{4,8}(?![\w'\u2019-])", text))))


@dataclasses.dataclass(frozen=True)
class Placed:
    """Filler with needles in it: the text, and the character at which each needle begins, in the given order."""

    text: str
    starts: tuple[int, ...]


def hide(units: Sequence[str], needles: Sequence[tuple[float, str]], glue: str = " ") -> Placed:
    """Insert each needle (text, and depth from 0 to 1 of the filler's characters) between two units, between spaces.

    It goes to the nearest end of a sentence if one is within a twentieth of the filler, else to the nearest end of a
    unit. Needles at the same place keep their order. `glue` joins the units, as in `Haystack`.

    >>> hide(["One.", "Two", "three.", "Four."], [(0.6, "HERE."), (0.0, "FIRST.")])
    Placed(text='FIRST. One. Two three. HERE. Four.', starts=(23, 0))
    """
    offsets = [0, *itertools.accumulate(len(unit) + len(glue) for unit in units)]
    stops = tuple(_STOPS)
    ends = [index for index, unit in enumerate(units, 1) if unit.rstrip(_CLOSING).endswith(stops)]
    sentences, every = [0, *ends, len(units)], range(len(offsets))
    standing: dict[int, list[int]] = defaultdict(list)
    for index, (depth, _) in enumerate(needles):
        asked = depth * offsets[-1]
        place = _nearest(sentences, offsets, asked)
        if abs(offsets[place] - asked) > _NEAR * offsets[-1]:
            place = _nearest(every, offsets, asked)
        standing[place].append(index)
    parts: list[str] = []
    starts, length = [0] * len(needles), 0

    def put(part: str, gap: str) -> None:
        nonlocal length
        parts.extend((gap, part) if parts else (part,))
        length += len(part) + len(gap) * (len(parts) > 1)

    for place in every:
        gap = glue
        for index in standing.get(place, ()):
            gap = " "
            put(needles[index][1], gap)
            starts[index] = length - len(needles[index][1])
        if place < len(units):
            put(units[place], gap)
    return Placed("".join(parts), tuple(starts))


def _nearest(places: Sequence[int], offsets: Sequence[int], asked: float) -> int:
    """Return the place with the offset nearest to `asked`; the first of two. `places` are in rising order."""
    right = bisect_left(places, asked, key=offsets.__getitem__)
    return min(places[max(0, right - 1) : right + 1], key=lambda place: abs(offsets[place] - asked))
