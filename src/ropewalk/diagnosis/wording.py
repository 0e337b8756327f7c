"""The verdict in words, and the next run that would decide."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.diagnosis.rules import (
    BEATS_CROP,
    BEATS_CROP_BY_MARGIN,
    COSTS_LITTLE,
    GAINS,
    MARGIN,
    NEAR,
    NEAR_CROP,
    PREDICTS,
    Decision,
    Evidence,
    Use,
    affordable_methods,
    apply_rules,
    awaits_use,
    every_comparison,
    open_comparisons,
    shows_use,
)
from ropewalk.diagnosis.verdict import Comparison, NextRun, Verdict
from ropewalk.measure.estimate import duration
from ropewalk.measure.losses import CROP, PLAIN, WindowLosses
from ropewalk.statistics import signed

FIRST_WINDOWS = 8  # from one window, which shows no variance
MOST_WINDOWS = 1_000


def plain_command(windows: int) -> str:
    """Return the command of a run with a number of windows, and defaults otherwise."""
    return f"ropewalk doctor --windows {windows}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts of a run that its verdict names.

    - `texts`: their names. `available`: windows that the shortest text contains, or None.
    - `seconds`: of all its windows together; None if they were not timed.
    - `command`: returns the command that measures the same with a different number of windows of each text.
    - `application`: returns the config that expresses a method, and the call that sets it otherwise.
    """

    texts: tuple[str, ...] = ("this text",)
    available: int | None = None
    seconds: float | None = None
    command: Callable[[int], str] = plain_command
    application: Callable[[str], tuple[dict[str, Any] | None, str | None]] | None = None


def next_run(evidence: Evidence, undecided: Sequence[Comparison], run: RunFacts) -> NextRun | None:
    """Return the run that would settle all of these comparisons; None if no number of windows would."""
    texts = evidence.losses.texts
    if evidence.losses.windows == 1:
        windows = FIRST_WINDOWS
        purpose = f"Measure {windows} windows: intervals need several."
    else:
        counts = [evidence.windows_for(comparison, most=MOST_WINDOWS) for comparison in undecided]
        if not counts or None in counts:
            return None
        needed = max(count for count in counts if count is not None)
        windows = math.ceil(needed / texts)
        each = "" if texts == 1 else f" of each of the {texts} texts"
        more = windows - evidence.losses.windows // texts
        purpose = f"About {windows} windows{each} ({more} more) would settle it, if they vary as these do."
    fitting = windows if run.available is None else min(windows, run.available)
    if fitting < windows:
        others = math.ceil(windows * texts / max(1, fitting)) - texts
        purpose += f" {_holds(run)} for this length: give {others} more text{'s' if others > 1 else ''} with --text."
    seconds = None if run.seconds is None else run.seconds / evidence.losses.windows * windows * texts
    time = "" if seconds is None else f" That takes about {duration(seconds)} here."
    return NextRun(windows=windows, seconds=seconds, command=run.command(fitting), sentence=purpose + time)


def _holds(run: RunFacts) -> str:
    """Return the number of windows that the text contains, in words."""
    which = run.texts[0] if len(run.texts) == 1 else "The shortest text"
    return f"{which} holds {run.available} window{'' if run.available == 1 else 's'}"


def next_step(
    verdict: Verdict,
    model: str,
    target: int,
    *,
    trained_length: int | None = None,
    record: str | None = None,
    library: str = "ropewalk",
) -> str | None:
    """Return what to type next; None if there is nothing to run.

    - `model`: as a command names it. `trained_length`: if it had to be given.
    - `record`: the doctor's file, which contains method and lengths. `library`: the library that computed the model;
      `rw.attach` applies a method that no config can express to a live model of transformers.

    >>> next_step(Verdict(action="extend", method="ntk", config={}), "tiny", 1024)
    'ropewalk extend apply tiny --method ntk --target 1024 --out tiny-1024'
    """
    if verdict.action == "undecided":
        return None if verdict.next is None else verdict.next.command
    if verdict.action == "unfit":
        return shlex.join(["ropewalk", "doctor", model, "--text", "FILE"])
    if verdict.action != "extend" or verdict.method is None:
        return None
    if verdict.config is None and library != "ropewalk":
        return attach_call(verdict.method, target, trained_length)
    chosen = ["--method", verdict.method, "--target", str(target)]
    chosen += [] if trained_length is None else ["--trained-length", str(trained_length)]
    if record is not None:
        chosen = ["--from", record]
    native = [] if verdict.config is not None else ["--native"]
    out = f"{model.rstrip('/').removesuffix('.gguf')}-{target}"
    return shlex.join(["ropewalk", "extend", "apply", model, *chosen, *native, "--out", out])


def attach_call(method: str, target: int, trained_length: int | None = None) -> str:
    """Return the call that applies a method to a live model of transformers.

    >>> attach_call("dca", 1024)
    'rw.attach(model, "dca", target=1024)'
    """
    stated = "" if trained_length is None else f", trained_length={trained_length}"
    return f'rw.attach(model, "{method}", target={target}{stated})'


QUESTIONS = {
    PREDICTS: "whether the model predicts this text better than token frequencies do",
    GAINS: "whether {method} lowers the loss of plain",
    BEATS_CROP: "whether {method} lowers the loss of crop",
    NEAR_CROP: f"whether {{method}} loses less than {NEAR} to crop",
    BEATS_CROP_BY_MARGIN: f"whether {{method}} lowers the loss of crop by more than {MARGIN}",
    COSTS_LITTLE: "whether {method} costs little within the trained length",
}
"""What is open, by the name of the comparison; the others are "whether plain is ..." and their name."""


def headline_and_reasons(
    decision: Decision, evidence: Evidence, use: Use | None, run: RunFacts, still_open: Sequence[Comparison]
) -> list[str]:
    """Return the headline, then the reasons: the intervals behind the decision, and the texts for which they hold."""
    if decision.action == "undecided":
        return _undecided(evidence, use, still_open)
    if decision.action == "extend":
        assert decision.method is not None, "there is one to extend by"
        sentences = _extend(decision.method, evidence, use)
    else:
        sentences = {"unfit": _unfit, "keep": _keep, "cut": _cut}[decision.action](evidence)
    return [*sentences, _scope(decision, evidence, use, run)]


def _unfit(evidence: Evidence) -> list[str]:
    fit, losses = evidence.fit, evidence.losses
    shown = "does not predict" if fit.result == "refuted" else "is not shown to predict"
    return [
        f"Nothing can be concluded: the model {shown} this text better than token frequencies do.",
        f"Within {min(losses.trained, losses.target):,} tokens its loss is {_mean(losses.within[PLAIN]):.3f} nats per "
        f"token, theirs {_mean(losses.frequencies):.3f}: difference {_of(fit)}.",
    ]


def _keep(evidence: Evidence) -> list[str]:
    losses = evidence.losses
    if not losses.beyond:
        return [
            f"Keep the model as it is: {losses.target:,} tokens lie within its trained length of {losses.trained:,}, "
            "so nothing has to be extended.",
            f"Its loss differs from that of token frequencies by {_of(evidence.fit)} nats per token.",
        ]
    return [
        f"Keep the model as it is: up to {losses.target:,} tokens, it loses no more than {MARGIN} nats per token to "
        f"crop, which reads only the last {losses.trained:,} tokens.",
        f"Beyond the trained length plain differs from crop by {_of(evidence.holds[0])}.",
    ]


def _extend(method: str, evidence: Evidence, use: Use | None) -> list[str]:
    losses = evidence.losses
    return [
        f"Extend with {method} to {losses.target:,} tokens.",
        f"Beyond the trained length of {losses.trained:,} its loss differs from plain's by "
        f"{_of(evidence.gain(method))} nats per token, and by {_of(evidence.beats_crop(method))} from that of crop, "
        f"which reads only the last {losses.trained:,} tokens; within the trained length it differs from plain's by "
        f"{_of(evidence.cost(method))}.",
        {
            None: f"Whether it uses tokens beyond the trained length {_unknown(use, method)}.",
            True: "It is shown to use tokens beyond the trained length.",
            False: "It is not shown to use tokens beyond the trained length.",
        }[shows_use(use, method)],
    ]


def _cut(evidence: Evidence) -> list[str]:
    losses, best = evidence.losses, affordable_methods(evidence)[0]
    dear = [name for name in evidence.candidates if evidence.mean_beyond(name) < evidence.mean_beyond(best)]
    costs = ", ".join(f"{name} ({_of(evidence.cost(name))})" for name in dear)
    return [
        f"Give the model only the last {losses.trained:,} tokens, as crop does: no method measured lowers the loss of "
        f"crop by more than {MARGIN} nats per token{' at a small cost within the trained length' if dear else ''}.",
        f"The lowest, {best}, differs from crop by {_of(evidence.beats_crop_by_margin(best))}.",
        *([f"Lower, but too costly within the trained length: {costs}."] if dear else []),
        f"{best} is not shown to use far tokens. Tokens further back are lost.",
    ]


def _undecided(evidence: Evidence, use: Use | None, still_open: Sequence[Comparison]) -> list[str]:
    losses = evidence.losses
    if losses.windows == 1:
        lowest = min([PLAIN, *evidence.candidates], key=evidence.mean_beyond) if losses.beyond else None
        named = [f"Crop apart, {lowest} has the lowest loss beyond the trained length."] if lowest is not None else []
        return ["Not decided: one window gives no interval.", *named]
    if losses.beyond and CROP not in losses.beyond:
        return ["Not decided: crop was not measured, so a lower loss may come from forgetting."]
    waiting = awaits_use(evidence, use) if losses.beyond and evidence.fit.result == "shown" else None
    missing = [] if waiting is None else [f"Whether {waiting} uses far tokens {_unknown(use, waiting)}."]
    if not still_open:
        best = affordable_methods(evidence)[0]
        if missing:
            return [
                f"Not decided: no affordable method lowers the loss of crop by more than {MARGIN} nats per token, "
                f"which speaks for the last {losses.trained:,} tokens only, unless the best method uses far tokens.",
                *missing,
            ]
        return [
            f"Not decided by the loss: {best} is shown to use far tokens, and loses {_of(evidence.near_crop(best))} "
            "nats per token to crop.",
            "Which of the two matters more depends on the task; --retrieval measures one.",
        ]
    slowest = max(still_open, key=lambda one: evidence.windows_for(one) or math.inf)
    question = QUESTIONS.get(slowest.name, f"whether {{method}} is {slowest.name}").format(method=slowest.method)
    more = len(still_open) - 1
    others = "" if more == 0 else f", and {more} more comparison{'s' if more > 1 else ''}"
    return [f"Not decided: {question} is open ({_of(slowest)} nats per token){others}.", *missing]


def _scope(decision: Decision, evidence: Evidence, use: Use | None, run: RunFacts) -> str:
    """Return for which texts the decision holds: only several allow words about others."""
    losses = evidence.losses
    if losses.windows == 1:
        return "One window gives no interval."
    between = f"Intervals (95 %) are between {losses.windows} windows"
    if losses.texts == 1:
        return f"{between} of {run.texts[0]}; no other text was measured."
    again = apply_rules(Evidence(losses.over_texts()), use)
    if (again.action, again.method) == (decision.action, decision.method):
        return f"{between} of {losses.texts} texts. The same is shown between the texts: it may hold for others."
    return f"{between} of {losses.texts} texts, and hold for these; between the texts it is not shown."


def _unknown(use: Use | None, method: str) -> str:
    """Return why it is unknown whether a method uses far tokens."""
    if use is None or method not in use.methods:
        return "was not measured"
    return "could not be determined from this measurement"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _of(comparison: Comparison) -> str:
    """Return a difference with its interval."""
    return signed(comparison.difference, comparison.interval)


def decide(losses: WindowLosses, use: Use | None = None, run: RunFacts | None = None) -> Verdict:
    """Decide what to do with a model: the first of these actions for which all comparisons are settled.

    1. "unfit": its loss within the trained length is not below that of token frequencies.
    2. "keep": plain is shown to be no worse than crop by more than 0.02 nats per token, in each stretch up to the
       target. Also where the target lies within the trained length.
    3. "extend": a method is shown to lower the loss of plain; it is shown to lower that of crop, or to use far tokens
       and to lose less than 0.05 to crop; and it costs at most 0.05 within by its mean and 0.10 by its interval's end.
       Of several the lowest mean wins; nothing is chosen while one that is open lies lower by more than 0.05.
    4. "cut": no method that is affordable lowers the loss of crop by more than 0.02, and the best is shown not to
       use far tokens. If its use is unknown, the verdict is "undecided".
    5. "undecided": `next` says what would settle it.

    **Arguments:**
    - `losses`: each method's, window by window; crop among them if the target exceeds the trained length.
    - `use`: the measurement of the use of far tokens, or None. `run`: names, times and functions for the sentences.

    **Returns:** a `Verdict`. "Shown" always refers to an interval between windows, so that one window gives "undecided"
    or "unfit". A loss within that is below that of token frequencies by its mean only gives "undecided".

    >>> flat = [3.0, 3.1, 2.9, 3.0]
    >>> decide(WindowLosses(trained=8, target=8, within={"plain": flat}, frequencies=[6.0, 6.0, 6.1, 6.1])).action
    'keep'
    """
    evidence, run = Evidence(losses), run or RunFacts()
    decision = apply_rules(evidence, use)
    still_open = open_comparisons(evidence, use, decision)
    settling = next_run(evidence, still_open, run) if still_open else None
    headline, *reasons = headline_and_reasons(decision, evidence, use, run, still_open)
    config = call = None
    if decision.method is not None and run.application is not None:
        config, call = run.application(decision.method)
        how = f"in Python it is {call}" if call else "it works while the model runs"
        reasons += [] if config is not None else [f"No config.json can express it; {how}."]
    if settling is not None:
        reasons.append(settling.sentence)
    elif still_open:
        reasons.append("It is too small a difference for any number of windows.")
    judged, fit = decision.method or PLAIN, evidence.fit.result == "shown"
    return Verdict(
        action=decision.action,
        headline=headline,
        reasons=tuple(reasons),
        method=decision.method,
        config=config,
        call=call,
        reach_loss=evidence.reach(judged) if fit else None,
        reach_use=None if use is None or not fit else use.reach(judged),
        evidence=every_comparison(evidence, use),
        next=settling,
    )
