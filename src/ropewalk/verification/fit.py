"""How well hypotheses fit an engine's answers: prompts, predictions, statistics, and the record of a check.

It does not import torch.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ropewalk.progress import Progress
from ropewalk.records import document
from ropewalk.rope.values import HORIZON
from ropewalk.statistics import t_quantile
from ropewalk.verification.engine import NextTokens

if TYPE_CHECKING:
    from ropewalk.audit.faults import Hypothesis

DESIGN_TOP = 20  # tokens by which two predictions are compared to choose prompts
SAME = 1e-3  # nats: the largest difference in float32 of predictions that are the same
Values = npt.NDArray[np.float64]


# hypotheses


@dataclass(frozen=True)
class RecordedHypothesis:
    """A hypothesis in a golden file, with groups of equal hypotheses instead of positions.

    `groups[i]` is equal for hypotheses that agree on prompts from `lengths[i]` tokens up to the next length.
    """

    name: str
    lengths: tuple[int, ...]
    groups: tuple[int, ...]
    minor: bool
    small: bool
    by_frequencies = False  # longer prompts, which might show it, are not in the file

    def at(self, length: int) -> tuple[object, ...]:
        """Return the group for prompts of `length` tokens; hypotheses in one group agree."""
        return (self.groups[max(0, bisect.bisect_right(self.lengths, length) - 1)],)

    @property
    def borders(self) -> set[int]:
        """Return the lengths in tokens after which it may change."""
        return {length - 1 for length in self.lengths}


Compared: TypeAlias = "Hypothesis | RecordedHypothesis"
_Compared = TypeVar("_Compared", bound=Compared)


def first_difference(one: Compared, other: Compared) -> int | None:
    """Return the length of the shortest prompt, next to a border of either, at which they differ; None if none does.

    >>> from ropewalk import RopeConfig
    >>> from ropewalk.rope.model_ropes import ModelRopes
    >>> from ropewalk.rope.scaling import DynamicNTK
    >>> from ropewalk.audit.faults import Hypothesis
    >>> ropes = [RopeConfig(8, interleaved=False, max_position_embeddings=64, scaling=rule)
    ...          for rule in (None, DynamicNTK(2.0))]
    >>> first_difference(*(Hypothesis("", ModelRopes((rope,), (None,), (None,))) for rope in ropes))
    65
    """
    lengths = {2, HORIZON, *(border + 1 for border in one.borders | other.borders)}
    return next((length for length in sorted(lengths) if one.at(length) != other.at(length)), None)


def different(all_of_them: Mapping[str, _Compared], up_to: int) -> dict[str, _Compared]:
    """Return the hypotheses that differ from each other for a prompt of at most `up_to` tokens."""
    distinct: dict[str, _Compared] = {}
    for hypothesis in all_of_them.values():
        lengths = [first_difference(hypothesis, other) for other in distinct.values()]
        if all(length is not None and length <= up_to for length in lengths):
            distinct[hypothesis.name] = hypothesis
    return distinct


# prompts and answers


class Prediction:
    """The log-probabilities of the likeliest next tokens, in nats.

    `least`: the value of every other token; None: the smallest of `top`.
    """

    def __init__(self, top: Sequence[tuple[int, float]], least: float | None = None) -> None:
        self.values = dict(top)
        self.least = min(self.values.values()) if least is None else least

    @property
    def likeliest(self) -> list[int]:
        """Return the tokens, the likeliest first."""
        return list(self.values)

    @property
    def lead(self) -> float:
        """Return the distance in nats from the likeliest token to the next one."""
        first, second = list(self.values.values())[:2]
        return first - second

    def of(self, tokens: Sequence[int]) -> Values:
        """Return the log-probability of each of these tokens."""
        return np.array([self.values.get(token, self.least) for token in tokens])


def distance(one: Prediction, other: Prediction) -> float:
    """Return the mean absolute difference in nats, over the likeliest tokens of `one`."""
    tokens = one.likeliest[:DESIGN_TOP]
    return float(np.abs(one.of(tokens) - other.of(tokens)).mean())


@dataclass(frozen=True)
class PromptQuestion:
    """A prompt, and our predictions by the name of a hypothesis.

    - `generated`: the tokens that the engine generates before the compared answer; empty for prompts only.
    """

    input_ids: Sequence[int]
    predictions: Mapping[str, Prediction]
    generated: Sequence[int] = ()

    def probe(self, answer: NextTokens) -> Probe:
        """Return the log-probabilities of an answer and our predictions of the same tokens.

        A token that no prediction contains has at most `Prediction.least` under each. It is left out if this is true of
        the answer, such as for a token that an engine has sampled.
        """
        ours = self.predictions.values()
        top = {
            token: value
            for token, value in answer.top.items()
            if any(token in one.values or value > one.least for one in ours)
        }
        return self.compared(top or answer.top, self.predictions)

    def compared(self, answer: Mapping[int, float], predictions: Mapping[str, Prediction]) -> Probe:
        """Return an answer to this prompt and predictions of its tokens."""
        length = len(self.input_ids) + len(self.generated)
        return Probe(length, answer, {name: one.of(list(answer)) for name, one in predictions.items()})


Prompts = Sequence[PromptQuestion]


class Side(Protocol):
    """Our side of a check, computed by a model (`OurSide`, which describes the prompts) or from a file (`Golden`).

    - `model`: its name. `expected`: a description of the expected rope. `trained`, `up_to`: lengths in tokens.
    - `all`: the hypotheses by name, the expected one first. `left_out`: those without predictions.
    - `prefix_ids`: the ids before every text. `sample`: a text and its ids.
    - `rounds`: the shortest and longest prompt of each round, if they are fixed. `progress`: of the check.
    """

    model: str
    expected: str
    trained: int
    up_to: int
    left_out: tuple[str, ...]
    prefix_ids: list[int]
    sample: tuple[str, list[int]]
    rounds: Sequence[tuple[int, int]] | None
    progress: Progress

    @property
    def all(self) -> Mapping[str, Compared]: ...
    def single(self) -> Prompts: ...
    def questions(self, number: int, span: tuple[int, int], alive: Collection[str], best: str) -> Prompts: ...
    def shifted(self) -> Prompts: ...
    def confirming(self, last: int) -> Prompts: ...
    def decoding(self) -> Prompts: ...


@dataclass(frozen=True)
class Probe:
    """The answer to one prompt: its length in tokens, the engine's log-probabilities, and ours by hypothesis."""

    tokens: int
    answer: Mapping[int, float]
    ours: Mapping[str, Values]

    @classmethod
    def joined(cls, probes: Sequence[Probe]) -> Probe:
        """Return the answers to one request as one: errors of its generated tokens are dependent."""
        given = np.concatenate([probe.given for probe in probes])
        ours = {name: np.concatenate([one.ours[name] for one in probes]) for name in probes[0].ours}
        return cls(probes[-1].tokens, dict(enumerate(given.tolist())), ours)

    @cached_property
    def given(self) -> Values:
        """Return the engine's log-probabilities."""
        return np.array(list(self.answer.values()))

    def misfit_of(self, other: Probe) -> float:
        """Return the mean absolute difference in nats from another answer to the same prompt.

        A token that the other answer does not contain has at most the smallest of its values there.
        """
        least = min(other.answer.values())
        apart = [abs(v - other.answer.get(token, min(v, least))) for token, v in self.answer.items()]
        return float(np.mean(apart))

    def misfit(self, name: str) -> float:
        """Return the mean absolute difference in nats between the answer and a hypothesis."""
        return float(np.abs(self.given - self.ours[name]).mean())


# statistics


def misfit(probes: Sequence[Probe], name: str) -> float:
    """Return the mean misfit in nats over the answers with a prediction of this hypothesis; NaN if there is none."""
    each = [probe.misfit(name) for probe in probes if name in probe.ours]
    return float(np.mean(each)) if each else math.nan


@dataclass(frozen=True)
class Lean:
    """The position of answers on the line from one hypothesis (0) to another (1).

    - `share`: the least-squares estimate. `half`: the half width of its interval.
    - `explained`: the fraction of the first's squared error that it removes.

    All are NaN if fewer than three answers distinguish the two hypotheses.
    """

    share: float = math.nan
    half: float = math.nan
    explained: float = math.nan

    @property
    def refuted(self) -> bool:
        """Return whether the whole interval is nearer to the first hypothesis, which refutes the other."""
        return self.share + self.half < 0.5

    @property
    def leaves(self) -> bool:
        """Return whether the answers differ from the first along this line; their error is then not noise."""
        return self.explained > 0.5 and abs(self.share) > self.half


def lean(probes: Sequence[Probe], one: str, other: str, *, comparisons: int) -> Lean:
    """Estimate the position of the answers between `one` and `other`, over the prompts with predictions of both.

    The answers' difference from `one` is projected onto the line to `other`; orthogonal errors do not count.
    Answers with a large error count less, because quantised engines have large errors after a few prompts. The
    interval is Student's, with one residual for each prompt and Bonferroni's correction for `comparisons` at 95 %.
    """
    rows = []
    for probe in probes:
        if {one, other} <= probe.ours.keys():
            error, way = probe.given - probe.ours[one], probe.ours[other] - probe.ours[one]
            if np.abs(way).max() >= SAME:
                rows.append((way @ error, way @ way, error @ error))
    if len(rows) < 3:
        return Lean()
    count, (along, across, errors) = len(rows), np.array(rows).T
    weights = 1.0 / (errors + max(float(errors.mean()), 1e-30))
    total = float(weights @ across)
    share = float(weights @ along) / total
    residuals = weights * (along - share * across)
    half = math.sqrt(float(residuals @ residuals) * count / (count - 1)) / total
    explained = share * float(along.sum()) / max(float(errors.sum()), 1e-30)
    return Lean(share, t_quantile(count - 1, comparisons) * half, explained)


def kept_error(groups: Sequence[Sequence[Probe]], name: str) -> float:
    """Return the share of a hypothesis' squared error that answers of one group have in common; NaN without any."""
    shared = total = 0.0
    for pair in itertools.chain.from_iterable(itertools.combinations(group, 2) for group in groups):
        errors = [dict(zip(probe.answer, probe.given - probe.ours[name], strict=True)) for probe in pair]
        one, other = (np.array([error[token] for token in errors[0] if token in errors[1]]) for error in errors)
        shared += float(one @ other)
        total += float(one @ one + other @ other) / 2
    return shared / total if total else math.nan


# the record of a check

Kind = Literal["as expected", "other", "none", "tokens", "replicas", "undecided"]
"""As expected, another hypothesis, none of the hypotheses, other tokens, replicas that differ, not distinguished."""


@dataclass(frozen=True)
class Effect:
    """The mean change of the answers by a hypothesis, and the engine's noise where it acts, in nats; NaN if unknown."""

    name: str
    nats: float
    noise: float

    @property
    def hidden(self) -> bool:
        """Return whether the noise hides it."""
        return self.nats < self.noise

    def __str__(self) -> str:
        if not self.hidden:
            return self.name
        return f"{self.name} (its effect, {self.nats:.2g} nats, is below the engine's noise, {self.noise:.2g} nats)"


@dataclass(frozen=True)
class EngineVerdict:
    """The conclusion of a check.

    - `kind`: see `Kind`.
    - `expected`: a description of the expected rope.
    - `up_to`: the longest prompt, in tokens, for which the conclusion holds.
    - `applied`: the hypotheses that explain the answers, the best first.
    - `not_told_apart`: for "undecided", the hypotheses not distinguished from the best.
    - `needs_tokens`: the longest prompt that would distinguish these or `not_excluded`; None if longer ones do not
      help.
    - `detail`: a sentence with a fact about this conclusion.
    - `not_excluded`: hypotheses that the answers do not exclude: the engine's noise is larger than their effect.
    - `decoding`: whether answers after generated tokens agree, too; None if they were not measured or do not decide.
    """

    kind: Kind
    expected: str
    up_to: int
    applied: tuple[str, ...] = ()
    not_told_apart: tuple[str, ...] = ()
    needs_tokens: int | None = None
    detail: str = ""
    not_excluded: tuple[Effect, ...] = ()
    decoding: bool | None = None

    @property
    def exit_status(self) -> int:
        """Return 0 as expected, 1 other than expected, 3 undecided."""
        return {"as expected": 0, "undecided": 3}.get(self.kind, 1)

    @property
    def sentence(self) -> str:
        """Return the conclusion in one sentence.

        >>> EngineVerdict("other", "plain RoPE", 256, applied=("yarn 4",)).sentence
        'Applies yarn 4 instead of plain RoPE.'
        """
        if self.kind == "as expected":
            decoding = " and in decoding" if self.decoding else ""
            hidden = f" Could not exclude: {'; '.join(map(str, self.not_excluded))}." if self.not_excluded else ""
            sentence = f"As expected, for prompts of up to {self.up_to:,} tokens{decoding}: {self.expected}. "
            return f"{sentence}{self.detail}".rstrip() + hidden
        if self.kind == "undecided":
            cure = self.detail or "the prompts of another --text"
            if self.needs_tokens is not None:
                cure = f"prompts of up to {self.needs_tokens:,} tokens"
            return f"Cannot distinguish {_either(self.applied)} and {_either(self.not_told_apart)}: needs {cure}."
        start = {
            "other": f"Applies {_either(self.applied)} instead of {self.expected}.",
            "none": f"Neither {self.expected} nor any other hypothesis explains the answers.",
            "replicas": "Replicas differ:",
            "tokens": "Different tokenizer:",
        }[self.kind]
        return f"{start} {self.detail}".rstrip()


def _either(names: Sequence[str]) -> str:
    shown = list(names[:3]) + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
    return " or ".join(shown)


@dataclass(frozen=True)
class HypothesisFit:
    """The fit of one hypothesis to the answers.

    - `misfit`: the mean absolute difference in nats.
    - `ratio`: its misfit divided by that of the best over the same prompts.
    - `lean`, `lean_half`: the position of the answers from the best (0) to it (1), and half its interval.
    - `questions`: the number of prompts with its predictions.
    - `differs_from`: the length in tokens of the shortest prompt at which it differs from the best.
    """

    name: str
    misfit: float | None
    ratio: float | None
    lean: float | None
    lean_half: float | None
    questions: int
    differs_from: int | None


@dataclass(frozen=True)
class PromptFit:
    """The length of a prompt in tokens, and the misfit in nats of each hypothesis with a prediction for it."""

    tokens: int
    misfit: dict[str, float]


@dataclass(frozen=True, repr=False)
class Verification:
    """The result of `rw.verify`.

    - `model`, `engine`: their names.
    - `verdict`: the conclusion.
    - `hypotheses`: the fit of each, the best first.
    - `prompts`: those with an answer.
    - `noise`: the engine's error in nats on prompts of one token, which no rope changes; None if not measured.
    - `residual`: the misfit of the best hypothesis. `repeated`: the difference of two answers to the same prompt.
    - `tokenisation`: a description of the comparison of tokens.
    - `left_out`: hypotheses that our side cannot compute for this model.
    - `requests`, `seconds`: the cost.
    """

    model: str
    engine: str
    verdict: EngineVerdict
    hypotheses: tuple[HypothesisFit, ...]
    prompts: tuple[PromptFit, ...]
    noise: float | None
    residual: float | None
    repeated: float | None
    tokenisation: str
    left_out: tuple[str, ...]
    requests: int
    seconds: float

    @property
    def exit_status(self) -> int:
        """Return 0 as expected, 1 other than expected, 3 undecided."""
        return self.verdict.exit_status

    def __str__(self) -> str:
        return self.verdict.sentence

    def __repr__(self) -> str:
        return f"Verification({self.model} in {self.engine}: {self.verdict.kind})"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data for strict JSON, without API keys and with only the lengths of prompts."""
        return document(self, kind="verification")
