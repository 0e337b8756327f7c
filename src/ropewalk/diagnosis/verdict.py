"""`Verdict`: what the doctor concludes, as data."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ropewalk.atomic_io import finite
from ropewalk.statistics import Interval

Action = Literal["unfit", "keep", "extend", "cut", "undecided"]
Result = Literal["shown", "refuted", "open"]
Where = Literal["within", "beyond"]
TOKEN_FREQUENCIES = "token frequencies"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """One comparison that the verdict rests on: is the difference shown to lie below `margin`?

    - `name`: the question, in a few words. `method` minus `against` (a method's name, or "token frequencies").
    - `where`: "within" or "beyond" the trained length.
    - `difference`: mean over windows in nats per token; below zero, `method` has the lower loss.
    - `interval`: between windows, simultaneous with the others; None for one window. `margin`: nats per token.
    - `result`: "shown" to lie below the margin, "refuted" (shown not to), or "open".
    """

    name: str
    method: str
    against: str
    where: Where
    difference: float
    interval: Interval
    margin: float
    result: Result


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextRun:
    """The run that would settle an open comparison.

    - `windows`: of each text, in all. `seconds`: further time on this machine, by the run's own timings, or None.
    - `command`: what to type. `sentence`: what it would settle.
    """

    windows: int
    seconds: float | None
    command: str
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the doctor concludes of one model on one text.

    - `action`: "unfit" (the model does not predict this text), "keep" (it holds as it is), "extend" (by `method`),
      "cut" (give it the last trained length of tokens) or "undecided" (`next` names the run that would decide).
    - `headline`: the conclusion in one sentence. `reasons`: the sentences that support it.
    - `method`: the method to extend by; None unless the action is "extend".
    - `config`: the keys of config.json that make a checkpoint use it; None unless the action is "extend" and a config
      can express the method. `call`: otherwise what sets it in Python, if anything does.
    - `reach_loss`: the largest length in tokens up to which `method` (or plain) is shown to lose no more than the
      margin against crop in every block; None if the model is unfit or not shown to be fit.
    - `reach_use`: the largest length in tokens up to which far tokens are shown to be used; None if not measured.
    - `evidence`: every comparison that was made, with its interval.
    """

    action: Action
    headline: str = ""
    reasons: tuple[str, ...] = ()
    method: str | None = None
    config: dict[str, Any] | None = None
    call: str | None = None
    reach_loss: int | None = None
    reach_use: int | None = None
    evidence: tuple[Comparison, ...] = ()
    next: NextRun | None = None

    @property
    def sentence(self) -> str:
        """Return the headline and the reasons as one text."""
        return " ".join((self.headline, *self.reasons))

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as the doctor's document contains it; numbers are finite or null.

        >>> Verdict(action="cut", headline="Keep the last 512 tokens.").to_json()["action"]
        'cut'
        """
        cleaned: dict[str, Any] = finite({**dataclasses.asdict(self), "sentence": self.sentence})
        return cleaned
