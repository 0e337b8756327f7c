"""`Verdict`: what the doctor concludes, as data."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from ropewalk.atomic_io import finite
from ropewalk.statistics import Interval

Action = Literal["unfit", "keep", "extend", "cut", "undecided"]
Result = Literal["shown", "refuted", "open"]
Where = str
"""The positions compared: "within" or "beyond" the trained length, or "256 to 512"."""
TOKEN_FREQUENCIES = "token frequencies"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """One comparison that the verdict rests on: is the difference shown to lie below `margin`?

    - `name`: the question, in a few words. `method` minus `against` (a method's name, or "token frequencies").
    - `where`: the positions whose losses are compared; for copies the tokens back.
    - `difference`: mean over windows in nats per token; below zero, `method` has the lower loss.
    - `interval`: at the confidence of one look; None where it is unknown. `margin`: nats per token.
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
    """The run that would settle what is open.

    - `windows`: in all. `seconds`: its time on this machine from here on, by the run's own timings, or None.
    - `command`: what to type, or None where another text is needed. `sentence`: what it would settle.
    """

    windows: int
    seconds: float | None
    command: str | None
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beside:
    """The best method that the engine cannot run: its length, its advantage in a sentence, and the call that applies
    it."""

    method: str
    length: int
    sentence: str
    call: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the doctor concludes of one model on one text or several.

    - `action`: "unfit" (the model does not predict this text), "keep" (it holds as it is), "extend" (by `method`),
      "cut" (give it the last trained length of tokens) or "undecided" (`next` names the run that would decide).
    - `length`: tokens up to which "keep" or "extend" is shown; None for the other actions.
    - `headline`: the conclusion in one sentence. `reasons`: the sentences that support it.
    - `method`: the method to extend by; None unless the action is "extend". `engine`: that must run it; None: any.
    - `config`: the keys of config.json that make a checkpoint use it; None unless the action is "extend" and a config
      can express the method. `call`: otherwise what sets it in Python, if anything does.
    - `beside`: the best method that the engine cannot run, if it is better.
    - `reach_loss`: the largest length in tokens up to which `method` (or plain) is shown to read little worse than
      crop, stretch by stretch; None if the model is unfit or not shown to be fit.
    - `reach_copies`: the largest length in tokens up to which it is shown to copy; None if that is not shown.
    - `evidence`: every comparison that was made, with its interval. `windows`: how many the verdict rests on.
    - `stopped`: why the run ended before it was decided, or None.
    - `final`: whether nothing that was measured is open.
    """

    action: Action
    headline: str = ""
    reasons: tuple[str, ...] = ()
    method: str | None = None
    length: int | None = None
    engine: str | None = None
    config: dict[str, Any] | None = None
    call: str | None = None
    beside: Beside | None = None
    reach_loss: int | None = None
    reach_copies: int | None = None
    evidence: tuple[Comparison, ...] = ()
    next: NextRun | None = None
    windows: int = 0
    stopped: str | None = None
    final: bool = True

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
