"""Needles in a haystack: passkey, and RULER's single, multi-key and multi-value needles."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import ClassVar

from ropewalk.models.tokens import Tokenizer
from ropewalk.retrieval.example import Draft, Example, finish, fit
from ropewalk.retrieval.material import Haystack, alike, draw_names, draw_words, hide, number, unused

CHOICES = 8
"""Choices where distractors are drawn rather than found in the text."""
PASSKEY_DIGITS, RULER_DIGITS = 5, 7


@dataclasses.dataclass(frozen=True)
class Wording:
    """How a number is hidden and asked for: texts with {name} and {value}.

    `head` opens the text. `ask` is the question and `lead` how its answer begins; without `asks` the answer is begun
    without a question, but where a chat needs one.
    """

    needle: str
    lead: str
    ask: str
    head: str = ""
    asks: bool = True
    digits: int = PASSKEY_DIGITS

    def question(self, name: str) -> str:
        """The question and the beginning of its answer."""
        return f"{self.ask} {self.lead}".format(name=name) if self.asks else self.lead.format(name=name)

    def unsaid(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """The words that it does not say itself."""
        return unused(words, f"{self.head} {self.needle} {self.ask} {self.lead}".format(name="", value=""))


NUMBERS = Wording(
    needle="The number of {name} is {value}.",
    lead="The number of {name} is",
    ask="What is the number of {name}?",
    asks=False,
)
"""The wording that small models answer best: 18 of 24 questions, where four others have 9 to 16."""
PASS_KEY = Wording(
    needle="The pass key is {value}. Remember it. {value} is the pass key.",
    lead="The pass key is",
    ask="What is the pass key?",
    head=(
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize it. "
        "I will quiz you about the important information there.\n"
    ),
)

MANY_PASS_KEYS = dataclasses.replace(
    PASS_KEY,
    needle="The pass key of {name} is {value}. Remember it. {value} is the pass key of {name}.",
    lead="The pass key of {name} is",
    ask="What is the pass key of {name}?",
)


@dataclasses.dataclass(frozen=True)
class OneNumber:
    """A number of five digits in a text that holds no other of them; the distractors are numbers that it does not hold.

    The pass key has no name, and stands between repeated noise. Source of its format: Mohtashami and Jaggi 2023
    (arXiv:2305.16300); Chen et al. 2023, section 3.4 (arXiv:2306.15595).
    """

    name: str
    haystack: Haystack
    wording: Wording
    names: tuple[str, ...] = ()
    by_depth: ClassVar[bool] = True
    many: ClassVar[bool] = False
    choices: ClassVar[int] = CHOICES

    def make(self, tokenizer: Tokenizer, length: int, depth: float, rng: Random) -> Example:
        """An example of at most `length` tokens, the needle at `depth` (0: first, 1: last) of the filler."""
        start = rng.randrange(len(self.haystack.units))
        filler = self.haystack.text(start, length)  # at most: a unit has a token or more
        key, *others = alike(tokenizer, CHOICES, lambda: number(rng, self.wording.digits), beside=filler)
        name = draw_names(self.names, 1, filler, rng)[0] if self.names else ""
        needle = self.wording.needle.format(name=name, value=key)
        head, tail = self.wording.head, self.wording.question(name)

        def render(count: int) -> Draft:
            placed = hide(self.haystack.take(start, count), [(depth, needle)], self.haystack.glue)
            return Draft(
                prompt=f"{head}{placed.text}\n{tail}",
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
    many: ClassVar[bool] = False

    @property
    def choices(self) -> int:
        """Choices of one example."""
        return CHOICES if self.keys == 1 else 1 + (self.keys - 1) * self.values

    def make(self, tokenizer: Tokenizer, length: int, depth: float, rng: Random) -> Example:
        """An example of at most `length` tokens, the asked key's first value at `depth` of the filler."""
        start, count = rng.randrange(len(self.haystack.units)), self.values * self.keys
        wording = ruler(count, self.values)
        head = wording.head
        keys = draw_words(tokenizer, self.keys, wording.unsaid(self.words), rng)
        drawn = alike(
            tokenizer,
            count if self.keys > 1 else count - 1 + CHOICES,
            lambda: number(rng, wording.digits),
            beside=self.haystack.text(start, length),  # at most: a unit has a token or more
        )
        held = drawn[:count]
        depths = [depth, *(rng.random() for _ in held[1:])]
        needles = [
            (place, wording.needle.format(name=keys[index // self.values], value=value))
            for index, (place, value) in enumerate(zip(depths, held, strict=True))
        ]
        tail = wording.question(keys[0])

        def render(filler: int) -> Draft:
            placed = hide(self.haystack.take(start, filler), needles, self.haystack.glue)
            return Draft(
                prompt=f"{head}{placed.text}\n{tail}",
                answers=tuple(held[: self.values]),
                distractors=tuple(drawn[self.values :]),
                needles=tuple(len(head) + begin for begin in placed.starts),
                needle_length=len(needles[0][1]),
                filler=(len(head), len(head) + len(placed.text)),
            )

        return finish(tokenizer, fit(tokenizer, length, render, task=self.name))


def ruler(needles: int, values: int) -> Wording:
    """RULER's wording where so many numbers are hidden, and a question is about so many values."""
    several = "s" if needles > 1 else ""
    opening = (
        "Some special magic numbers are hidden within the following text. Make sure to memorize them."
        if several
        else "A special magic number is hidden within the following text. Make sure to memorize it."
    )
    asked = "for {name} mentioned in the provided text"
    what = "special magic numbers" if values > 1 else "special magic number"
    return Wording(
        head=f"{opening} I will quiz you about the number{several} afterwards.\n",
        needle="One of the special magic numbers for {name} is: {value}.",
        ask=f"What are all the {what} {asked}?" if values > 1 else f"What is the {what} {asked}?",
        lead=f"The {what} {asked} are" if values > 1 else f"The {what} {asked} is",
        digits=RULER_DIGITS,
    )
