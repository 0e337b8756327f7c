"""`Verdict`: the doctor's conclusion, as data."""

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
    """One comparison of the verdict's evidence: is the difference shown to lie below `margin`?

    - `name`: the question, in a few words. `method` minus `against` (a method's name, or "token frequencies").
    - `where`: the positions of the compared losses; for copies, the distance in tokens.
    - `difference`: mean over windows in nats per token; if negative, `method` has the lower loss.
    - `interval`: at the confidence of one look; None if it is unknown. `margin`: nats per token.
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
    """The run that would settle the open comparisons.

    - `windows`: in total. `seconds`: its remaining time on this machine, by the run's own timings, or None.
    - `command`: the command, or None if a different text is needed. `sentence`: the question it would settle.
    """

    windows: int
    seconds: float | None
    command: str | None
    sentence: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beside:
    """The best method that the engine cannot run: its length, its advantage in a sentence, and the call to apply it."""

    method: str
    length: int
    sentence: str
    call: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The doctor's conclusion about one model on one or several texts.

    - `action`: "unfit" (the model does not predict this text), "keep" (use it unchanged), "extend" (by `method`),
      "cut" (pass it only the last tokens, up to its trained length) or "undecided" (`next` is the run to decide).
    - `length`: tokens up to which "keep" or "extend" is shown; None for the other actions.
    - `headline`: the conclusion in one sentence. `reasons`: the sentences that support it.
    - `method`: the recommended method; None unless the action is "extend". `engine`: the engine for it; None: any.
    - `config`: the keys of config.json that make a checkpoint use the method; None unless the action is "extend" and a
      config can express it. `call`: the Python call that applies it instead, if there is one.
    - `beside`: the best method that the engine cannot run, if it is better.
    - `reach_loss`: the largest length in tokens up to which the loss of `method` (or plain) is shown to be little
      higher than crop's, stretch by stretch; None if the model is unfit or not shown to be fit.
    - `reach_copies`: the largest length in tokens up to which it is shown to copy; None if this is not shown.
    - `evidence`: every comparison, with its interval. `windows`: the number of windows of the evidence.
    - `stopped`: why the run ended before the verdict was final, or None.
    - `final`: whether no measured comparison is open.
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
