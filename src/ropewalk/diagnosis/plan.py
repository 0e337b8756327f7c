"""The plan of a measurement: its windows, each method's positions, how it is set in a config, and the jobs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ropewalk.checkpoints.reader import Reader
from ropewalk.diagnosis.facts import Filled, Window, Wording
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import METHODS, Reach, chosen_methods
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.tokenizer import TextTokenizer

PLAIN, CROP = "plain", "crop"
LOOKS = (1, 2, 4, 8)
"""Numbers of windows after which a run looks at its results."""
MOST_WINDOWS = LOOKS[-1]
BLOCK = 64  # most positions of a block
CROP_TOKENS = 512  # tokens that crop scores in a window, at least, unless fewer lie beyond
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True)
class Text:
    """The name, contents and tokens of a text."""

    name: str
    contents: str
    tokens: Sequence[int]

    @cached_property
    def wording(self) -> Wording:
        """Return the wording of its facts."""
        return Wording.of(self.contents)

    @cached_property
    def digest(self) -> str:
        """Return a short hash of the contents."""
        return fingerprint(self.contents)

    @classmethod
    def encode(cls, texts: Sequence[tuple[str, str]], tokenizer: TextTokenizer) -> tuple[Text, ...]:
        """Tokenise texts, given as names and contents."""
        return tuple(cls(name, contents, tokenizer.encode(contents)) for name, contents in texts)


def characters_of(texts: Sequence[Text], tokens: int) -> int:
    """Return about the number of characters of so many tokens of these texts, rounded up to a thousand."""
    characters, of = sum(len(text.contents) for text in texts), sum(len(text.tokens) for text in texts)
    return 1000 * math.ceil(tokens * (characters / of if of else 4) / 1000)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """The windows of a measurement. Lengths are in tokens.

    - `windows`: their number, of all texts together. They alternate between the texts. `seed` draws their places.
    """

    trained_length: int
    target: int
    windows: int
    seed: int = 0

    @property
    def extends(self) -> bool:
        """Return whether windows are longer than the trained length."""
        return self.target > self.trained_length

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Return `[start, end)` of each block of positions: at most 64; a new one begins at the trained length.

        >>> Design(trained_length=128, target=160, windows=1).blocks[-2:]
        ((128, 144), (144, 160))
        """
        block = max(4, min(BLOCK, self.trained_length // 8))
        within = min(self.trained_length, self.target)
        return tuple(
            (start, min(start + block, end))
            for first, end in ((0, within), (within, self.target))
            for start in range(first, end, block)
        )

    def crop_steps(self, window: int) -> tuple[tuple[int, int], ...]:
        """Return `[first, end)` of the tokens that crop scores in a window: a sample, spread over the part beyond.

        A step is a quarter of the trained length, which is read in a fresh window.

        >>> Design(trained_length=8192, target=16384, windows=2).crop_steps(0)
        ((12288, 14336),)
        """
        stride = max(1, self.trained_length // 4)
        starts = range(self.trained_length, self.target, stride)
        count = min(len(starts), -(-CROP_TOKENS // stride))
        offset = (0.5 + window * _GOLDEN) % 1
        chosen = [starts[int((number + offset) * len(starts) / count)] for number in range(count)]
        return tuple((start, min(start + stride, self.target)) for start in chosen)

    def places(self, tokens: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return the text and the first token of each window, in rounds over the texts, in random order in each text.

        - `tokens`: of each text, together enough for the windows. Windows of a text are disjoint, with random gaps.
          Texts shorter than a window are left out.
        """
        places = [(number, text) for text, length in enumerate(tokens) for number in range(length // self.target)]
        order = sorted(places)[: self.windows]
        counts = Counter(text for _, text in order)
        starts = [self._starts(length, counts[text], text) for text, length in enumerate(tokens)]
        return tuple((text, starts[text][number]) for number, text in order)

    def _starts(self, tokens: int, windows: int, text: int) -> list[int]:
        """Return the first tokens of a text's windows, in random order."""
        random, spare = np.random.default_rng([self.seed, text]), tokens - windows * self.target
        gaps = np.sort(random.integers(0, spare + 1, windows))
        starts = [int(gap) + index * self.target for index, gap in enumerate(gaps)]
        return [starts[number] for number in random.permutation(windows)]


@dataclasses.dataclass(frozen=True)
class Job:
    """One window under one method. `key`: in the ledger. `tokens`, `pairs` of a query and a key: its work."""

    method: str
    window: int
    key: str
    tokens: int
    pairs: float

    @classmethod
    def of(cls, method: str, window: int, key: str, tokens: int, *, asked: int = 0, times: int = 1) -> Job:
        """Return the job of `times` texts of `tokens` tokens, with so many tokens of questions at the end of one.

        >>> Job.of("plain", 0, "key", 3, asked=2)
        Job(method='plain', window=0, key='key', tokens=5, pairs=12.0)
        """
        pairs = times * tokens * (tokens + 1) / 2 + asked * tokens
        return cls(method, window, key, times * tokens + asked, pairs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What is measured for one target: the positions of each method, in order, and the windows.

    - `same_as`: maps a method to an earlier one with equal frequencies at this length.
    - `configs`: the keys of config.json under each method; None if none express it. `engines`: those that can run it.
    - `filled`: the windows of `texts` with their facts. `windows`: the same for the evidence.
    """

    design: Design
    positions: Mapping[str, ModelRopes]
    same_as: Mapping[str, str]
    configs: Mapping[str, dict[str, Any] | None]
    engines: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    texts: tuple[Text, ...] = ()
    filled: tuple[Filled, ...] = ()
    windows: tuple[Window, ...] = ()

    @cached_property
    def _digests(self) -> dict[str, str]:
        return {name: fingerprint(positions) for name, positions in self.positions.items()}

    @property
    def distinct(self) -> tuple[str, ...]:
        """Return the methods with numbers of their own."""
        return tuple(name for name in self.positions if name not in self.same_as)

    @property
    def first(self) -> list[Job]:
        """Return the jobs of the first answer."""
        return self.due(1, self.distinct)

    def key(self, method: str, window: int) -> str:
        """Return a job's key in the ledger, which contains a digest of the method's positions."""
        return f"{method}/{self._digests[method]}/{window}"

    def due(self, windows: int, methods: Collection[str], saved: Ledger | tuple[()] = ()) -> list[Job]:
        """Return the jobs of these methods in the first windows, by window, but those whose key is in `saved`."""
        jobs, of = list[Job](), self.design
        for window in range(windows):
            for name in (name for name in self.distinct if name in methods):
                key = self.key(name, window)
                if name == CROP:
                    jobs.append(Job.of(name, window, key, of.trained_length, times=len(of.crop_steps(window))))
                else:
                    jobs.append(Job.of(name, window, key, of.target, asked=self.filled[0].asked))
        return [job for job in jobs if job.key not in saved]


def runs_in(engine: str | None, engines: Sequence[str]) -> bool:
    """Return whether an engine is among those that run a method; Python, which None includes, runs all."""
    return engine in (None, "python", *engines)


def make_plan(reader: Reader, design: Design, methods: Sequence[str] | None) -> Plan:
    """Plan the measurement: always plain, crop if the target exceeds the trained length, each distinct form once.

    Raises `RopeError` if a method is unknown or does not apply.
    """
    reach, own = Reach(design.trained_length, design.target), reader.positions
    crop = [CROP] * (design.extends and CROP not in (methods or ()))
    chosen = chosen_methods([*methods, *crop] if methods else None, own, reach)
    if CROP in chosen and not design.extends:
        raise RopeError(
            "doctor: crop differs from plain only if the target exceeds the trained length.",
            facts={"target": reach.target, "trained_length": reach.trained},
            cure="Pass a longer --target, or leave out crop.",
        )
    positions = {name: METHODS[name].positions(own, reach) for name in chosen}
    same_as: dict[str, str] = {}
    seen: dict[object, str] = {}
    for name in chosen:
        if name != CROP:
            first = seen.setdefault((_angles(positions[name], reach.target), positions[name].extensions), name)
            if first != name:
                same_as[name] = first
    configs = {name: None if METHODS[name].crops else reader.config_under(name, reach) for name in chosen}
    return Plan(design=design, positions=positions, same_as=same_as, configs=configs)


def _angles(positions: ModelRopes, seq_len: int) -> object:
    """Return each layer's frequencies and attention factor at this length, which define a method's computation."""
    distinct = {rope: (rope.columns_at(seq_len), rope.attention_factor_at(seq_len)) for rope in positions.present_ropes}
    return tuple(None if rope is None else distinct[rope] for rope in positions.ropes)
