"""The record of a check: its conclusion, and the fit of each hypothesis to the engine's answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ropewalk.records import document

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
