"""RULER's tasks that need more than one place: variable tracking, common words and frequent words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from random import Random
from typing import ClassVar

from ropewalk.models.tokens import Tokenizer
from ropewalk.retrieval.example import Draft, Example, finish, fit
from ropewalk.retrieval.material import Haystack, alike, draw_words, hide, letters, number, unused
from ropewalk.retrieval.needles import Wording

_DISTRACTORS = 7
_ASKED = 3
_LEAST_CODED = 60  # words with which the third most frequent still stands out
_ZETA_2 = math.pi**2 / 6


@dataclasses.dataclass(frozen=True)
class VariableTracking:
    """Chains "VAR A = 12345. VAR B = VAR A. ...": which variables have the value?

    Every chain has its own value; statements stand in order, at random depths, the chains mixed. The choice is among
    the chains' last variables, so that a value has to be followed over all `hops`; a full completion names the whole
    chain. Source: Hsieh et al. 2024, section 3 (arXiv:2404.06654), where other chains are optional.
    """

    haystack: Haystack
    chains: int = 4
    hops: int = 2
    name: ClassVar[str] = "vt"
    by_depth: ClassVar[bool] = False
    many: ClassVar[bool] = False

    @property
    def choices(self) -> int:
        """Choices of one example: one chain each."""
        return self.chains

    def make(self, tokenizer: Tokenizer, length: int, depth: float | None, rng: Random) -> Example:
        """An example of at most `length` tokens; `depth` says nothing here."""
        per, start = self.hops + 1, rng.randrange(len(self.haystack.units))
        filler = self.haystack.text(start, length)  # at most: a unit has a token or more
        names = alike(tokenizer, self.chains * per, lambda: letters(rng, 5, upper=True), beside=filler)
        values = alike(tokenizer, self.chains, lambda: number(rng, 5), beside=filler)
        chains = [names[index * per : (index + 1) * per] for index in range(self.chains)]
        needles = statements(chains, values, rng)
        wording = chain_wording(per)
        head, tail = wording.head, wording.question(values[0])
        own = [index for index, (_, text) in enumerate(needles) if text.split()[1] in chains[0]]

        def render(filler: int) -> Draft:
            placed = hide(self.haystack.take(start, filler), needles, self.haystack.glue)
            return Draft(
                prompt=f"{head}{placed.text}\n{tail}",
                answers=tuple(reversed(chains[0])),
                distractors=tuple(chain[-1] for chain in chains[1:]),
                needles=tuple(len(head) + placed.starts[index] for index in own),
            )

        return finish(tokenizer, fit(tokenizer, length, render, task=self.name))


def statements(chains: Sequence[Sequence[str]], values: Sequence[str], rng: Random) -> list[tuple[float, str]]:
    """Each chain's assignments in order, at random depths: depth and text of each, the first of them first."""
    needles: list[tuple[float, str]] = []
    for chain, value in zip(chains, values, strict=True):
        assigned = [value, *(f"VAR {name}" for name in chain)]
        depths = sorted(rng.random() for _ in chain)
        needles += [(at, f"VAR {name} = {of}.") for at, name, of in zip(depths, chain, assigned, strict=False)]
    return sorted(needles)  # so that chains are mixed also where their statements meet at one place


def chain_wording(variables: int) -> Wording:
    """RULER's wording for chains of so many variables; the name is the value that is asked for."""
    return Wording(
        head="Memorize and track the chains of variable assignment hidden in the following text.\n",
        needle="VAR {name} = {value}.",
        ask="Question: Find all variables that are assigned the value {name} in the text above. Answer:",
        lead=(
            f"According to the chain of variable assignment in the text above, {variables} variables are assigned the "
            "value {name}, they are:"
        ),
    )


@dataclasses.dataclass(frozen=True)
class CommonWords:
    """A numbered list in which `common` words stand `times` times and all others `rare` times.

    The others are as many as fit. The choice is between one common word and seven of the others. RULER has 10 words 30
    times and the others 3 times, which needs some 4,000 tokens; the defaults fit into 256.
    Source: Hsieh et al. 2024, section 3 (arXiv:2404.06654).
    """

    words: tuple[str, ...]
    common: int = 3
    times: int = 5
    rare: int = 1
    name: ClassVar[str] = "cwe"
    by_depth: ClassVar[bool] = False
    many: ClassVar[bool] = False
    choices: ClassVar[int] = 1 + _DISTRACTORS

    def make(self, tokenizer: Tokenizer, length: int, depth: float | None, rng: Random) -> Example:
        """An example of at most `length` tokens; `depth` says nothing here."""
        head = (
            "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones "
            "that appear most often.\n"
        )
        tail = (
            f"\nQuestion: What are the {self.common} most common words in the above list? Answer: The top "
            f"{self.common} words that appear most often in the list are:"
        )

        words = unused(self.words, head + tail)
        known = draw_words(tokenizer, self.common + _DISTRACTORS, words, rng)
        common, others = known[: self.common], known[self.common :]
        taken = set(known)
        more = [word for word in words if word not in taken]
        rng.shuffle(more)
        order = rng.getrandbits(64)

        def render(filler: int) -> Draft:
            listed = common * self.times + (others + more[:filler]) * self.rare
            Random(order).shuffle(listed)
            body = " ".join(f"{index}. {word}" for index, word in enumerate(listed, 1))
            return Draft(prompt=f"{head}{body}{tail}", answers=tuple(common), distractors=tuple(others))

        return finish(tokenizer, fit(tokenizer, length, render, task=self.name, most=len(more)))


@dataclasses.dataclass(frozen=True)
class FrequentWords:
    """Coded words whose counts fall with the square of their rank, the first rank being dots to ignore.

    The three most frequent coded words are asked for; the choice is between one of them and seven of the rarer ones.
    Source: Hsieh et al. 2024, section 3 (arXiv:2404.06654), with its exponent of 2.
    """

    name: ClassVar[str] = "fwe"
    by_depth: ClassVar[bool] = False
    many: ClassVar[bool] = False
    choices: ClassVar[int] = 1 + _DISTRACTORS

    def make(self, tokenizer: Tokenizer, length: int, depth: float | None, rng: Random) -> Example:
        """An example of at most `length` tokens; `depth` says nothing here."""
        most = len(zipf_counts(max(length, _LEAST_CODED)))
        known = alike(tokenizer, _ASKED + _DISTRACTORS, lambda: letters(rng, 6))
        rest = alike(tokenizer, most, lambda: letters(rng, 6))
        coded = ["....", *known, *(word for word in rest if word not in known)]
        order, asked = rng.getrandbits(64), rng.randrange(_ASKED)
        answers = (known[asked], *(word for index, word in enumerate(known[:_ASKED]) if index != asked))
        head = (
            "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
            "appeared coded words.\n"
        )
        tail = (
            "\nQuestion: Please ignore the dots '....'. What are the three most frequently appeared words in the above "
            "coded text? Answer: According to the coded text above, the three most frequently appeared words are:"
        )

        def render(total: int) -> Draft:
            counts = zipf_counts(total)
            listed = [word for word, count in zip(coded, counts, strict=False) for _ in range(count)]
            Random(order).shuffle(listed)
            return Draft(prompt=f"{head}{' '.join(listed)}{tail}", answers=answers, distractors=tuple(known[_ASKED:]))

        return finish(tokenizer, fit(tokenizer, length, render, task=self.name, least=_LEAST_CODED))


def zipf_counts(total: int) -> list[int]:
    """How often each rank occurs among about `total` words: total / (zeta(2) rank^2), and at least eleven ranks.

    >>> zipf_counts(60)
    [36, 9, 4, 2, 1, 1, 1, 1, 1, 1, 1]
    """
    ranks = max(1 + _ASKED + _DISTRACTORS, math.isqrt(int(total / _ZETA_2)))
    return [max(1, int(total / (_ZETA_2 * rank * rank))) for rank in range(1, ranks + 1)]
