"""The rules that lead from comparisons to an action."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from ropewalk.diagnosis.evidence import TOLERATED, Evidence
from ropewalk.diagnosis.verdict import Action, Comparison
from ropewalk.measure.losses import CROP, PLAIN


@runtime_checkable
class Use(Protocol):
    """A measurement of the use of far tokens, as the verdict needs it."""

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods that were measured."""

    def shows_use(self, method: str) -> bool | None:
        """Whether a method is shown to use tokens beyond the trained length; None where that was not measured."""

    def reach(self, method: str) -> int | None:
        """The largest length in tokens up to which that is shown."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """An action, the method where it has one, and the comparisons that it rests on, all of which must be settled."""

    action: Action
    method: str | None = None
    rests_on: tuple[Comparison, ...] = ()


def shows_use(use: Use | None, method: str) -> bool | None:
    """Whether a method is shown to use far tokens; None where nothing was measured.

    >>> shows_use(None, "yarn") is None
    True
    """
    return None if use is None else use.shows_use(method)


def apply_rules(evidence: Evidence, use: Use | None = None) -> Decision:
    """The first action whose comparisons are all settled in its favour; "undecided" where there is none.

    In order: unfit, keep, extend, cut. See `decide`.
    """
    fit, losses = evidence.fit, evidence.losses
    if fit.result != "shown":
        return Decision("unfit" if fit.difference >= 0 else "undecided", None, (fit,))
    if not losses.beyond:
        return Decision("keep", None, (fit,))
    if CROP not in losses.beyond:
        return Decision("undecided", None, (fit,))
    if all(comparison.result == "shown" for comparison in evidence.holds):
        return Decision("keep", None, (fit, *evidence.holds))
    return _extend(evidence, use) or _cut(evidence, use) or Decision("undecided", None, (fit,))


def _extend(evidence: Evidence, use: Use | None) -> Decision | None:
    """The method of the lowest mean among those that are shown to extend, if none that is open may be far better."""
    shown = [name for name in evidence.candidates if all(c.result == "shown" for c in rests_on(name, evidence, use))]
    if not shown:
        return None
    chosen = shown[0]
    bound = evidence.mean_beyond(chosen) - TOLERATED
    if any(evidence.mean_beyond(name) < bound for name in contenders(evidence, use)):
        return None
    return Decision("extend", chosen, (evidence.fit, *rests_on(chosen, evidence, use)))


def _cut(evidence: Evidence, use: Use | None) -> Decision | None:
    """Cut, if no affordable method beats crop by the margin, and the best is shown not to use far tokens."""
    if not loses_to_crop(evidence) or shows_use(use, affordable_methods(evidence)[0]) is not False:
        return None
    comparisons = (evidence.beats_crop_by_margin(name) for name in affordable_methods(evidence))
    return Decision("cut", None, (evidence.fit, *comparisons))


def loses_to_crop(evidence: Evidence) -> bool:
    """Return whether no affordable method beats crop by the margin."""
    return all(evidence.beats_crop_by_margin(name).result == "refuted" for name in affordable_methods(evidence))


def awaits_use(evidence: Evidence, use: Use | None) -> str | None:
    """Return the method whose unknown use of far tokens is all that keeps the verdict from `cut`, or None."""
    best = affordable_methods(evidence)[0]
    return best if shows_use(use, best) is None and loses_to_crop(evidence) else None


def affordable_methods(evidence: Evidence) -> tuple[str, ...]:
    """Plain, and every method that is not shown to cost too much within, the lowest mean loss beyond first."""
    names = [name for name in evidence.candidates if evidence.cost(name).result != "refuted"]
    return tuple(sorted([PLAIN, *names], key=evidence.mean_beyond))


def contenders(evidence: Evidence, use: Use | None) -> tuple[str, ...]:
    """The methods that more windows could still show to extend."""
    return tuple(
        name for name in evidence.candidates if all(c.result != "refuted" for c in rests_on(name, evidence, use))
    )


def rests_on(method: str, evidence: Evidence, use: Use | None) -> tuple[Comparison, ...]:
    """The comparisons that must all be shown for a method to be recommended."""
    crop = evidence.beats_crop(method)
    if crop.result != "shown" and shows_use(use, method):
        crop = evidence.near_crop(method)
    return (evidence.gain(method), crop, evidence.cost(method))


def open_comparisons(evidence: Evidence, use: Use | None, decision: Decision) -> tuple[Comparison, ...]:
    """What stands between these windows and an action: nothing where there is one.

    The open ones among those that the action would rest on if every mean were certain; else all that are open among the
    methods which could still be recommended. Where the model is not shown to be fit, that. Where only the unknown use
    of the best affordable method keeps the verdict from `cut`: whether that method is affordable.
    """
    if decision.action == "unfit":
        return _open((evidence.fit,))
    if decision.action != "undecided":
        return ()
    if evidence.fit.result == "shown" and CROP in evidence.losses.beyond:
        waiting = awaits_use(evidence, use)
        if waiting not in (None, PLAIN) and (of_cost := _open((evidence.cost(waiting),))):
            return of_cost
    expected = apply_rules(dataclasses.replace(evidence, at_means=True), use)
    all_of = {_key(comparison): comparison for comparison in every_comparison(evidence, use)}
    needed = [all_of[_key(comparison)] for comparison in expected.rests_on]
    return _open(needed) or _open(c for name in contenders(evidence, use) for c in rests_on(name, evidence, use))


def every_comparison(evidence: Evidence, use: Use | None) -> tuple[Comparison, ...]:
    """All comparisons that the rules look at, in their order; those of methods by their mean loss beyond."""
    if CROP not in evidence.losses.beyond:
        return (evidence.fit,)
    found = [evidence.fit, *evidence.holds, evidence.beats_crop_by_margin(PLAIN)]
    for name in evidence.candidates:
        found += [evidence.gain(name), evidence.beats_crop(name)]
        found += [evidence.near_crop(name)] if shows_use(use, name) else []
        found += [evidence.beats_crop_by_margin(name), evidence.cost(name)]
    return tuple(found)


def _open(comparisons: Iterable[Comparison]) -> tuple[Comparison, ...]:
    return tuple(comparison for comparison in comparisons if comparison.result == "open")


def _key(comparison: Comparison) -> tuple[str, str, str]:
    return comparison.name, comparison.method, comparison.against
