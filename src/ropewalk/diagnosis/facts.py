"""Facts: short sentences with random values, written into a text, and the questions about them.

Each fact gives a name a value: "The number of Lisbon is 482." Four neighbouring facts form a group. At the end of the
window the model is asked for the value of every name, as a choice between the four values of its group. *Far* facts lie
wholly farther back than the trained length, *near* ones wholly within it.

A model that is blind to the facts of a group gives the same answers whichever name has which value. So under each of
the 24 assignments of the four values to the four names, the number of right answers is known, and all are equally
likely: the exact distribution by chance, one in four on average, whatever the model's habits and however its answers
depend on each other.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from ropewalk.errors import RopeError
from ropewalk.statistics import binomial_interval

GROUP = 4  # facts that share their values: the choices of a question
CHANCE = 1 / GROUP
FIRST = 8  # tokens of a window before the first fact: models treat the first tokens differently
AFTER = 2  # tokens after a fact whose losses do not count
SHARE = 0.06  # of a window's tokens, facts in all
MOST_FAR, LEAST_FAR, MOST_NEAR, LEAST_NEAR = 48, 16, 20, 8
DENSEST = 0.3  # of the tokens of a region, facts in it
ENDS = frozenset(".!?\n\u3002\uff01\uff1f")  # the ends of sentences, also in Chinese and Japanese
Encode = Callable[[str], list[int]]
_WORD = re.compile(r"\w+")

_NAMES = """
Lisbon Oslo Cairo Lima Quito Delhi Tokyo Seoul Hanoi Kyoto Turin Milan Genoa Parma Siena Bruges Ghent Basel Berne
Cadiz Leon Porto Braga Cork Galway Derby Leeds York Bath Exeter Truro Dover Vienna Prague Warsaw Krakow Sofia Athens
Malta Cyprus Tunis Algiers Dakar Accra Lagos Nairobi Kampala Lusaka Harare Durban Boston Denver Dallas Austin Tucson
Phoenix Portland Seattle Toronto Ottawa Quebec Halifax Calgary Havana Bogota Caracas Santiago Brisbane Perth Adelaide
Hobart Darwin Suva Manila Jakarta Bangkok Rangoon Lahore Karachi Kabul Tehran Baghdad Damascus Beirut Amman Ankara
Izmir Tiflis Baku Yerevan Riga Tallinn Vilnius Minsk Kiev Odessa Bergen Malmo Aarhus Odense Bremen Hamburg Leipzig
Dresden Munich Ulm Trier Aachen Cologne Lyon Nantes Rennes Dijon Reims Calais Toulon Nice Seville Toledo Malaga Verona
Padua Modena Ravenna Naples Palermo Corfu Patras
"""
_WORDS = """
apple river stone table horse green silver window garden winter summer doctor letter hammer candle butter spring
bridge castle forest mirror basket ribbon needle pepper saddle kettle pillow lantern market orange yellow purple
copper velvet cotton leather marble timber barrel bottle button carpet curtain drawer engine feather flower guitar
hunter island jacket kitchen ladder machine monkey mountain napkin ocean oven pencil pigeon pocket potato rabbit
rocket school shadow shovel spider sponge statue tailor temple ticket tiger tower tunnel turtle umbrella valley violin
wagon walnut whale wheel wolf wool anchor arrow bell bread brush cake chair chain cloud clock coat coin corn crown
drum dust eagle egg fish flag flute fox frog glass glove goat gold grape hand hat hill honey house iron jar key king
knife lake lamp leaf lemon lion lock milk moon mouse nail nest nose nut oil onion owl paint paper pear pen pin pipe
plate plum pond queen rain rice ring road roof rope rose salt sand seed sheep ship shirt shoe silk snake snow soap
song soup spoon star steel storm straw sugar sun sword tea tent tin toast tool tooth train tree wall water wax wheat
wind wine wing wood
"""


@dataclass(frozen=True)
class Kind:
    """A kind of fact: the text before a value, and the values. The text names the subject as {name}."""

    name: str
    asks: str
    values: tuple[str, ...]


NUMBERS = Kind("numbers", " The number of {name} is", tuple(str(value) for value in range(1000, 10_000, 7)))
WORDS = Kind("words", " {name}", tuple(dict.fromkeys(_WORDS.split())))
KINDS = {kind.name: kind for kind in (NUMBERS, WORDS)}


def ids_after(encode: Encode, text: str) -> list[int]:
    """Return the ids of a piece of text inside a text: without what a tokenizer adds at the beginning of one."""
    before, whole = encode("."), encode(f".{text}")
    return whole[len(before) :] if whole[: len(before)] == before else encode(text)


@dataclass(frozen=True)
class PlacedFact:
    """One fact: its tokens are `start` to `end` of its window.

    - `choices`: the values of its group, and `right` the number of its own. `far`: whether it is a far fact.
    """

    name: str
    value: str
    start: int
    end: int
    group: int
    right: int
    choices: tuple[str, ...]
    far: bool


@dataclass(frozen=True)
class Layout:
    """How many facts a window has, and where. Lengths are in tokens.

    - `asked_at`: the tokens before the questions. The questions end at the window's end, so no position exceeds it.
    - `far`, `near`: the numbers of facts, multiples of four. `size`: the most tokens of one fact.

    >>> Layout.choose(8192, 16384, size=12, question=12)
    Layout(trained=8192, target=16384, asked_at=16372, far=48, near=20, size=12)
    """

    trained: int
    target: int
    asked_at: int
    far: int
    near: int
    size: int

    @classmethod
    def choose(cls, trained: int, target: int, *, size: int, question: int) -> Layout:
        """Choose the numbers of facts: 6 % of a window's tokens, at least 16 far and 8 near facts, at most 48 and 20.

        - `size`: the most tokens of a fact. `question`: of a question with its answer.

        Raises `RopeError` if a region is too short for one group.
        """
        asked_at = target - question
        room_far, room_near = asked_at - trained - FIRST, min(trained, asked_at) - question
        in_all = SHARE * target / (size + 1)
        far = min(max(0.7 * in_all, LEAST_FAR), MOST_FAR, DENSEST * room_far / size) if target > trained else 0.0
        near = min(max(0.3 * in_all, LEAST_NEAR), MOST_NEAR, DENSEST * room_near / size)
        counts = [GROUP * int(count // GROUP) for count in (far, near)]
        if counts[1] < GROUP or (target > trained and counts[0] < GROUP):
            least = cls.least(trained, target, size=size, question=question)
            raise RopeError(
                "doctor: the target leaves too few tokens for facts beyond the trained length, or within it.",
                facts={"target": target, "trained_length": trained, "tokens of four facts": GROUP * size},
                cure=f"Pass a --target of at least {least}." if target < least else "Pass the right --trained-length.",
            )
        return cls(trained, target, asked_at, counts[0], counts[1], size)

    @staticmethod
    def least(trained: int, target: int, *, size: int, question: int) -> int:
        """Return the shortest target with room for a group of facts beyond the trained length, or within it.

        - `target`: whether it exceeds the trained length decides between the two.
        """
        return math.ceil(GROUP * size / DENSEST) + question + (trained + FIRST if target > trained else question)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the range of tokens in which each fact begins: far ones first, then near ones, evenly spaced."""
        ranges: list[tuple[int, int]] = []
        regions = [(FIRST, self.asked_at - self.trained, self.far)]
        regions.append((max(FIRST, self.target - self.trained), self.asked_at - self.size, self.near))
        for start, end, count in regions:
            edges = np.linspace(start, end - self.size, count + 1).astype(int).tolist() if count else []
            ranges += list(itertools.pairwise(edges))
        return ranges


@dataclass(frozen=True)
class Filled:
    """A window with its facts. All arrays are by token.

    - `ids`: int64 `[target]`. `counted`: whether a token's loss counts: not in a fact, nor in the two tokens after it.
    - `questions`: of each fact, the ids to append and those of its choices.
    """

    ids: npt.NDArray[np.int64]
    counted: npt.NDArray[np.bool_]
    facts: tuple[PlacedFact, ...]
    questions: tuple[tuple[list[int], list[list[int]]], ...]

    @property
    def asked(self) -> int:
        """Return the tokens of all questions and choices."""
        return sum(len(question) + sum(map(len, choices)) for question, choices in self.questions)

    def within(self, tokens: int) -> list[int]:
        """Return the numbers of the facts whose whole group lies in the first tokens, far ones only."""
        last: dict[int, int] = {}
        for fact in self.facts:
            last[fact.group] = max(fact.end, last.get(fact.group, 0))
        return [number for number, fact in enumerate(self.facts) if fact.far and last[fact.group] <= tokens]


class Teller:
    """Write facts of one kind into windows of a text.

    - `encode`, `decode`: of the model's tokenizer.
    """

    def __init__(self, kind: Kind, encode: Encode, decode: Callable[[list[int]], str]) -> None:
        self.kind, self._decode, self._known_ends = kind, decode, dict[int, bool]()
        self._stop = ids_after(encode, ".")
        self._values = {value: ids_after(encode, f" {value}") for value in kind.values}
        by_size: dict[int, list[str]] = {}
        for value, ids in self._values.items():
            by_size.setdefault(len(ids), []).append(value)
        self._alike = max(by_size.values(), key=len)  # values of equally many tokens
        asks = {name: ids_after(encode, kind.asks.format(name=name)) for name in _NAMES.split()}
        longest = sorted(map(len, asks.values()))[3 * len(asks) // 4]  # names of many tokens are left out
        self._asks = {name: ids for name, ids in asks.items() if len(ids) <= longest}
        if min(len(self._asks), len(self._alike)) < LEAST_FAR + LEAST_NEAR:
            raise RopeError(
                f"doctor: the tokenizer has too few names or {kind.name} of equally many tokens.",
                facts={"names": len(self._asks), "values": len(self._alike)},
                cure="Measure with the tokenizer that the model was trained with.",
            )
        self.question = longest + len(self._values[self._alike[0]])
        self.size = self.question + len(self._stop)
        self.most = GROUP * (min(len(self._asks), len(self._alike)) // GROUP)  # facts of a window

    def least(self, trained: int) -> int:
        """Return the shortest target beyond the trained length that has room for facts."""
        return Layout.least(trained, trained + 1, size=self.size, question=self.question)

    def layout(self, trained: int, target: int) -> Layout:
        """Return the layout of windows of `target` tokens; raise `RopeError` if they are too short."""
        chosen = Layout.choose(trained, target, size=self.size, question=self.question)
        return replace(chosen, far=chosen.far - max(0, chosen.far + chosen.near - self.most))

    def fill(self, layout: Layout, body: Sequence[int], *, seed: Sequence[int]) -> Filled:
        """Return a window of `layout.target` tokens: the beginning of `body` with facts between its sentences.

        - `body`: token ids, at least as many as the window. `seed`: of names, values and places.
        """
        random = np.random.default_rng([*seed, 11])
        ranges = layout.ranges()
        known = set(_WORD.findall(self._decode(list(body[: layout.target]))))
        names = _drawn(list(self._asks), known, len(ranges), random)
        values = _drawn(self._alike, known, len(ranges), random)
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        rest = iter(body)
        for (low, high), name, value in zip(ranges, names, values, strict=True):
            wanted, latest = int(random.integers(low, max(low + 1, (low + high + 1) // 2))), max(low, high - 1)
            while len(ids) < latest and not (len(ids) >= wanted and self._ends(ids[-1])):
                ids.append(next(rest))
            fact_ids = [*self._asks[name], *self._values[value], *self._stop]
            spans.append((len(ids), len(ids) + len(fact_ids)))
            ids += fact_ids
        ids += itertools.islice(rest, layout.target - len(ids))
        counted = np.ones(layout.target, dtype=np.bool_)
        for start, end in ((0, 1), *((start, end + AFTER) for start, end in spans)):
            counted[start:end] = False
        facts, questions = [], []
        for number, (start, end) in enumerate(spans):
            group, right = divmod(number, GROUP)
            choices = tuple(values[group * GROUP : (group + 1) * GROUP])
            far = number < layout.far
            facts.append(PlacedFact(names[number], values[number], start, end, group, right, choices, far))
            questions.append((list(self._asks[names[number]]), [list(self._values[choice]) for choice in choices]))
        return Filled(np.array(ids), counted, tuple(facts), tuple(questions))

    def _ends(self, token: int) -> bool:
        """Return whether a token ends a sentence or a line."""
        if token not in self._known_ends:
            self._known_ends[token] = self._decode([token]).rstrip(" \"')")[-1:] in ENDS
        return self._known_ends[token]


def _drawn(words: Sequence[str], known: set[str], count: int, random: np.random.Generator) -> list[str]:
    """Return distinct words in random order; those that the text contains come last."""
    order = [words[number] for number in random.permutation(len(words))]
    chosen = sorted(order, key=lambda word: word in known)[:count]
    return [chosen[number] for number in random.permutation(count)]


@dataclass(frozen=True)
class Found:
    """How many facts a method found, of those asked. Chance is a quarter.

    - `low`, `high`: the exact binomial interval of the share (Clopper and Pearson 1934).
    - `p`: the probability of as many or more by chance, over all assignments of values to names in each group.

    >>> Found.of([[0, 1, 2, 3], [0, 1, 2, 3]], confidence=0.995).p == (1 / 24) ** 2
    True
    """

    found: int
    asked: int
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, groups: Iterable[Sequence[int]], *, confidence: float) -> Found:
        """Count the right answers of groups: each holds the four choices that were made; choice i is right for i."""
        answers = [tuple(group) for group in groups]
        asked = GROUP * len(answers)
        count = sum(choice == right for group in answers for right, choice in enumerate(group))
        by_chance = chance_of(answers)
        low, high = binomial_interval(count, asked, confidence=confidence)
        return cls(count, asked, low, high, float(min(1.0, by_chance[count:].sum())))

    def __str__(self) -> str:
        return f"{self.found} of {self.asked}"

    @property
    def share(self) -> float:
        """Return the share of facts found; nan if none was asked."""
        return self.found / self.asked if self.asked else math.nan

    def exceeds_chance(self, level: float) -> bool:
        """Return whether chance is refuted at this level, over all assignments of values to names."""
        return bool(self.asked) and self.p <= level


def chance_of(groups: Sequence[Sequence[int]]) -> npt.NDArray[np.float64]:
    """Return the probability of each number of right answers by chance, `[4 * groups + 1]`, given the choices made.

    >>> chance_of([(0, 0, 0, 0)]).tolist()  # one and the same choice is right once
    [0.0, 1.0, 0.0, 0.0, 0.0]
    """
    total = np.ones(1)
    for group in groups:
        total = np.convolve(total, _chance_of_group(tuple(group)))
    return total


@cache
def _chance_of_group(choices: tuple[int, ...]) -> npt.NDArray[np.float64]:
    counts = np.zeros(GROUP + 1)
    for values in itertools.permutations(range(GROUP)):
        counts[sum(choice == value for choice, value in zip(choices, values, strict=True))] += 1
    counts /= counts.sum()
    return counts
