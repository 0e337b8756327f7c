"""A verdict in words, made from its decision and its comparisons and from nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ropewalk.diagnosis.evidence import (
    BEATS_CROP,
    BEATS_CROP_BY_MARGIN,
    COSTS_LITTLE,
    GAINS,
    MARGIN,
    NEAR,
    NEAR_CROP,
    PREDICTS,
    Evidence,
)
from ropewalk.diagnosis.next_run import RunFacts
from ropewalk.diagnosis.rules import Decision, Use, affordable_methods, apply_rules, awaits_use, shows_use
from ropewalk.diagnosis.verdict import Comparison, NextRun
from ropewalk.measure.losses import CROP, PLAIN
from ropewalk.statistics import signed

QUESTIONS = {
    PREDICTS: "whether the model predicts this text better than token frequencies do",
    GAINS: "whether {method} lowers the loss of plain",
    BEATS_CROP: "whether {method} lowers the loss of crop",
    NEAR_CROP: f"whether {{method}} loses less than {NEAR} to crop",
    BEATS_CROP_BY_MARGIN: f"whether {{method}} lowers the loss of crop by more than {MARGIN}",
    COSTS_LITTLE: "whether {method} costs little within the trained length",
}
"""What is open, by the name of the comparison; the others are "whether plain is ..." and their name."""


def sentence(
    decision: Decision, evidence: Evidence, use: Use | None, run: RunFacts, still_open: Sequence[Comparison]
) -> str:
    """What was concluded, the intervals that it rests on, and for which texts they hold."""
    match decision.action:
        case "unfit":
            said = _unfit(evidence)
        case "keep":
            said = _keep(evidence)
        case "extend":
            assert decision.method is not None, "there is one to extend by"
            said = _extend(decision.method, evidence, use)
        case "cut":
            said = _cut(evidence, use)
        case "undecided":
            return _undecided(evidence, use, still_open)
    return f"{said} {_scope(decision, evidence, use, run)}"


def with_next(said: str, still_open: Sequence[Comparison], next_run: NextRun | None) -> str:
    """The sentence, and what would settle what is open."""
    if next_run is not None:
        return f"{said} {next_run.sentence}"
    return f"{said} It is too small a difference for any number of windows." if still_open else said


def _unfit(evidence: Evidence) -> str:
    fit, losses = evidence.fit, evidence.losses
    shown = "does not predict" if fit.result == "refuted" else "is not shown to predict"
    return (
        f"Nothing can be concluded: the model {shown} this text better than token frequencies do. Within "
        f"{min(losses.trained, losses.target):,} tokens its loss is {_mean(losses.within[PLAIN]):.3f} nats per token, "
        f"theirs {_mean(losses.frequencies):.3f}: difference {_of(fit)}."
    )


def _keep(evidence: Evidence) -> str:
    losses = evidence.losses
    if not losses.beyond:
        return (
            f"Keep the model as it is: {losses.target:,} tokens lie within its trained length of {losses.trained:,}, "
            "so nothing has to be extended. Its loss differs from that of token frequencies by "
            f"{_of(evidence.fit)} nats per token."
        )
    return (
        f"Keep the model as it is: up to {losses.target:,} tokens, it loses no more than {MARGIN} nats per token to "
        f"crop, which reads only the last {losses.trained:,} tokens. Beyond the trained length plain differs from crop "
        f"by {_of(evidence.holds[0])}."
    )


def _extend(method: str, evidence: Evidence, use: Use | None) -> str:
    losses = evidence.losses
    used = {
        None: f"Whether it uses tokens beyond the trained length {_unknown(use, method)}.",
        True: "It is shown to use tokens beyond the trained length.",
        False: "It is not shown to use tokens beyond the trained length.",
    }[shows_use(use, method)]
    return (
        f"Extend with {method} to {losses.target:,} tokens. Beyond the trained length of {losses.trained:,} its loss "
        f"differs from plain's by {_of(evidence.gain(method))} nats per token, and by "
        f"{_of(evidence.beats_crop(method))} from that of crop, which reads only the last {losses.trained:,} tokens; "
        f"within the trained length it differs from plain's by {_of(evidence.cost(method))}. {used}"
    )


def _cut(evidence: Evidence, use: Use | None) -> str:
    losses, best = evidence.losses, affordable_methods(evidence)[0]
    dear = [name for name in evidence.candidates if evidence.mean_beyond(name) < evidence.mean_beyond(best)]
    costs = ", ".join(f"{name} ({_of(evidence.cost(name))})" for name in dear)
    return (
        f"Give the model only the last {losses.trained:,} tokens, as crop does: no method measured lowers the loss of "
        f"crop by more than {MARGIN} nats per token{' at a small cost within the trained length' if dear else ''}. The "
        f"lowest, {best}, differs from crop by {_of(evidence.beats_crop_by_margin(best))}. "
        + (f"Lower, but too costly within the trained length: {costs}. " if dear else "")
        + f"{best} is not shown to use far tokens. What stands further back is lost."
    )


def _undecided(evidence: Evidence, use: Use | None, still_open: Sequence[Comparison]) -> str:
    losses = evidence.losses
    if losses.windows == 1:
        lowest = min([PLAIN, *evidence.candidates], key=evidence.mean_beyond) if losses.beyond else None
        named = "" if lowest is None else f" Crop apart, {lowest} has the lowest loss beyond the trained length."
        return f"Not decided: one window gives no interval.{named}"
    if losses.beyond and CROP not in losses.beyond:
        return "Not decided: crop was not measured, so a lower loss may come from forgetting."
    waiting = awaits_use(evidence, use) if losses.beyond and evidence.fit.result == "shown" else None
    missing = "" if waiting is None else f" Whether {waiting} uses far tokens {_unknown(use, waiting)}."
    if not still_open:
        best = affordable_methods(evidence)[0]
        if missing:
            return (
                f"Not decided: no affordable method lowers the loss of crop by more than {MARGIN} nats per token, "
                f"which speaks for the last {losses.trained:,} tokens only, unless the best method uses far tokens."
                f"{missing}"
            )
        return (
            f"Not decided by the loss: {best} is shown to use far tokens, and loses {_of(evidence.near_crop(best))} "
            "nats per token to crop. Which of the two matters more depends on the task; --retrieval measures one."
        )
    slowest = max(still_open, key=lambda one: evidence.windows_for(one) or math.inf)
    question = QUESTIONS.get(slowest.name, f"whether {{method}} is {slowest.name}").format(method=slowest.method)
    more = len(still_open) - 1
    others = "" if more == 0 else f", and {more} more comparison{'s' if more > 1 else ''}"
    return f"Not decided: {question} is open ({_of(slowest)} nats per token){others}.{missing}"


def _scope(decision: Decision, evidence: Evidence, use: Use | None, run: RunFacts) -> str:
    """For which texts it holds: only several allow words about others."""
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
    """A difference with its interval."""
    return signed(comparison.difference, comparison.interval)
