"""The rules by which evidence becomes an answer, and the words of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ropewalk.diagnosis.evidence import LEVEL, Evidence, Half, Standing
from ropewalk.diagnosis.facts import CHANCE, Found
from ropewalk.diagnosis.plan import PLAIN
from ropewalk.methods import METHODS
from ropewalk.statistics import counted

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
    - `equal`: methods that can run and that are not shown to find less than the best.
    - `settled`: whether no further window can plausibly change the answer by much.
    - `reason`: why the model or text is unfit. `compared`: plain and the measured methods that can run.
    """

    action: Action
    method: str | None = None
    length: int | None = None
    equal: tuple[str, ...] = ()
    settled: bool = True
    reason: Reason | None = None
    compared: tuple[str, ...] = ()


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
    """Return the answer for one place where the model may run: an engine, any engine, or Python.

    1. `unfit`: the loss within is no better than that of token frequencies, or the control finds nothing.
    2. `keep`: plain works, and no method that can run is shown to find more.
    3. `extend`: of the working methods that can run and find more than plain, or do not have its loss, those not shown
       to find less than the best are equal; a method of a config comes before one in attention, then the one that
       finds most.
    4. `cut`: each method that can run is shown to fail. It is not enough that others were measured.
    5. `undecided`: anything else.

    - `runs`: whether each method can run there; a method that is not named, it can.
    """
    plain = evidence.standings[PLAIN]
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
    measured = [name for name in evidence.standings if _extends(name)]
    compared = (PLAIN, *(name for name in measured if can[name]))
    working = [name for name, one in evidence.standings.items() if name != PLAIN and can[name] and works(one)]
    working = [name for name in working if length_of(evidence.standings[name], trained, target) > trained]
    length = length_of(plain, trained, target)
    kept = works(plain) and length > trained
    if not kept and not plain.broken and plain.loss is not None and plain.loss.value <= LOSS_LIMIT:
        working = [name for name in working if _share(evidence, name) > _share(evidence, PLAIN)]
    chosen, equal, settled = _best(working, evidence, can)
    if kept:
        more = None if chosen is None else evidence.rivals.get((chosen, PLAIN))
        if more is None or more.low is None or more.low <= 0:
            open_ = more is not None and more.high is not None and more.high > CLOSE
            return Decision("keep", length=length, settled=not open_, compared=compared)
    if chosen is not None:
        length = length_of(evidence.standings[chosen], trained, target)
        against_plain = fails(plain) or (plain.beyond is not None and not works(plain))
        return Decision("extend", chosen, length, equal, settled and against_plain, compared=compared)
    if (len(compared) > 1 or not measured) and all(fails(evidence.standings[name]) for name in compared):
        return Decision("cut", compared=compared)
    return Decision("undecided", settled=False, compared=compared)


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


# The words: the headline, and the sentences that support it


def facts_sentence(count: Found, trained: int, half: Half | None, target: int) -> str:
    """Return how many facts were found, with chance, and how far back.

    >>> facts_sentence(Found(25, 48, 0.3, 0.7, 0.0), 8192, None, 16384)
    'It finds 25 of 48 facts told more than 8,192 tokens earlier (chance 12).'
    """
    said = f"It finds {count.found} of {count.asked} facts told more than {trained:,} tokens earlier "
    said += f"(chance {CHANCE * count.asked:g})"
    if half is None:
        return f"{said}."
    if half.tokens is None or half.high is None:
        return f"{said}, to the end of windows of {target:,} tokens (at least to {_round(half.low):,})."
    return f"{said}, up to about {_round(half.tokens):,} tokens back ({_round(half.low):,} to {_round(half.high):,})."


def _round(tokens: int) -> int:
    """Round a distance to three digits.

    >>> _round(847), _round(12_449)
    (847, 12400)
    """
    step = int(10 ** max(0, math.floor(math.log10(max(tokens, 1))) - 2))
    return round(tokens / step) * step


def headline(decision: Decision, trained: int, place: str = "") -> str:
    """Return the answer in one sentence; `place` ends that of "extend".

    >>> headline(Decision("extend", "yarn", 12288), 8192)
    'Extend with yarn to 12,288 tokens.'
    """
    if decision.action == "extend":
        return f"Extend with {decision.method} to {decision.length:,} tokens{place}."
    if decision.action == "keep":
        return f"Keep the model unchanged: it reaches {decision.length:,} tokens."
    if decision.action == "cut":
        return f"Cut: pass the model only its last {trained:,} tokens."
    if decision.action == "undecided":
        return "Not decided."
    return {
        "weights": "Unfit: the model predicts this text hardly better than at random.",
        "text": "Unfit: the model does not predict this text.",
        "facts": "Unfit: the model finds no facts even within its trained length.",
    }[decision.reason or "text"]


def reasons(
    decision: Decision, evidence: Evidence, *, trained: int, target: int, log_vocabulary: float, place: str
) -> tuple[str, ...]:
    """Return the sentences that support an answer. `place`: where the model may run, such as an engine's name."""
    plain = evidence.standings[PLAIN]
    if decision.reason == "weights":
        return (f"Its loss within {trained:,} tokens is {plain.within:.2f} nats per token, that of random guesses "
                f"{log_vocabulary:.2f}: the weights are untrained or damaged, or the model was not trained on such "
                "text.",)  # fmt: skip
    if decision.reason == "text":
        above = f"{evidence.frequencies:.2f} nats per token above that of a"
        return (f"Its loss is {above} model that knows only how often each token occurs.",)
    control = evidence.control if target > trained else plain.near
    if decision.reason == "facts" and control is not None:
        said = f"It finds {control.found} of {control.asked} (chance {CHANCE * control.asked:g})"
        return (f"{said}, so nothing is said about tokens farther back.",)
    lines: list[str] = []
    if decision.action in ("extend", "keep"):
        chosen = evidence.standings[decision.method or PLAIN]
        if chosen.beyond is not None:
            lines.append(facts_sentence(chosen.beyond, trained, chosen.half, target))
        elif chosen.near is not None:
            lines.append(
                f"It finds {chosen.near.found} of {chosen.near.asked} facts (chance {chosen.near.asked / 4:g})."
            )
        if decision.method is not None:
            lines.append(_plainly(plain, chosen))
        if decision.equal:
            seen = counted(evidence.windows, "window")
            lines.append(f"Equal within what {seen} can tell: {', '.join(decision.equal)}.")
    elif not decision.compared:
        few = "no facts" if control is None or not control.asked else f"{control.found} of {control.asked} facts"
        lines.append(
            f"Within its trained length the model finds {few}: too few to say anything about tokens farther back."
        )
    else:
        said = "; ".join(_why(evidence.standings[name]) for name in decision.compared)
        lines += [f"{said}.", "" if decision.compared[1:] else f"No method that runs in {place} was measured."]
    return tuple(filter(None, lines))


def _plainly(plain: Standing, chosen: Standing) -> str:
    """Return what the model does as it is, beside the chosen method."""
    if plain.beyond is None:
        return "Unchanged, its loss rises by more than a nat." if plain.broken else ""
    said = f"Unchanged, it finds {plain.beyond.found}"
    if chosen.cost is not None and abs(chosen.cost.value) >= 0.005:
        said += f"; within the trained length {chosen.method} costs {chosen.cost.value:+.2f} nats per token"
    return f"{said}."


def _why(one: Standing) -> str:
    """Return why a method does not work, as a clause."""
    if one.broken:
        return f"{one.method}: the loss rises by more than a nat"
    if one.loss is not None and one.loss.value > LOSS_LIMIT:
        return f"{one.method}: the loss beyond is {one.loss.value:.2f} nats above crop's (at most {LOSS_LIMIT:.2f})"
    if one.cost is not None and one.cost.value > COST_LIMIT:
        return f"{one.method}: costs {one.cost.value:.2f} nats within the trained length (at most {COST_LIMIT:.2f})"
    if one.beyond is not None:
        return f"{one.method}: finds {one.beyond.found} of {one.beyond.asked} facts (chance {one.beyond.asked / 4:g})"
    return f"{one.method}: not asked"
