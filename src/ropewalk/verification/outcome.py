"""The fit of each hypothesis to an engine's answers, and the conclusion of a check."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ropewalk.records import document
from ropewalk.statistics import t_quantile

DESIGN_TOP = 20  # tokens by which two predictions are compared to choose prompts
SAME = 1e-3  # nats: the largest difference in float32 of predictions that are the same


Values = npt.NDArray[np.float64]


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
class Probe:
    """One prompt: its length in tokens, the engine's log-probabilities, and ours under each hypothesis."""

    tokens: int
    answer: Mapping[int, float]
    predictions: Mapping[str, Prediction]

    @classmethod
    def joined(cls, probes: Sequence[Probe]) -> Probe:
        """Return the answers to one request as one: errors of its generated tokens are dependent."""
        answer = dict(enumerate(value for probe in probes for value in probe.given))
        return cls(
            probes[-1].tokens,
            answer,
            {
                name: Prediction(list(enumerate(v for probe in probes for v in probe.predictions[name].of(probe.ids))))
                for name in probes[0].predictions
            },
        )

    @property
    def ids(self) -> list[int]:
        """Return the tokens of the answer."""
        return list(self.answer)

    @property
    def given(self) -> Values:
        """Return the engine's log-probabilities of these tokens."""
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
        return float(np.abs(self.given - self.predictions[name].of(self.ids)).mean())


def misfit(questions: Sequence[Probe], name: str) -> float:
    """Return the mean misfit in nats over the questions with a prediction of this hypothesis; NaN if there is none."""
    each = [question.misfit(name) for question in questions if name in question.predictions]
    return float(np.mean(each)) if each else math.nan


@dataclass(frozen=True)
class Lean:
    """The position of answers on the line from one hypothesis (0) to another (1).

    - `share`: the least-squares estimate. `half`: the half width of its interval.
    - `explained`: the fraction of the first's squared error that it removes.

    All are None if fewer than three answers distinguish the two hypotheses.
    """

    share: float | None = None
    half: float | None = None
    explained: float | None = None

    @property
    def refuted(self) -> bool:
        """Return whether the whole interval is nearer to the first hypothesis, which refutes the other."""
        return self.share is not None and self.half is not None and self.share + self.half < 0.5

    @property
    def leaves(self) -> bool:
        """Return whether the answers differ from the first along this line; their error is then not noise."""
        if self.share is None or self.half is None or self.explained is None:
            return False
        return self.explained > 0.5 and abs(self.share) > self.half


def lean(questions: Sequence[Probe], one: str, other: str, *, comparisons: int) -> Lean:
    """Estimate the position of the answers between `one` and `other`, over the questions with predictions of both.

    The answers' difference from `one` is projected onto the line to `other`; orthogonal errors do not count.
    Questions with a large error count less, because quantised engines have large errors after a few prompts. The
    interval is Student's, with one residual for each question and Bonferroni's correction for `comparisons` at 95 %.
    """
    along, across, errors = [], [], []
    for question in questions:
        if one not in question.predictions or other not in question.predictions:
            continue
        first = question.predictions[one].of(question.ids)
        way = question.predictions[other].of(question.ids) - first
        if np.abs(way).max() < SAME:
            continue
        along.append(float(way @ (question.given - first)))
        across.append(float(way @ way))
        errors.append(float((question.given - first) @ (question.given - first)))
    if len(across) < 3:
        return Lean()
    count, way, error = len(across), np.array(along), np.array(errors)
    weights = 1.0 / (error + max(float(error.mean()), 1e-30))
    total = float(weights @ np.array(across))
    share = float(weights @ way) / total
    residuals = weights * (way - share * np.array(across))
    half = math.sqrt(float(residuals @ residuals) * count / (count - 1)) / total
    explained = share * sum(along) / max(sum(errors), 1e-30)
    return Lean(share, t_quantile(count - 1, comparisons) * half, explained)


def kept_error(groups: Sequence[Sequence[Probe]], name: str) -> float:
    """Return the share of a hypothesis' squared error that answers of one group have in common; NaN without any."""
    shared = total = 0.0
    for one, other in itertools.chain.from_iterable(itertools.combinations(group, 2) for group in groups):
        tokens = [token for token in one.ids if token in other.answer]
        errors = [np.array([x.answer[t] for t in tokens]) - x.predictions[name].of(tokens) for x in (one, other)]
        shared += float(errors[0] @ errors[1])
        total += float(errors[0] @ errors[0] + errors[1] @ errors[1]) / 2
    return shared / total if total else math.nan


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
            covered = f"for prompts of up to {self.up_to:,} tokens{decoding}"
            return f"As expected, {covered}: {self.expected}. {self.detail}".rstrip() + hidden
        if self.kind == "other":
            return f"Applies {_either(self.applied)} instead of {self.expected}. {self.detail}".rstrip()
        if self.kind == "none":
            return f"Neither {self.expected} nor any other hypothesis explains the answers. {self.detail}"
        if self.kind == "replicas":
            return f"Replicas differ: {self.detail}"
        if self.kind == "tokens":
            return f"Different tokenizer: {self.detail}"
        cure = (
            (self.detail or "the prompts of another --text")
            if self.needs_tokens is None
            else f"prompts of up to {self.needs_tokens:,} tokens"
        )
        return f"Cannot distinguish {_either(self.applied)} and {_either(self.not_told_apart)}: needs {cure}."


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
