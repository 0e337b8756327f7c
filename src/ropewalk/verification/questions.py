"""What a check compares: hypotheses, and prompts with our predictions under each of them. It does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ropewalk.progress import Progress
from ropewalk.rope.values import HORIZON
from ropewalk.verification.engine import NextTokens
from ropewalk.verification.outcome import Prediction

QUESTIONS, LATER_QUESTIONS = 6, 16  # prompts of the first round and of each other, which compares closer hypotheses
CONFIRMING = 4  # prompts of the length that a verdict covers
SHIFTED, SHIFTS = 40, 3  # tokens of prompts that are sent again without their first tokens, and times of each
ONE_TOKEN = 4  # prompts of a single token


class Compared(Protocol):
    """One hypothesis about an engine, of a model or from a golden file; see `ropewalk.methods.faults.Hypothesis`."""

    @property
    def name(self) -> str: ...

    @property
    def minor(self) -> bool: ...

    @property
    def small(self) -> bool: ...

    @property
    def borders(self) -> Set[int]:
        """Return the lengths in tokens after which it may change."""

    def at(self, length: int) -> tuple[object, ...]:
        """Return a value that equal hypotheses share for a prompt of `length` tokens."""


_Compared = TypeVar("_Compared", bound=Compared)


@dataclass(frozen=True)
class PromptQuestion:
    """A prompt, and our predictions by the name of a hypothesis.

    - `generated`: the tokens that the engine generates before the compared answer; empty for prompts only.
    """

    input_ids: Sequence[int]
    predictions: Mapping[str, Prediction]
    generated: Sequence[int] = ()

    def aligned(self, answer: NextTokens) -> tuple[Mapping[int, float], Mapping[str, Prediction]]:
        """Return the log-probabilities of an answer and our predictions, ready for comparison.

        A token that no prediction contains has at most `Prediction.least` under each. It is left out if this is true of
        the answer, such as for a token that an engine has sampled.
        """
        ours = self.predictions.values()
        top = {
            token: value
            for token, value in answer.top.items()
            if any(token in one.values or value > one.least for one in ours)
        }
        return top or answer.top, self.predictions


class Side(Protocol):
    """Our side of a check, computed by a model (`OurSide`) or loaded from a file (`Golden`).

    - `model`: its name. `expected`: a description of the expected rope. `trained`, `up_to`: lengths in tokens.
    - `all`: the hypotheses by name, the expected one first. `left_out`: those without predictions.
    - `prefix_ids`: the ids before every text. `sample`: a text and its ids.
    - `rounds`: the shortest and longest prompt of each round, if they are fixed.
    """

    model: str
    expected: str
    trained: int
    up_to: int
    left_out: tuple[str, ...]
    rounds: Sequence[tuple[int, int]] | None

    @property
    def all(self) -> Mapping[str, Compared]: ...

    @property
    def prefix_ids(self) -> list[int]: ...

    @property
    def sample(self) -> tuple[str, list[int]]: ...

    def single(self, progress: Progress) -> Sequence[PromptQuestion]:
        """Return prompts of one token, for which no rope matters, with one prediction named ""."""

    def questions(
        self, number: int, span: tuple[int, int], alive: Collection[str], best: str, progress: Progress
    ) -> Sequence[PromptQuestion]:
        """Return the prompts of a round, of `span` tokens, at which the hypotheses differ most from the best."""

    def shifted(self, progress: Progress) -> Sequence[PromptQuestion]:
        """Return prompts, each followed by the same one without its first tokens, with the expected prediction."""

    def confirming(self, last: int, progress: Progress) -> Sequence[PromptQuestion]:
        """Return prompts of about `last` tokens with the expected prediction."""

    def decoding(self, progress: Progress) -> Sequence[PromptQuestion]:
        """Return prompts with generated tokens, and predictions under hypotheses about positions in decoding."""


def first_difference(one: Compared, other: Compared) -> int | None:
    """Return the length of the shortest prompt, next to a border of either, at which they differ; None if none does.

    >>> from ropewalk import RopeConfig
    >>> from ropewalk.rope.model_ropes import ModelRopes
    >>> from ropewalk.rope.scaling import DynamicNTK
    >>> from ropewalk.methods.faults import Hypothesis
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
