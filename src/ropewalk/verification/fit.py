"""How well hypotheses fit an engine's answers: prompts, our predictions, and statistics. It does not import torch."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from ropewalk.progress import Progress
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
    """Our side of a check, computed by a model (`OurSide`) or loaded from a file (`Golden`).

    - `model`: its name. `expected`: a description of the expected rope. `trained`, `up_to`: lengths in tokens.
    - `all`: the hypotheses by name, the expected one first. `left_out`: those without predictions.
    - `prefix_ids`: the ids before every text. `sample`: a text and its ids.
    - `rounds`: the shortest and longest prompt of each round, if they are fixed. `progress`: of the check.
    - `single`: prompts of one token, for which no rope matters, with one prediction named "".
    - `questions`: the prompts of a round, of `span` tokens, at which the hypotheses differ most from the best.
    - `shifted`: prompts, each followed by the same one without its first tokens, with the expected prediction.
    - `confirming`: prompts of about `last` tokens with the expected prediction.
    - `decoding`: prompts with generated tokens, and predictions under hypotheses about positions in decoding.
    """

    model: str
    expected: str
    trained: int
    up_to: int
    left_out: tuple[str, ...]
    rounds: Sequence[tuple[int, int]] | None
    progress: Progress

    @property
    def all(self) -> Mapping[str, Compared]: ...
    @property
    def prefix_ids(self) -> list[int]: ...
    @property
    def sample(self) -> tuple[str, list[int]]: ...
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
