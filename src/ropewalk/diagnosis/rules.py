"""The rules by which evidence becomes an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ropewalk.diagnosis.evidence import LEVEL, Evidence, Standing
from ropewalk.diagnosis.facts import CHANCE
from ropewalk.methods import METHODS

Action = Literal["unfit", "keep", "extend", "cut", "undecided"]
Reason = Literal["weights", "text", "facts"]
LOSS_LIMIT = 0.10  # nats per token: the loss beyond, less crop's, of a method that works
COST_LIMIT = 0.05  # nats per token: the loss within, less plain's, of a method that works
CLOSE = 0.15  # of the facts: what must be excluded before a run ends
UNTRAINED = 0.95  # of ln(vocabulary): a loss within from which the weights are untrained or damaged


@dataclass(frozen=True)
class Decision:
    """The answer to a run's evidence.

    - `method`: what to extend with. `length`: tokens up to which "keep" or "extend" holds.
    - `equal`: methods that the engine can run and that are not shown to find less than the best.
    - `better`: the best working method that the engine cannot run, if it finds more.
    - `settled`: whether no further window can plausibly change the answer by much.
    - `reason`: why the model or text is unfit.
    """

    action: Action
    method: str | None = None
    length: int | None = None
    equal: tuple[str, ...] = ()
    better: str | None = None
    settled: bool = True
    reason: Reason | None = None


def works(standing: Standing) -> bool:
    """Return whether a method works beyond the trained length.

    It finds more than chance, its loss beyond exceeds crop's by at most 0.10 nats per token, and its loss within
    exceeds plain's by at most 0.05; the two losses by their means.
    """
    if standing.beyond is None or standing.loss is None or standing.broken:
        return False
    cost = 0.0 if standing.cost is None else standing.cost.value
    return standing.beyond.exceeds_chance(LEVEL) and standing.loss.value <= LOSS_LIMIT and cost <= COST_LIMIT


def fails(standing: Standing) -> bool:
    """Return whether it is shown that a method does not work: by a broken reading, a loss, or too few facts found."""
    return (
        standing.broken
        or any(
            mean is not None and mean.low is not None and mean.low > limit
            for mean, limit in ((standing.loss, LOSS_LIMIT), (standing.cost, COST_LIMIT))
        )
        or (standing.beyond is not None and standing.beyond.asked > 0 and standing.beyond.high < CHANCE + CLOSE)
    )


def length_of(standing: Standing, trained: int, target: int) -> int:
    """Return the length that a method reaches: where finding falls to half, rounded down to an eighth of the trained.

    At least the trained length, at most the target.
    """
    step = max(1, trained // 8)
    half = target if standing.half is None or standing.half.tokens is None else standing.half.tokens
    return target if half >= target else max(trained, half // step * step)


def decide(
    evidence: Evidence,
    *,
    trained: int,
    target: int,
    runs: Mapping[str, bool] | None = None,
    log_vocabulary: float | None = None,
) -> Decision:
    """Return the answer.

    1. `unfit`: the loss within is no better than that of token frequencies, or the control finds nothing.
    2. `keep`: plain works, and no method that the engine runs is shown to find more.
    3. `extend`: of the working methods that the engine runs, those not shown to find less than the best are equal; a
       method of a config comes before one in attention, then the one that finds most.
    4. `cut`: no method works, and each is shown to fail.
    5. `undecided`: anything else.

    - `runs`: whether the engine can run each method; a method that is not named, it can.
    """
    plain = evidence.standings["plain"]
    if log_vocabulary is not None and plain.within is not None and plain.within > UNTRAINED * log_vocabulary:
        return Decision("unfit", reason="weights")
    if evidence.frequencies >= 0:
        return Decision("unfit", reason="text")
    control = evidence.control if target > trained else plain.near
    shown = control is not None and control.exceeds_chance(LEVEL)
    if not shown:
        if control is not None and control.asked and control.high < CHANCE + CLOSE:
            return Decision("unfit", reason="facts")
        if target > trained:
            return Decision("undecided", settled=False)
    if target <= trained:
        return Decision("keep", length=target) if shown else Decision("undecided", settled=False)
    can = {name: runs is None or runs.get(name, True) for name in evidence.standings}
    working = [name for name, one in evidence.standings.items() if name != "plain" and works(one)]
    working = [name for name in working if length_of(evidence.standings[name], trained, target) > trained]
    chosen, equal, settled = _best([name for name in working if can[name]], evidence, can)
    better = _better([name for name in working if not can[name]], chosen, evidence)
    if works(plain) and (reach := length_of(plain, trained, target)) > trained:
        more = None if chosen is None else evidence.rivals.get((chosen, "plain"))
        if more is None or more.low is None or more.low <= 0:
            open_ = more is not None and more.high is not None and more.high > CLOSE
            return Decision("keep", length=reach, better=better, settled=not open_)
    if chosen is not None:
        reach = length_of(evidence.standings[chosen], trained, target)
        against_plain = fails(plain) or (plain.beyond is not None and not works(plain))
        return Decision("extend", chosen, reach, equal, better, settled and against_plain)
    candidates = [one for name, one in evidence.standings.items() if name == "plain" or (can[name] and _extends(name))]
    if all(fails(one) for one in candidates):
        return Decision("cut", better=better)
    return Decision("undecided", better=better, settled=False)


def _best(
    working: Sequence[str], evidence: Evidence, can: Mapping[str, bool]
) -> tuple[str | None, tuple[str, ...], bool]:
    """Return the method to choose among working ones, those equal to it, and whether no rival may be much better."""
    if not working:
        return None, (), True
    best = max(working, key=lambda name: _share(evidence, name))
    equal = [name for name in working if name == best or not _shown(evidence, best, name)]
    equal.sort(key=lambda name: (METHODS[name].in_attention, -_share(evidence, name)))
    chosen = equal[0]
    rivals = [one for name, one in evidence.standings.items() if can[name] and _extends(name) and name != chosen]
    settled = all(fails(one) or _excluded(evidence, one.method, chosen) for one in rivals)
    return chosen, tuple(equal[1:]), settled


def _better(others: Sequence[str], chosen: str | None, evidence: Evidence) -> str | None:
    """Return the best of the methods that the engine cannot run, if it finds more than the chosen one."""
    best = max(others, key=lambda name: _share(evidence, name), default=None)
    if best is None or (chosen is not None and _share(evidence, best) <= _share(evidence, chosen)):
        return None
    return best


def _extends(name: str) -> bool:
    return METHODS[name].extends and not METHODS[name].forgets


def _share(evidence: Evidence, name: str) -> float:
    beyond = evidence.standings[name].beyond
    return 0.0 if beyond is None else beyond.share


def _shown(evidence: Evidence, one: str, other: str) -> bool:
    """Return whether one method is shown to find more facts than another."""
    more = evidence.rivals.get((one, other))
    return more is not None and more.low is not None and more.low > 0


def _excluded(evidence: Evidence, rival: str, chosen: str) -> bool:
    """Return whether it is excluded that a rival finds many more facts than the chosen method."""
    more = evidence.rivals.get((rival, chosen))
    return more is not None and more.high is not None and more.high < CLOSE
