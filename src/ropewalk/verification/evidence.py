"""How well each hypothesis explains an engine's answers, with an error that is estimated from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropewalk.statistics import t_quantile
from ropewalk.verification.predictions import Prediction, Values

SAME = 1e-3  # nats: what predictions that are the same may differ by, in float32


@dataclass(frozen=True)
class Probe:
    """One prompt: its length in tokens, the engine's log-probabilities, and ours under each hypothesis read."""

    tokens: int
    answer: Mapping[int, float]
    predictions: Mapping[str, Prediction]

    @property
    def ids(self) -> list[int]:
        """The tokens of the answer."""
        return list(self.answer)

    @property
    def given(self) -> Values:
        """The engine's log-probabilities of these tokens."""
        return np.array(list(self.answer.values()))

    def misfit(self, name: str) -> float:
        """The mean absolute difference in nats between the answer and a hypothesis."""
        return float(np.abs(self.given - self.predictions[name].of(self.ids)).mean())


def misfit(questions: Sequence[Probe], name: str) -> float:
    """The mean misfit in nats over the questions that were read under a hypothesis; NaN where none was."""
    found = [question.misfit(name) for question in questions if name in question.predictions]
    return float(np.mean(found)) if found else math.nan


def likelihoods(questions: Sequence[Probe], names: Sequence[str]) -> dict[str, float]:
    """The log-likelihood of each hypothesis in nats, relative to the best.

    Errors are taken as Laplace's, one draw for each question (the tokens of an answer err together), with a scale that
    is each hypothesis's own best: the likelihood is then (mean misfit)^-questions. A hypothesis that was given up early
    is compared over the questions that it shares with the best.
    """
    best = min(names, key=lambda name: misfit(questions, name))
    found = {}
    for name in names:
        shared = [question for question in questions if name in question.predictions]
        ratio = max(misfit(shared, name), 1e-9) / max(misfit(shared, best), 1e-9)
        found[name] = -len(shared) * math.log(ratio)
    top = max(found.values())
    return {name: value - top for name, value in found.items()}


@dataclass(frozen=True)
class Lean:
    """How far answers lie on the way from one hypothesis to another: 0 at the first, 1 at the second.

    `share` is the least-squares estimate, `half` the half width of its interval; `explained` the part of the first's
    squared error that goes away with it. All are None where fewer than three answers tell the two apart.
    """

    share: float | None = None
    half: float | None = None
    explained: float | None = None

    @property
    def refuted(self) -> bool:
        """Whether the answers are shown to lie nearer to the first."""
        return self.share is not None and self.half is not None and self.share + self.half < 0.5

    @property
    def leaves(self) -> bool:
        """Whether the answers have left the first along this line, either way: then their error is no noise."""
        if self.share is None or self.half is None or self.explained is None:
            return False
        return self.explained > 0.5 and abs(self.share) > self.half


def lean(questions: Sequence[Probe], one: str, other: str, *, comparisons: int) -> Lean:
    """How far the answers lie from `one` towards `other`, over the questions that both were read for.

    The answers' distance from `one` is projected on the line to `other`; errors at right angles to it do not count. A
    question counts the less the larger its error is beside the mean: quantised engines err much after a few prompts.
    The interval is Student's, with one residual for each question; of `comparisons` all hold together in 95 % of cases.
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
