"""Many needles in one text, each asked for after it: numbers by name, and chains of variables."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import ClassVar

from ropewalk.models.tokens import Tokenizer
from ropewalk.retrieval.aggregate import chain_wording, statements
from ropewalk.retrieval.chat import PLAIN, Frame
from ropewalk.retrieval.material import Haystack, alike, draw_names, hide, letters, number
from ropewalk.retrieval.names import NAMES
from ropewalk.retrieval.needles import Wording
from ropewalk.retrieval.questions import (
    GROUP,
    MOST,
    Hidden,
    QuestionDraft,
    QuestionSet,
    QuestionText,
    fill_text,
    groups_of,
    how_many,
)


@dataclasses.dataclass(frozen=True)
class ManyNumbers:
    """Numbers named by cities, spread evenly over one text; each city is asked for after it.

    The candidates of a question are the numbers of its group of cities; its answer is held against the others' numbers,
    or, where `absent` are drawn for each group, against those, which the text does not hold. With several `values`
    for each city every one of them is an answer of its question. A question has as many candidates as a text of
    `shortest` tokens has room for, so that chance is the same at every length.
    """

    name: str
    haystack: Haystack
    wording: Wording
    values: int = 1
    absent: int = 0
    frame: Frame = PLAIN
    shortest: int | None = None
    by_depth: ClassVar[bool] = False
    many: ClassVar[bool] = True

    def make(self, tokenizer: Tokenizer, length: int, depth: float | None, rng: Random) -> QuestionSet:
        """A set of at most `length` tokens; `depth` says nothing here."""
        start, wording = rng.randrange(len(self.haystack.units)), self.wording
        filler = self.haystack.text(start, length)  # at most: a unit has a token or more
        sample = " ".join(wording.needle.format(name=name, value=10 ** (wording.digits - 1)) for name in NAMES[:10])
        tokens = -(-len(tokenizer.encode(f" {sample}")) // 10) * self.values
        size = min((GROUP - self.absent) // self.values, how_many(self.shortest or length, tokens, task=self.name))
        count = how_many(length, tokens, group=size, most=MOST // self.values, task=self.name)
        groups, needles = groups_of(count, size), count * self.values
        names = draw_names(NAMES, count, filler, rng)
        numbers = alike(
            tokenizer, needles + self.absent * len(groups), lambda: number(rng, wording.digits), beside=filler
        )
        hidden = [
            ((place + rng.random()) / needles, wording.needle.format(name=names[place % count], value=numbers[place]))
            for place in range(needles)
        ]
        head = f"{self.frame.before}{wording.head}"

        def asked(starts: tuple[int, ...]) -> list[QuestionText]:
            questions = []
            for index, group in enumerate(groups):
                own = [place for place in range(needles) if place % count in group]
                lures = range(needles + index * self.absent, needles + (index + 1) * self.absent)
                for city in group:
                    others = tuple(lures) or tuple(place for place in own if place % count != city)
                    answers = [place for place in own if place % count == city]
                    questions.append(
                        QuestionText(
                            self.frame.question(wording, names[city]),
                            (*own, *lures),
                            tuple(Hidden(place, others, len(head) + starts[place]) for place in answers),
                        )
                    )
            return questions

        def render(units: int) -> QuestionDraft:
            placed = hide(self.haystack.take(start, units), hidden, self.haystack.glue)
            text = f"{head}{placed.text}\n"
            return QuestionDraft(text, (len(head), len(text) - 1), tuple(numbers), tuple(asked(placed.starts)))

        return fill_text(tokenizer, length, render, task=self.name)


@dataclasses.dataclass(frozen=True)
class ManyChains:
    """Chains of assignments as in `VariableTracking`; each chain's value is asked for after the text.

    The candidates are the last variables of a group of chains. An answer's distance is that of its chain's first
    statement, as all are needed.
    """

    haystack: Haystack
    hops: int = 2
    frame: Frame = PLAIN
    shortest: int | None = None
    name: ClassVar[str] = "vt"
    by_depth: ClassVar[bool] = False
    many: ClassVar[bool] = True

    def make(self, tokenizer: Tokenizer, length: int, depth: float | None, rng: Random) -> QuestionSet:
        """A set of at most `length` tokens; `depth` says nothing here."""
        per, start = self.hops + 1, rng.randrange(len(self.haystack.units))
        wording = chain_wording(per)
        filler = self.haystack.text(start, length)  # at most: a unit has a token or more
        tokens = per * len(tokenizer.encode(" VAR QWXZK = VAR ZJVQK."))
        size = min(GROUP, how_many(self.shortest or length, tokens, task=self.name))
        count = how_many(length, tokens, group=size, task=self.name)
        variables = alike(tokenizer, count * per, lambda: letters(rng, 5, upper=True), beside=filler)
        values = alike(tokenizer, count, lambda: number(rng, 5), beside=filler)
        chains = [variables[index * per : (index + 1) * per] for index in range(count)]
        needles = statements(chains, values, rng)
        first = [next(n for n, (_, text) in enumerate(needles) if text.endswith(f" {value}.")) for value in values]
        head = f"{self.frame.before}{wording.head}"

        def render(units: int) -> QuestionDraft:
            placed = hide(self.haystack.take(start, units), needles, self.haystack.glue)
            text = f"{head}{placed.text}\n"
            asked = []
            for group in groups_of(count, size):
                for chain in group:
                    others = tuple(other for other in group if other != chain)
                    answer = Hidden(chain, others, len(head) + placed.starts[first[chain]], deep=False)
                    asked.append(QuestionText(self.frame.question(wording, values[chain]), tuple(group), (answer,)))
            candidates = tuple(chain[-1] for chain in chains)
            return QuestionDraft(text, (len(head), len(text) - 1), candidates, tuple(asked))

        return fill_text(tokenizer, length, render, task=self.name)
