"""What a check concludes, as data; the sentence is made from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ropewalk.verification.evidence import Probe

Kind = Literal["as expected", "other", "none", "tokens", "undecided"]
"""As expected; something else; none of the hypotheses; other tokens; not told apart."""
STATUS: dict[Kind, int] = {"as expected": 0, "other": 1, "none": 1, "tokens": 1, "undecided": 2}


@dataclass(frozen=True)
class EngineVerdict:
    """What was concluded.

    - `kind`: see `Kind`. `expected`: the expected rope in words. `up_to`: prompts of so many tokens it speaks of.
    - `applied`: the hypotheses that explain the answers, the best first.
    - `candidates`: for "undecided", what is not told apart from the best. `needs`: the length in tokens of prompts that
      would tell it, or None where more of the same length would.
    - `detail`: a fact that the kind asks for.
    """

    kind: Kind
    expected: str
    up_to: int
    applied: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    needs: int | None = None
    detail: str = ""

    @property
    def exit_status(self) -> int:
        """0 as expected, 1 other than expected, 2 not decided."""
        return STATUS[self.kind]

    @property
    def sentence(self) -> str:
        """The conclusion in one sentence.

        >>> EngineVerdict("other", "plain RoPE", 256, applied=("yarn 4",)).sentence
        'Applies yarn 4 instead of plain RoPE.'
        """
        if self.kind == "as expected":
            return f"As expected, for prompts of up to {self.up_to:,} tokens: {self.expected}."
        if self.kind == "other":
            return f"Applies {_either(self.applied)} instead of {self.expected}."
        if self.kind == "none":
            return f"Neither {self.expected} nor anything else that was tried explains the answers. {self.detail}"
        if self.kind == "tokens":
            return f"Another tokenizer: {self.detail}"
        cure = "more prompts" if self.needs is None else f"prompts of {self.needs:,} tokens"
        return f"Cannot tell apart {_either(self.applied)} and {_either(self.candidates)}: needs {cure}."


def _either(names: Sequence[str]) -> str:
    shown = list(names[:3]) + ([f"{len(names) - 3} more"] if len(names) > 3 else [])
    return " or ".join(shown)


@dataclass(frozen=True)
class HypothesisFit:
    """One hypothesis beside the answers.

    - `misfit`: the mean absolute difference in nats. `log_likelihood`: in nats, relative to the best.
    - `lean`, `lean_half`: how far the answers lie from the best towards it (0 to 1), and the half interval of that.
    - `questions`: how many were read under it. `differs_from`: the shortest prompt in tokens that it and the best treat
      differently.
    """

    name: str
    misfit: float | None
    log_likelihood: float | None
    lean: float | None
    lean_half: float | None
    questions: int
    differs_from: int | None


@dataclass(frozen=True)
class Verification:
    """What `rw.verify` found.

    - `model`, `engine`: their names. `outcome`: the conclusion.
    - `standings`: every hypothesis, the best first. `questions`: the prompts and the answers.
    - `noise`: the engine's error in nats on prompts of one token, which no rope changes; None where not asked.
    - `tokenisation`: how tokens were compared. `left_out`: hypotheses that our side cannot compute for this model.
    - `requests`, `seconds`: what it took.
    """

    model: str
    engine: str
    outcome: EngineVerdict
    standings: tuple[HypothesisFit, ...]
    questions: tuple[Probe, ...]
    noise: float | None
    tokenisation: str
    left_out: tuple[str, ...]
    requests: int
    seconds: float

    @property
    def exit_status(self) -> int:
        """0 as expected, 1 other than expected, 2 not decided."""
        return self.outcome.exit_status

    def __str__(self) -> str:
        return self.outcome.sentence

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data: no keys, and of prompts their lengths alone."""
        outcome = self.outcome
        return {
            "kind": "verification",
            "model": self.model,
            "engine": self.engine,
            "verdict": {
                "kind": outcome.kind,
                "sentence": outcome.sentence,
                "expected": outcome.expected,
                "up_to": outcome.up_to,
                "applied": list(outcome.applied),
                "not_told_apart": list(outcome.candidates),
                "needs_tokens": outcome.needs,
                "exit_status": outcome.exit_status,
            },
            "noise": self.noise,
            "tokenisation": self.tokenisation,
            "left_out": list(self.left_out),
            "requests": self.requests,
            "seconds": round(self.seconds, 2),
            "hypotheses": [vars(standing) for standing in self.standings],
            "prompts": [
                {"tokens": question.tokens, "misfit": {name: question.misfit(name) for name in question.predictions}}
                for question in self.questions
            ],
        }
