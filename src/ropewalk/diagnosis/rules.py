"""The rules by which evidence becomes an answer, and the words of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from ropewalk.diagnosis.evidence import LEVEL, LIKELY, Evidence, Half, Mean, Standing
from ropewalk.diagnosis.facts import CHANCE, Found
from ropewalk.diagnosis.schedule import PLAIN
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

    - `method`: what to extend with. `length`: tokens up to which "keep" or "extend" holds; None: not known.
    - `equal`: methods that can run and that are not shown to find less than the best.
    - `more`: under "keep", the method that is shown to find more than the unchanged model.
    - `limit`, `otherwise`: a method whose loss or cost lies at a limit, and the answer if it were on the other side.
    - `settled`: whether no further window can plausibly change the answer by much.
    - `reason`: why the model or text is unfit. `compared`: plain and the measured methods that can run.
    """

    action: Action
    method: str | None = None
    length: int | None = None
    equal: tuple[str, ...] = ()
    more: str | None = None
    limit: str | None = None
    otherwise: Decision | None = None
    settled: bool = True
    reason: Reason | None = None
    compared: tuple[str, ...] = ()


def methods_of(evidence: Evidence) -> list[str]:
    """Return the measured methods that may extend the model: neither plain nor crop."""
    return [name for name in evidence.standings if METHODS[name].extends]


def works(evidence: Evidence, name: str) -> bool:
    """Return whether a method works beyond the trained length.

    It finds more than chance, corrected for the number of methods. Its promised length exceeds the trained one, and up
    to it, it finds half as well as plain within the trained length. By their means, its loss beyond exceeds crop's by
    at most 0.10 nats per token, and its loss within plain's by at most 0.05.
    """
    return not any(fault(evidence, name))


def fails(evidence: Evidence, name: str) -> bool:
    """Return whether it is shown that a method does not work: by a broken reading, a loss, or too few facts found."""
    one = evidence.standings[name]
    worse = any(mean.low is not None and mean.low > limit for _, mean, limit in _guards(one))
    few = one.beyond is not None and one.beyond.high < CHANCE + CLOSE
    near = one.half is not None and one.half.high is not None and one.half.high <= evidence.trained
    return one.broken or worse or few or near


def _finds(evidence: Evidence, name: str) -> bool:
    """Return whether a method finds more than chance, and up to a promised length as many facts as the floor."""
    one = evidence.standings[name]
    reaches = one.length > evidence.trained and one.reached[0] >= floor(evidence, one.reached[1])
    return reaches and _uses(evidence, name)


def _uses(evidence: Evidence, name: str) -> bool:
    """Return whether a method with a loss finds more than chance, at `LEVEL` shared among the compared methods."""
    one, methods = evidence.standings[name], 1 if name == PLAIN else max(1, len(methods_of(evidence)))
    if one.broken or one.beyond is None or one.loss is None:
        return False
    return one.beyond.exceeds_chance(LEVEL / methods)


def floor(evidence: Evidence, asked: int) -> float:
    """Return how many of some facts a method must find: half of the control's share, corrected for guessing.

    The control is plain, asked within the trained length.
    """
    return asked * (CHANCE + evidence.control.share) / 2 if evidence.control.asked else 0.0


def _guards(one: Standing) -> list[tuple[str, Mean, float]]:
    """Return the measured losses that have a limit, each with its name and the limit."""
    pairs = ("extra loss against a cut prompt", one.loss, LOSS_LIMIT), ("cost", one.cost, COST_LIMIT)
    return [(name, mean, limit) for name, mean, limit in pairs if mean is not None]


def _at_limit(one: Standing) -> list[tuple[str, Mean, float]]:
    """Return the losses whose interval contains their limit; none if another loss decides against the method."""
    guards = [(*guard, *guard[1].interval) for guard in _guards(one) if guard[1].interval is not None]
    if any(low > limit for _, _, limit, low, _ in guards):
        return []
    return [(name, mean, limit) for name, mean, limit, _, high in guards if limit <= high]


def decide(evidence: Evidence, *, cannot: Collection[str] = (), log_vocabulary: float = math.inf) -> Decision:
    """Return the answer for one place where the model may run: an engine, any engine, or Python.

    1. `unfit`: the loss within is no better than that of token frequencies, or the control finds nothing.
    2. `extend`: a method works that can run, and plain is shown to fail, or to find less and to reach less far. Of
       such methods, those not shown to find less than the best are equal; one of a config comes before one in
       attention, then the one that finds most.
    3. `keep`: plain works; or it is not known how far, but plain finds more than chance, by their means its losses are
       within the limits, and it is not shown to fail.
    4. `cut`: each method that can run is shown to fail. It is not enough that others were measured.
    5. `undecided`: anything else.

    If the loss of a method lies at a limit, and the other side would change the answer, `otherwise` is that answer.

    - `cannot`: the methods that cannot run there.
    """
    plain, trained, target = evidence.standings[PLAIN], evidence.trained, evidence.target
    if plain.within is not None and plain.within > UNTRAINED * log_vocabulary:
        return Decision("unfit", reason="weights")
    if evidence.frequencies >= 0:
        return Decision("unfit", reason="text")
    control = _control(evidence)
    if control is None or not control.exceeds_chance(LEVEL):
        blind = control is not None and control.high < CHANCE + CLOSE
        return Decision("unfit", reason="facts") if blind else Decision("undecided", settled=False)
    if target <= trained:
        return Decision("keep", length=target)
    can = [name for name in methods_of(evidence) if name not in cannot]
    finding = [PLAIN] * _uses(evidence, PLAIN) + [name for name in can if _finds(evidence, name)]
    guards = {name: _guards(evidence.standings[name]) for name in finding}
    working = {name for name, of in guards.items() if all(mean.value <= limit for _, mean, limit in of)}
    found = _answer(evidence, can, working)
    for name in finding:
        if _at_limit(evidence.standings[name]):
            other = _answer(evidence, can, working ^ {name})
            if (other.action, other.method) != (found.action, found.method):
                return dataclasses.replace(found, limit=name, otherwise=other, settled=False)
    return found


def _control(evidence: Evidence) -> Found | None:
    """Return what plain finds within the trained length; None: not asked."""
    return evidence.control if evidence.target > evidence.trained else evidence.standings[PLAIN].near


def _answer(evidence: Evidence, can: Sequence[str], working: Collection[str]) -> Decision:
    """Return the answer if these methods work, of those that can run."""
    plain, compared = evidence.standings[PLAIN], (PLAIN, *can)
    rivals = [name for name in can if not fails(evidence, name)]
    more = [name for name in can if name in working and _shown(evidence, name, PLAIN)]
    better = [name for name in more if evidence.standings[name].length > plain.length]
    if fails(evidence, PLAIN):
        better = [name for name in can if name in working]
    if better:
        best = max(better, key=lambda name: _share(evidence, name))
        equal = [name for name in better if name == best or not _shown(evidence, best, name)]
        equal.sort(key=lambda name: (METHODS[name].in_attention, -_share(evidence, name)))
        chosen = evidence.standings[equal[0]]
        settled = _known(evidence, equal[0]) and all(_excluded(evidence, one, equal[0]) for one in rivals)
        return Decision("extend", equal[0], chosen.length, tuple(equal[1:]), settled=settled, compared=compared)
    if PLAIN in working and not fails(evidence, PLAIN):
        finds_more = max(more, key=lambda name: _share(evidence, name), default=None)
        if not _finds(evidence, PLAIN):
            return Decision("keep", more=finds_more, settled=False, compared=compared)
        settled = plain.length == evidence.target or (
            _known(evidence, PLAIN) and all(_excluded(evidence, one, PLAIN) for one in rivals)
        )
        return Decision("keep", length=plain.length, more=finds_more, settled=settled, compared=compared)
    if (can or not methods_of(evidence)) and all(fails(evidence, name) for name in compared):
        return Decision("cut", compared=compared)
    return Decision("undecided", settled=False, compared=compared)


def _known(evidence: Evidence, name: str) -> bool:
    """Return whether the promised length lies within a quarter of the trained length of its estimate."""
    one = evidence.standings[name]
    return one.half is None or (one.half.tokens or evidence.target) - one.length <= evidence.trained // 4


def _share(evidence: Evidence, name: str) -> float:
    beyond = evidence.standings[name].beyond
    return 0.0 if beyond is None else beyond.share


def _shown(evidence: Evidence, one: str, other: str) -> bool:
    """Return whether one method is shown to find more facts than another."""
    more = evidence.rival(one, other)
    return more is not None and more.low > 0


def _excluded(evidence: Evidence, rival: str, chosen: str) -> bool:
    """Return whether it is excluded that a rival finds many more facts than the chosen method."""
    more = evidence.rival(rival, chosen)
    return rival == chosen or (more is not None and more.high < CLOSE)


# The words: the headline, and the sentences that support it


def facts_sentence(count: Found, trained: int, half: Half | None, target: int) -> str:
    """Return how many facts were found, with chance, and how far back.

    >>> facts_sentence(Found(25, 48, 0.3, 0.7, 0.0), 8192, Half(12449, 10950, 13960, 11300), 16384)[-64:]
    'up to about 12,400 tokens back (95 % interval 11,000 to 14,000).'
    """
    said = f"It finds {count} facts told more than {trained:,} tokens earlier (chance {CHANCE * count.asked:g})"
    if half is None:
        return f"{said}."
    if half.tokens is None:
        return f"{said}, even {target:,} tokens back ({100 * LIKELY:g} % interval from {rounded(half.low):,})."
    high = "the end" if half.high is None else f"{rounded(half.high):,}"
    ends = f"{100 * LIKELY:g} % interval {rounded(half.low):,} to {high}"
    return f"{said}, up to about {rounded(half.tokens):,} tokens back ({ends})."


def rounded(tokens: int) -> int:
    """Round a distance to three digits.

    >>> rounded(847), rounded(12_449)
    (847, 12400)
    """
    return int(float(f"{tokens:.3g}"))


def headline(decision: Decision, trained: int, place: str = "") -> str:
    """Return the answer in one sentence; `place` ends that of "extend".

    >>> headline(Decision("extend", "yarn", 12288), 8192)
    'Extend with yarn to 12,288 tokens.'
    """
    if decision.action == "extend":
        return f"Extend with {decision.method} to {decision.length:,} tokens{place}."
    if decision.length is not None:
        return f"Keep the model unchanged: it reaches {decision.length:,} tokens."
    return {
        "keep": f"Keep the model unchanged: it uses text beyond {trained:,} tokens; how far is not known.",
        "cut": f"Cut: pass the model only its last {trained:,} tokens.",
        "undecided": "Not decided.",
        "weights": "Unfit: the model predicts this text hardly better than at random.",
        "text": "Unfit: the model does not predict this text.",
        "facts": "Unfit: the model finds no facts even within its trained length.",
    }[decision.reason or decision.action]


def reasons(decision: Decision, evidence: Evidence, *, log_vocabulary: float, place: str) -> tuple[str, ...]:
    """Return the sentences that support an answer. `place`: where the model may run, such as an engine's name."""
    plain, trained, target = evidence.standings[PLAIN], evidence.trained, evidence.target
    if decision.reason == "weights":
        return (f"Its loss within {trained:,} tokens is {plain.within:.2f} nats per token, that of random guesses "
                f"{log_vocabulary:.2f}: the weights are untrained or damaged, or the model was not trained on such "
                "text.",)  # fmt: skip
    if decision.reason == "text":
        above = f"{evidence.frequencies:.2f} nats per token above that of a"
        return (f"Its loss is {above} model that knows only how often each token occurs.",)
    control = _control(evidence)
    if decision.reason == "facts" and control is not None:
        said = f"It finds {control} (chance {CHANCE * control.asked:g}), so nothing is said about tokens farther back."
        return (said,)
    lines: list[str] = []
    if decision.action in ("extend", "keep"):
        chosen = evidence.standings[decision.method or PLAIN]
        if chosen.beyond is not None:
            lines.append(facts_sentence(chosen.beyond, trained, chosen.half, target))
        elif chosen.near is not None:
            lines.append(f"It finds {chosen.near} facts (chance {CHANCE * chosen.near.asked:g}).")
        if decision.method is not None:
            if chosen.cost is not None and chosen.cost.value >= 0.005:
                lines.append(f"It costs {_cost(chosen.cost)}.")
            lines.append(f"{_finding(evidence, PLAIN, fault(evidence, PLAIN)[1] if plain.broken else '')}.")
            others = [name for name in methods_of(evidence) if name not in (decision.method, *decision.equal)]
            lines.append(_nearest(evidence, others, decision.compared, place))
        elif decision.length is None and decision.more is None:
            lines.append(_nearest(evidence, decision.compared[1:], decision.compared, place, NOT_MORE))
        if decision.equal:
            seen = counted(evidence.windows, "window")
            lines.append(f"Equal within what {seen} can tell: {', '.join(decision.equal)}.")
        if decision.more is not None:
            cost = evidence.standings[decision.more].cost
            lines.append(f"But {_finding(evidence, decision.more, '')}{'' if cost is None else f', at {_cost(cost)}'}.")
    elif not decision.compared:
        few = f"{control} facts" if control is not None and control.asked else "no facts"
        said = f"Within its trained length the model finds {few}: too few to say anything about tokens farther back."
        lines.append(said)
    else:
        lines.append(f"{_finding(evidence, PLAIN, fault(evidence, PLAIN)[1])}.")
        lines.append(_nearest(evidence, decision.compared[1:], decision.compared, place, NOT_MORE))
        lines.append("" if decision.compared[1:] else f"No method that runs in {place} was measured.")
    if decision.limit is not None and decision.otherwise is not None:
        other = headline(decision.otherwise, trained)
        losses = [
            f"{name} is {mean.value:.3f} nats per token ({mean.low:.3f} to {mean.high:.3f}; at most {limit:.2f})"
            for name, mean, limit in _at_limit(evidence.standings[decision.limit])
        ]
        lines.append(f"At the limit: {decision.limit}'s {' and its '.join(losses)}. On its other side: {other}")
    return tuple(filter(None, lines))


NOT_MORE = "is not shown to find more"
WORDS = {
    "gave up": "its loss rose by more than a nat per token",
    "loses the text": f"its extra loss exceeds {LOSS_LIMIT:.2f}",
    "costs too much": f"its cost exceeds {COST_LIMIT:.2f}",
    "finds too few": "no more than chance, or less than half as well as nearby",
    "not shown": "too few facts were asked to tell",
}
"""Why a method is not the answer, in a table's cell; and what that means."""


def fault(evidence: Evidence, name: str) -> tuple[str, str]:
    """Return why a method does not work: one of `WORDS`, and a predicate with its numbers; both empty if it works."""
    one = evidence.standings[name]
    if one.broken:
        return "gave up", f"gave up: {WORDS['gave up']}"
    if one.loss is not None and one.loss.value > LOSS_LIMIT:
        above = f"{_over(one.loss, LOSS_LIMIT)} above a cut prompt's"
        return "loses the text", f"loses the text: its loss is {above} (limit {LOSS_LIMIT:.2f})"
    if one.cost is not None and one.cost.value > COST_LIMIT:
        cost = f"{_over(one.cost, COST_LIMIT)} within the trained length"
        return "costs too much", f"costs {cost} (limit {COST_LIMIT:.2f})"
    if _finds(evidence, name):
        return "", ""
    (found, asked), said, least = one.reached, "", floor(evidence, one.reached[1])
    cell = "finds too few" if fails(evidence, name) or found < least else "not shown"
    if one.length <= evidence.trained and not fails(evidence, name):
        said = "it is not known how far back"
    elif _uses(evidence, name) and one.length > evidence.trained and found < least:
        ends = (math.ceil(asked * (CHANCE + end) / 2) for end in (evidence.control.low, evidence.control.high))
        half = f"half as well as nearby is {math.ceil(least)} ({' to '.join(map(str, ends))})"
        said = f"up to {one.length:,} tokens back {found} of {asked}, and {half}"
    elif one.beyond is not None:
        said = f"chance may find as many (on average {CHANCE * one.beyond.asked:g})"
    return cell, said


def _over(mean: Mean, limit: float) -> str:
    """Return a mean with as many decimals as show that it is not its limit."""
    return f"{mean.value:.{3 if round(mean.value, 2) == limit else 2}f} nats per token"


def _cost(cost: Mean) -> str:
    return f"{cost.value:+.2f} nats per token within the trained length"


def _finding(evidence: Evidence, name: str, but: str) -> str:
    """Return what a method finds, and its fault if it has one, as a clause."""
    one = evidence.standings[name]
    found = "" if one.beyond is None else f"finds {one.beyond}"
    said = ", but ".join(filter(None, (found, but))) or "was not asked"
    return f"{'The unchanged model' if name == PLAIN else name} {said}"


def _nearest(evidence: Evidence, names: Sequence[str], can: Collection[str], place: str, none: str = "") -> str:
    """Return what the method finds that finds most of these, and why it is not the answer; `none`: if it works."""
    if not names:
        return ""
    name = max(names, key=lambda one: (bool(none) and not fault(evidence, one)[0], _share(evidence, one)))
    why = fault(evidence, name)[1] or none if name in can else f"does not run in {place}"
    return f"{_finding(evidence, name, why)}."
