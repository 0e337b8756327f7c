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

import functools
import itertools
import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ropewalk.errors import RopeError
from ropewalk.ledger import fingerprint
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
SAMPLE, SAMPLED = 20_000, 500  # characters of a text that tell its language; values that tell their tokens
_WORD, _PAIR = re.compile(r"[^\W\u4e00-\u9fff]+"), re.compile(r"(?=([\u4e00-\u9fff]{2}))")
_HAN, _KANA, _MARKS = re.compile("[\u4e00-\u9fff]"), re.compile("[\u3040-\u30ff]"), re.compile(r"[(){}\[\]=;_<>]")

_TABLE = json.loads(resources.files("ropewalk.diagnosis").joinpath("wordings.json").read_text(encoding="utf-8"))


class Wording(NamedTuple):
    """The language of facts, or "code"; and in a chat, what opens and ends a user's turn and opens an answer."""

    language: str = "english"
    chat: tuple[str, str, str] | None = None

    @classmethod
    def of(cls, text: str) -> Wording:
        """Return the wording for a text, from 20,000 characters of its middle; English if its language is not known.

        >>> Wording.of("La vie est dans les livres et le vent du soir, que des amis aiment. " * 20).language
        'french'
        """
        part = text[max(0, (len(text) - SAMPLE) // 2) :][:SAMPLE]
        chat = next((tuple(turn) for turn in _TABLE["chats"] if part.count(turn[0]) >= 2), None)
        solid = max(1, sum(not letter.isspace() for letter in part))
        if chat is None and len(_MARKS.findall(part)) >= 0.05 * solid:
            return cls("code")
        if len(_HAN.findall(part)) >= 0.3 * solid and not _KANA.search(part):
            return cls("chinese", chat)
        words = Counter(_WORD.findall(part.lower()))
        counts = {
            language: sum(words[word] for word in of["function words"].split())
            for language, of in _TABLE["languages"].items()
        }
        best = max(counts, key=counts.__getitem__)
        return cls(best if counts[best] >= 0.08 * words.total() else "english", chat)


@dataclass(frozen=True)
class Kind:
    """A kind of fact in a language.

    - `asks`: the text before a value, with the subject as {name}, and `question` in full. `value`: the value in the
      text, as {value}; `stop`: the text after it.
    """

    name: str
    asks: str
    question: str
    value: str
    stop: str
    names: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def of(cls, name: str, language: str = "english") -> Kind:
        """Return the kind of this name in a language."""
        table = _TABLE["languages"][language]
        values = tuple(map(str, range(1000, 10_000))) if name == "numbers" else tuple(table["nouns"].split())
        asks, question, value, stop = table[name]
        return cls(name, asks, question, value, stop, tuple(table["names"].split()), values)


NUMBERS, WORDS = Kind.of("numbers"), Kind.of("words")
KINDS = {kind.name: kind for kind in (NUMBERS, WORDS)}


def ids_after(encode: Encode, text: str) -> list[int]:
    """Return the ids of a piece of text inside a text: without what a tokenizer adds at the beginning of one."""
    before, whole = encode("."), encode(f".{text}")
    return whole[len(before) :] if whole[: len(before)] == before else encode(text)


@dataclass(frozen=True)
class PlacedFact:
    """One fact: its tokens are `start` to `end` of its window.

    - `choices`: the values of its group, and `right` the number of its own. `far`: whether it is a far fact.
    - `told`: its text.
    """

    name: str
    value: str
    start: int
    end: int
    group: int
    right: int
    choices: tuple[str, ...]
    far: bool
    told: str = ""


@dataclass(frozen=True, kw_only=True)
class Window:
    """One window: its text's number, its first token there, its facts, and the tokens counted in each block.

    - `frequencies`: the loss of token frequencies within the trained length, in nats per token.
    """

    text: int
    start: int
    facts: tuple[PlacedFact, ...]
    counted: tuple[int, ...]
    frequencies: float


@dataclass(frozen=True)
class Layout:
    """How many facts a window has, and where. Lengths are in tokens.

    - `asked_at`: the tokens before the questions. The questions end at the window's end, so no position exceeds it.
    - `size`: the most tokens of one fact. `far`: how many of the first facts are far ones.
    - `bands`: `[start, end)` and the number of facts of each, a multiple of four. A fact lies wholly in its band.

    >>> Layout.choose(8192, 16384, size=12, question=12).bands
    ((8, 8180, 48), (8192, 16360, 20))
    """

    target: int
    asked_at: int
    size: int
    far: int
    bands: tuple[tuple[int, int, int], ...]

    @classmethod
    def choose(cls, trained: int, target: int, *, size: int, question: int, most: int = MOST_FAR + MOST_NEAR) -> Layout:
        """Choose the numbers of facts: 6 % of a window's tokens, at least 16 far and 8 near facts, at most 48 and 20.

        - `size`: the most tokens of a fact. `question`: of a question with its answer. `most`: facts in all.

        Raises `RopeError` if a region is too short for one group.
        """
        asked_at = target - question
        room_far, room_near = asked_at - trained - FIRST, min(trained, asked_at) - question
        in_all = SHARE * target / (size + 1)
        far = min(max(0.7 * in_all, LEAST_FAR), MOST_FAR, DENSEST * room_far / size)
        near = min(max(0.3 * in_all, LEAST_NEAR), MOST_NEAR, DENSEST * room_near / size)
        of_far, of_near = (GROUP * max(0, int(count // GROUP)) for count in (far, near))
        if of_near < GROUP or (target > trained and of_far < GROUP):
            least = cls.least(trained, target, size=size, question=question)
            raise RopeError(
                "doctor: the target leaves too few tokens for facts beyond the trained length, or within it.",
                facts={"target": target, "trained_length": trained, "tokens of four facts": GROUP * size},
                cure=f"Pass a --target of at least {least}." if target < least else "Pass the right --trained-length.",
            )
        of_far = min(of_far, most - of_near)
        near_ones = max(FIRST, target - trained), asked_at - size, of_near
        return cls(target, asked_at, size, of_far, ((FIRST, asked_at - trained, of_far), near_ones))

    @staticmethod
    def least(trained: int, target: int, *, size: int, question: int) -> int:
        """Return the shortest target with room for a group of facts beyond the trained length, or within it.

        - `target`: whether it exceeds the trained length decides between the two.
        """
        return math.ceil(GROUP * size / DENSEST) + question + (trained + FIRST if target > trained else question)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the range of tokens in which each fact begins: band by band, evenly spaced."""
        edges = [
            np.linspace(start, end - self.size, count + 1).astype(int).tolist() for start, end, count in self.bands
        ]
        return [pair for of_band in edges for pair in itertools.pairwise(of_band)]


@dataclass(frozen=True)
class Filled:
    """A window with its facts. All arrays are by token.

    - `ids`: int64 `[target]`. `counted`: whether a token's loss counts: not in a fact, nor in the two tokens after it.
    - `questions`: of each fact, the ids to append and those of its choices. `asked_at`: the tokens before them.
    """

    ids: npt.NDArray[np.int64]
    counted: npt.NDArray[np.bool_]
    facts: tuple[PlacedFact, ...]
    questions: tuple[tuple[list[int], list[list[int]]], ...]
    asked_at: int

    @property
    def asked(self) -> int:
        """Return the tokens of all questions and choices."""
        return sum(len(question) + sum(map(len, choices)) for question, choices in self.questions)


class _Said:
    """The token ids of a kind of facts in one wording: of what is told and asked about each name, and of each value."""

    def __init__(self, kind: Kind, chat: tuple[str, str, str] | None, encode: Encode) -> None:
        self.before, close, answer = chat or ("\n" if kind.asks[0] == "\n" else "", "", "")
        asks = kind.asks if chat is None else kind.asks.lstrip()
        opening, question = ("", "") if chat is None else (self.before, self.before + kind.question + close + answer)
        self.ahead = len(ids_after(encode, self.before))
        self.values = cache(lambda value: ids_after(encode, kind.value.format(value=value)))
        self.stop = ids_after(encode, kind.stop + close)
        tells = {name: ids_after(encode, opening + asks.format(name=name)) for name in kind.names}
        longest = sorted(map(len, tells.values()))[3 * len(tells) // 4]  # names of many tokens are left out
        self.tells = {name: ids for name, ids in tells.items() if len(ids) <= longest}
        self.asks = {name: ids_after(encode, (question + asks).format(name=name)) for name in self.tells}
        sizes = Counter(len(self.values(value)) for value in kind.values[:: -(-len(kind.values) // SAMPLED)])
        (self.of_value, self.enough), self.kind = max(sizes.items(), key=lambda one: one[1]), kind
        self.question = max(map(len, self.asks.values())) + self.of_value
        self.size = longest + self.of_value + len(self.stop)


class Teller:
    """Write facts of one kind into windows of a text.

    - `encode`, `decode`: of the model's tokenizer. `wordings`: of the texts; all have the same layout.
    """

    def __init__(
        self, kind: Kind, encode: Encode, decode: Callable[[list[int]], str], wordings: Sequence[Wording] = (Wording(),)
    ) -> None:
        self.kind, self._decode, self._known_ends = kind, decode, dict[int, bool]()
        self._said = {one: _Said(Kind.of(kind.name, one.language), one.chat, encode) for one in wordings}
        said = self._said.values()
        self.most = GROUP * (min(min(len(one.asks), one.enough) for one in said) // GROUP)  # facts of a window
        if self.most < LEAST_FAR + LEAST_NEAR:
            raise RopeError(
                f"doctor: the tokenizer has too few names or {kind.name} of equally many tokens.",
                facts={"names": min(len(one.asks) for one in said), "values": min(one.enough for one in said)},
                cure="Measure with the tokenizer that the model was trained with.",
            )
        self.question = max(one.question for one in said)
        self.size = max(one.size for one in said)

    def least(self, trained: int) -> int:
        """Return the shortest target beyond the trained length that has room for facts."""
        return Layout.least(trained, trained + 1, size=self.size, question=self.question)

    def layout(self, trained: int, target: int) -> Layout:
        """Return the layout of windows of `target` tokens; raise `RopeError` if they are too short."""
        return Layout.choose(trained, target, size=self.size, question=self.question, most=self.most)

    def fill(
        self, layout: Layout, body: Sequence[int], *, seed: Sequence[object], told: set[tuple[str, str]] | None = None,
        wording: Wording | None = None,
    ) -> Filled:  # fmt: skip
        """Return a window of `layout.target` tokens: the beginning of `body` with facts between its sentences.

        - `body`: token ids, at least as many as the window. Names, values and places are drawn from them and `seed`.
        - `told`: names and values of earlier facts, to which those of this window are added. A group has none of the
          earlier pairs under any of its assignments, as long as the names and values suffice, so the distribution by
          chance stays exact.
        - `wording`: one of the teller's; None: its first.
        """
        said = self._said[wording] if wording else next(iter(self._said.values()))
        body, told = list(body[: layout.target]), set() if told is None else told
        random = np.random.default_rng(int(fingerprint(tuple(seed), np.array(body, dtype=np.int64).tobytes()), 16))
        ranges, text = layout.ranges(), self._decode(body)
        known = {*_WORD.findall(text), *_PAIR.findall(text)}
        names = _drawn([*said.asks], known, random)[: len(ranges)]
        random.shuffle(names)
        drawn = _drawn(said.kind.values, known | {value for _, value in told}, random)
        fitting = (value for value in drawn if len(said.values(value)) == said.of_value)
        pool = list(itertools.islice(fitting, GROUP * len(names)))
        values: list[str] = []
        for place in range(0, len(names), GROUP):
            four = names[place : place + GROUP]
            pool.sort(key=lambda value, four=four: any((name, value) in told for name in four))  # type: ignore[misc]
            values += [pool[number] for number in random.permutation(GROUP)]
            del pool[:GROUP]
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        read = 0
        for (low, high), name, value in zip(ranges, names, values, strict=True):
            wanted, latest = int(random.integers(low, max(low + 1, (low + high + 1) // 2))), max(low, high - 1)
            while len(ids) < latest and not (
                len(ids) >= wanted and self._fits(said.before, ids[-1], body[read : read + said.ahead])
            ):
                ids.append(body[read])
                read += 1
            fact_ids = [*said.tells[name], *said.values(value), *said.stop]
            spans.append((len(ids), len(ids) + len(fact_ids)))
            ids += fact_ids
        ids += body[read : read + layout.target - len(ids)]
        counted = np.ones(layout.target, dtype=np.bool_)
        for start, end in ((0, 1), *((start, end + AFTER) for start, end in spans)):
            counted[start:end] = False
        facts, questions = [], []
        for number, (start, end) in enumerate(spans):
            group, right = divmod(number, GROUP)
            choices = tuple(values[group * GROUP : (group + 1) * GROUP])
            far = number < layout.far
            text = self._decode(ids[start:end]).strip()
            facts.append(PlacedFact(names[number], values[number], start, end, group, right, choices, far, text))
            questions.append((list(said.asks[names[number]]), [list(said.values(choice)) for choice in choices]))
        told |= {(fact.name, fact.value) for fact in facts}
        return Filled(np.array(ids), counted, tuple(facts), tuple(questions), layout.asked_at)

    def _fits(self, before: str, token: int, following: list[int]) -> bool:
        """Return whether a token ends a sentence or a line; if `before` is not empty, whether it follows."""
        if before:
            return self._decode(following).startswith(before)
        if token not in self._known_ends:
            self._known_ends[token] = self._decode([token]).rstrip(" \"')")[-1:] in ENDS
        return self._known_ends[token]


def _drawn(words: Sequence[str], known: set[str], random: np.random.Generator) -> list[str]:
    """Return words in random order, known ones last."""
    return sorted((words[number] for number in random.permutation(len(words))), key=lambda word: word in known)


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
        return self.p <= level


def chance_of(groups: Iterable[tuple[int, ...]]) -> npt.NDArray[np.float64]:
    """Return the probability of each number of right answers by chance, `[4 * groups + 1]`, given the choices made.

    >>> chance_of([(0, 0, 0, 0)]).tolist()  # one and the same choice is right once
    [0.0, 1.0, 0.0, 0.0, 0.0]
    """
    return functools.reduce(np.convolve, map(_chance_of_group, groups), np.ones(1))


@cache
def _chance_of_group(choices: tuple[int, ...]) -> npt.NDArray[np.float64]:
    right = [sum(map(operator.eq, choices, values)) for values in itertools.permutations(range(GROUP))]
    return np.bincount(right, minlength=GROUP + 1) / len(right)
