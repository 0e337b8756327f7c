"""The verdict in words, and the next run that would decide."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ropewalk.diagnosis.rules import (
    COPIES,
    COSTS_LITTLE,
    GAINS,
    HOLDS,
    MARGIN,
    NEAR,
    NEAR_CROP,
    PREDICTS,
    READS,
    TOLERATED,
    Copies,
    Decision,
    Evidence,
    LossTable,
    apply_rules,
    best_method,
    every_comparison,
    open_comparisons,
)
from ropewalk.diagnosis.verdict import Beside, Comparison, NextRun, Verdict
from ropewalk.measure.copies import CopyMeasurement
from ropewalk.measure.estimate import duration
from ropewalk.measure.losses import CROP, PLAIN
from ropewalk.serving.serve import setting_command
from ropewalk.statistics import FOUR_OF_FIVE, LOOKS, Interval, t_quantile

MOST_WINDOWS = 256
FIRST_WINDOWS = 4
UNTRAINED = 0.95  # of the loss of guessing, ln(vocabulary): trained models lose less, also on other languages


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """The facts of a run that its verdict names.

    - `texts`: names of those that were read. `planned`: windows of the whole plan. `available`: windows that the texts
      hold. `seconds`: of the run so far, or None.
    - `stopped`: why the run ended early: "minutes", "Ctrl-C" or None.
    - `more`: returns the command of a longer run: with this many windows, these minutes (None: as now), and the default
      texts instead of the given ones; None if it would be the command that was run.
    - `engine`: that must run the method, and `runs`: the methods that it can run; None: all.
    - `config_of`: returns the config that expresses a method for a length, or None. `call_of`: the
      lines of Python that apply a method.
    - `default_texts`: whether the texts were chosen by the doctor. `vocab_size`: number of tokens, or None.
    """

    texts: tuple[str, ...] = ("this text",)
    planned: int | None = None
    available: int | None = None
    seconds: float | None = None
    stopped: str | None = None
    more: Callable[..., str | None] = lambda **_: None
    engine: str | None = None
    runs: frozenset[str] | None = None
    config_of: Callable[[str, int], dict[str, Any] | None] | None = None
    call_of: Callable[[str], str] | None = None
    default_texts: bool = False
    vocab_size: int | None = None


def nats(value: float) -> str:
    """Return nats per token without a sign, never "-0.000".

    >>> nats(-0.0391)
    '0.039'
    """
    return f"{abs(value):.3f}"


def between(interval: Interval) -> str:
    """Return the interval of a difference in words, in brackets; empty without one.

    >>> between((-0.07, -0.0101)), between((-0.0001, 0.07)), between((-0.2, 0.07)), between(None)
    (' (0.010 to 0.070)', ' (0.000 to 0.070)', ' (0.200 better to 0.070 worse)', '')
    """
    if interval is None:
        return ""
    low, high = sorted(interval, key=abs)
    if float(f"{interval[0]:.3f}") * float(f"{interval[1]:.3f}") >= 0:
        return f" ({nats(low)} to {nats(high)})"
    return f" ({nats(interval[0])} better to {nats(interval[1])} worse)"


def better_or_worse(comparison: Comparison) -> str:
    """Return by how much a method's loss is lower or higher, with the interval of the difference.

    >>> better_or_worse(Comparison(name="", method="a", against="b", where="within", difference=-0.5,
    ...                            interval=(-0.6, -0.4), margin=0.0, result="shown"))
    'better by 0.500 (0.400 to 0.600)'
    """
    word = "better" if comparison.difference < 0 else "worse"
    apart = nats(comparison.difference)
    said = "neither better nor worse" if float(apart) == 0 else f"{word} by {apart}"
    return f"{said}{between(comparison.interval)}"


def windows_for(comparison: Comparison, windows: int, *, confidence: float) -> int | None:
    """Return the number of windows that would settle a comparison in four of five cases, if they vary as these do."""
    if comparison.interval is None:
        return 2 * windows
    half = (comparison.interval[1] - comparison.interval[0]) / 2
    settles_at = comparison.margin
    if comparison.name == COSTS_LITTLE and comparison.difference > TOLERATED:
        settles_at = TOLERATED
    gap = abs(comparison.difference - settles_at)
    deviation = half * math.sqrt(windows) / t_quantile(windows + 3, confidence=confidence)
    for count in range(windows + 1, MOST_WINDOWS + 1):
        if (t_quantile(count + 3, confidence=confidence) + FOUR_OF_FIVE) * deviation <= gap * math.sqrt(count):
            return count
    return None


def next_run(evidence: Evidence, undecided: Sequence[Comparison], run: RunFacts) -> NextRun | None:
    """Return the run that would settle what is open of one method; None if no number of windows would.

    Of several methods it is the one that is settled first. One window does not show how windows differ: four do.
    """
    windows, counts = evidence.table.windows, dict[str, list[int | None]]()
    for one in undecided:
        count_of = windows_for(one, windows, confidence=evidence.confidence)
        counts.setdefault(one.method, []).append(count_of)
    known = [
        max(of) for values in counts.values() if len(of := [one for one in values if one is not None]) == len(values)
    ]
    if windows > 1 and not known:
        return None
    needed = FIRST_WINDOWS if windows == 1 else min(known)
    count = next((look for look in LOOKS if look >= needed), needed)
    anew = count > max(LOOKS[-1], run.planned or 0)  # more windows are placed anew, so no result is reused
    seconds = None if run.seconds is None else run.seconds / windows * (count if anew else count - windows)
    time = "" if seconds is None else f", which takes about {duration(max(1.0, seconds))}{'' if anew else ' more'} here"
    several = f"About {count} windows would settle it{time}"
    if windows == 1:
        several = f"One window does not show how windows differ: read {count}{time}"
    if run.available is not None and count > run.available:
        held = f"{run.available} window{'s' if run.available != 1 else ''}"
        holds = "the text holds" if len(run.texts) == 1 else "these texts hold"
        command = None if run.default_texts else run.more(default_texts=True, windows=count)
        instead = "; the next command reads the texts that come with ropewalk" if command is not None else ""
        sentence = f"{several}, but {holds} {held} of this length: give more text with --text{instead}."
        return NextRun(windows=count, seconds=seconds, command=command, sentence=sentence)
    minutes = None if run.stopped is None or seconds is None else max(1, math.ceil(1.3 * seconds / 60))
    more = count if run.planned is not None and count > run.planned else None
    command = run.more(windows=more, minutes=minutes)
    return NextRun(windows=count, seconds=seconds, command=command, sentence=f"{several}.")


def next_step(
    verdict: Verdict,
    model: str,
    target: int,
    *,
    trained_length: int | None = None,
    record: str | None = None,
) -> str | None:
    """Return what to type next; None if there is nothing to run.

    - `model`: as a command names it. `target`: that was measured. `trained_length`: if it had to be given.
    - `record`: the doctor's file, which contains method and lengths.

    >>> next_step(Verdict(action="extend", method="ntk", length=1024, config={}), "tiny", 1024)
    'ropewalk extend apply tiny --method ntk --target 1024 --out tiny-1024'
    """
    if verdict.action != "extend" or verdict.method is None:
        return None if verdict.next is None else verdict.next.command
    engine = "python" if verdict.config is None else verdict.engine
    return setting_command(
        engine, model, verdict.method, target=target, trained_length=trained_length, record=record,
        length=verdict.length,
    )  # fmt: skip


def attach_call(method: str, target: int, trained_length: int | None = None) -> str:
    """Return the call that applies a method to a live model of transformers.

    >>> attach_call("dca", 1024)
    'rw.attach(model, "dca", target=1024)'
    """
    stated = "" if trained_length is None else f", trained_length={trained_length}"
    return f'rw.attach(model, "{method}", target={target}{stated})'


def python_call(model: str, method: str, target: int) -> str:
    """Return the lines of Python that apply a method to a model, without its folders.

    A local path begins with "./", because `from_pretrained` asks the hub for a bare name.
    """
    return _FOLDERS.sub(r"\1./\2", setting_command("python", model, method, target=target))


_FOLDERS = re.compile(r"""(['"])/(?:[^'"/]+/)+([^'"/]+)(?=\1)""")

QUESTIONS = {
    PREDICTS: "whether the model predicts this text better than token frequencies do",
    GAINS: "whether {method} has a lower loss than the model as it is",
    NEAR_CROP: f"whether {{method}} loses less than {NEAR:.2f} nats per token to crop at {{where}}",
    READS: "whether {method} has a lower loss than crop at {where}",
    HOLDS: f"whether the model as it is loses less than {MARGIN:.2f} nats per token to crop at {{where}}",
    COPIES: "whether {method} copies, that is, repeats passages that it read {where}",
    COSTS_LITTLE: "whether {method} costs little within the trained length",
}
"""What is open, by the name of the comparison."""


def _question(comparison: Comparison) -> str:
    where = comparison.where
    if comparison.name != COPIES:
        where = "positions beyond the trained length" if where == "beyond" else f"positions {where}"
    return QUESTIONS[comparison.name].format(method=comparison.method, where=where)


def _crop(table: LossTable) -> str:
    """Explain crop where it first stands."""
    return f"crop, the same model that is given only the last {table.trained:,} tokens"


def headline_and_reasons(
    decision: Decision, evidence: Evidence, run: RunFacts, still_open: Sequence[Comparison]
) -> list[str]:
    """Return the headline, then the reasons: the numbers behind the decision, and the texts for which they hold."""
    table = evidence.table
    if decision.action == "extend":
        assert decision.method is not None, "there is one to extend by"
        sentences = _extend(decision.method, decision.stretches, evidence)
    elif decision.action == "unfit":
        sentences = _unfit(evidence, run.vocab_size)
    elif decision.action == "keep":
        sentences = _keep(decision.stretches, evidence)
    elif decision.action == "cut":
        sentences = _cut(evidence)
    else:
        sentences = _undecided(evidence, still_open)
    if table.beyond and CROP in table.losses and decision.action in ("extend", "keep") and not decision.final:
        sentences += [f"Still open: {_question(one)}." for one in still_open[:1]]
    return [*sentences, _scope(decision, evidence, run)]


def _unfit(evidence: Evidence, vocab_size: int | None) -> list[str]:
    fit, table = evidence.fit, evidence.table
    loss, cure = table.mean(PLAIN, table.inside), "Use a text of the kind that the model was trained on."
    if vocab_size is not None and loss > UNTRAINED * math.log(vocab_size):
        cure = f"Guessing has a loss of {math.log(vocab_size):.3f}, so the weights are untrained or damaged."
    shown = "does not predict" if fit.result == "refuted" else "is not shown to predict"
    return [
        f"Nothing can be concluded: the model {shown} this text better than token frequencies do.",
        f"Within {min(table.trained, table.target):,} tokens its loss (how badly it predicts the text) is "
        f"{loss:.3f} nats per token, {better_or_worse(fit)} than that of token frequencies. {cure}",
    ]


def _keep(stretches: int, evidence: Evidence) -> list[str]:
    table = evidence.table
    if not table.beyond:
        return [
            f"Keep the model as it is: {table.target:,} tokens lie within its trained length of {table.trained:,}.",
        ]
    length = evidence.length(stretches)
    found = evidence.holds(stretches - 1)
    lines = [
        f"Keep the model as it is: it holds up to {length:,} tokens{_not_shown(length, table.target)}.",
        f"Up to that length its loss (how badly it predicts the text) is at most {MARGIN} nats per token above that of "
        f"{_crop(table)}. In the last part it is {better_or_worse(found)}.",
    ]
    return [*lines, *_copies_of(PLAIN, stretches, evidence)]


def _not_shown(length: int, target: int) -> str:
    return f"; {target:,} is not shown" if length < target else ""


def _extend(method: str, stretches: int, evidence: Evidence) -> list[str]:
    table, length = evidence.table, evidence.length(stretches)
    against, gain, cost = evidence.against_crop(method), evidence.gain(method), evidence.cost(method)
    read_better = all(evidence.reads(method, number).result == "shown" for number in range(stretches))
    copies = all(evidence.copies_at(method, number) == "shown" for number in range(stretches))
    lines = [f"Extend with {method} to {length:,} tokens{_not_shown(length, table.target)}."]
    loss = f"{better_or_worse(against)} nats per token"
    if copies and not read_better:
        little = f" A method that copies may be worse by up to {NEAR:.2f}." if against.difference > 0 else ""
        lines += [
            f"Copies decide: it repeats passages that it read up to {length:,} tokens before. No copy from that far "
            f"is possible with {_crop(table)}.",
            f"Its loss (how badly it predicts the text) beyond the trained length is {loss} than crop's.{little}",
        ]
    else:
        lines.append(
            f"Loss decides (how badly the model predicts the text): beyond the trained length it is {loss} than that "
            f"of {_crop(table)}."
        )
        lines += _copies_of(method, stretches, evidence)
    lines.append(
        f"Compared with the model as it is, {method} is {better_or_worse(gain)} beyond {table.trained:,} tokens and "
        f"{better_or_worse(cost)} within them."
    )
    return lines + _near(method, evidence)


def _near(method: str, evidence: Evidence) -> list[str]:
    """Return a sentence if a method copies near tokens worse than the model within its trained length."""
    if not isinstance(evidence.copies, CopyMeasurement):
        return []
    near, control = evidence.copies.near(method), evidence.copies.control()
    if near is None or control is None or near[1] is None or near[1][1] >= 0:
        return []
    trained = f"{evidence.table.trained:,}"
    return [
        f"It copies near passages, up to {trained} tokens back, less well than the model does within {trained} tokens: "
        f"by {nats(near[0])}{between(near[1])} of {control[0]:.3f} nats per token."
    ]


def _copies_of(method: str, stretches: int, evidence: Evidence) -> list[str]:
    """Return whether a method is shown to copy up to the length of so many stretches, in sentences."""
    name = "the model as it is" if method == PLAIN else method
    if evidence.copies is None:
        return ["Copies were not measured."]
    if not evidence.copies.can_copy:
        return ["The model is not shown to copy (repeat passages) even within its trained length, so only loss counts."]
    results = [evidence.copies_at(method, number) for number in range(max(1, stretches))]
    length = evidence.length(max(1, stretches))
    if all(one == "shown" for one in results):
        return [f"It copies: it repeats passages that it read up to {length:,} tokens before."]
    if "refuted" in results:
        return [
            f"However, {name} does not copy: it does not repeat passages from more than {evidence.table.trained:,} "
            "tokens before."
        ]
    return [
        f"Not shown: whether {name} copies, that is, repeats passages from more than {evidence.table.trained:,} tokens "
        "before."
    ]


def _cut(evidence: Evidence) -> list[str]:
    table, holds = evidence.table, evidence.holds(0)
    able = "" if evidence.runs is None else " that this engine runs"
    why = f"no method{able} makes more of them useful" if evidence.candidates else f"no method{able} was measured"
    lines = [
        f"Give the model only the last {table.trained:,} tokens (crop): {why}.",
        f"As it is, its loss (how badly it predicts the text) at positions {holds.where} is {better_or_worse(holds)} "
        "nats per token than with crop.",
    ]
    return lines + _refuted(evidence)


def _refuted(evidence: Evidence) -> list[str]:
    """Return why methods do not extend the model, for the best three by their mean loss."""
    lines = []
    for name in evidence.candidates[:3]:
        cost, near = evidence.cost(name), evidence.near_crop(name, 0)
        if cost.result == "refuted":
            lines.append(f"{name} costs too much within the trained length: {better_or_worse(cost)} than without it.")
        elif near.result == "refuted":
            lines.append(f"{name} has a higher loss than crop: {better_or_worse(near)}.")
        else:
            lines.append(
                f"{name} has no lower loss than crop ({better_or_worse(near)}) and does not copy: it does not repeat "
                "passages from further back."
            )
    return lines


def _undecided(evidence: Evidence, still_open: Sequence[Comparison]) -> list[str]:
    table = evidence.table
    if table.beyond and CROP not in table.losses:
        return ["Not decided: crop was not measured, so a lower loss may come from forgetting."]
    first = still_open[0] if still_open else None
    lines = ["Not decided." if first is None else f"Not decided: it is open {_question(first)}."]
    if first is None and evidence.candidates and evidence.copies is None:
        lines = ["Not decided: copies would decide, and they were not measured (--measure loss,copies)."]
    elif first is None and evidence.copies is not None and not evidence.copies.can_copy:
        lines = ["Not decided: copies would decide, and this model copies too little even within its trained length."]
    if first is not None and first.name == PREDICTS:
        lines.append(f"Its loss (how badly it predicts the text) is {better_or_worse(first)} nats per token.")
    if not table.beyond or evidence.fit.result != "shown":
        return lines
    holds = evidence.holds(evidence.plain_stretches)
    shown = {"refuted": "does not hold there", "open": "is not shown to hold there"}
    lines.append(
        f"At positions {holds.where} the loss of the model as it is (how badly it predicts the text) is "
        f"{better_or_worse(holds)} nats per token than that of {_crop(table)}: it "
        f"{shown.get(holds.result, 'holds there')}."
    )
    if evidence.candidates:
        best = evidence.candidates[0]
        lines.append(
            f"{best} has the lowest loss beyond the trained length: {better_or_worse(evidence.gain(best))} than the "
            f"model as it is, {better_or_worse(evidence.against_crop(best))} than crop."
        )
    return lines


def _scope(decision: Decision, evidence: Evidence, run: RunFacts) -> str:
    """Return for which texts the decision holds: only several allow words about others."""
    table = evidence.table
    count = len(set(table.texts))
    windows = f"{table.windows} window{'s' if table.windows > 1 else ''} of {table.target:,} tokens"
    windows += ", which overlap" if table.share < 1 else ""
    ranges = " Numbers in brackets are 98 % intervals."
    if decision.action == "undecided":
        measured = run.texts[table.texts[0]] if count == 1 else f"the {count} texts that were read"
        return f"This is about {measured} ({windows}).{ranges}"
    if count == 1:
        return f"This holds for {run.texts[table.texts[0]]} ({windows}); no other text was read.{ranges}"
    copies = evidence.copies.over_texts() if isinstance(evidence.copies, CopyMeasurement) else evidence.copies
    again = apply_rules(dataclasses.replace(evidence, between_texts=True, copies=copies))
    if (again.action, again.method) == (decision.action, decision.method) and again.stretches >= decision.stretches:
        alike = f"so it holds for texts like these {count} ({windows})"
        return f"Intervals between texts give the same verdict, {alike}.{ranges}"
    return f"This holds for the {count} texts that were read ({windows}). It is not shown for others like them.{ranges}"


def decide(table: LossTable, copies: Copies | None = None, run: RunFacts | None = None) -> Verdict:
    """Decide what to do with a model: the first of these actions that is shown.

    1. "unfit": its loss within the trained length is not below that of token frequencies.
    2. "keep": plain reads no worse than crop by more than 0.02 nats per token, stretch by stretch from the trained
       length on. `length` is the end of the last stretch for which that is shown.
    3. "extend": a method that the engine can run is shown, stretch by stretch, to read better than crop, or to lose
       less than 0.10 to crop and to copy from the farthest part of its context. It is shown to read better than plain,
       and it costs at most 0.05 within by its mean and 0.10 by its interval's end. Of several the longest reach wins,
       then the lowest loss.
    4. "cut": plain does not hold in the first stretch, and no method does: it costs too much, or reads worse, or reads
       no better and does not copy.
    5. "undecided": `next` says what would settle it.

    **Arguments:**
    - `table`: each method's losses; crop among them if the target exceeds the trained length.
    - `copies`: the measurement of copies, or None. `run`: names, times and functions for the sentences.

    **Returns:** a `Verdict`. "Shown" refers to an interval at 98 %, which allows for looking five times.

    >>> table = LossTable(trained=8, target=8, losses={"plain": [[3.0, 3.1, 2.9, 3.0]]},
    ...                   frequencies=[[6.0, 6.0, 6.1, 6.1]], weights=[2] * 4, within=4, texts=[0])
    >>> decide(table).action
    'keep'
    """
    run = run or RunFacts()
    evidence = Evidence(table, copies, run.runs)
    decision = apply_rules(evidence)
    still_open = open_comparisons(evidence, decision)
    settling = next_run(evidence, still_open, run) if still_open else None
    headline, *reasons = headline_and_reasons(decision, evidence, run, still_open)
    config = call = None
    length = evidence.length(decision.stretches) if decision.action in ("keep", "extend") else None
    if decision.action == "keep" and not table.beyond:
        length = table.target
    if decision.method is not None and run.config_of is not None:
        assert length is not None, "a method extends to a length"
        config = run.config_of(decision.method, length)
        if config is None:
            call = attach_call(decision.method, table.target) if run.call_of is None else run.call_of(decision.method)
            reasons.append("No config.json can express it, so no engine can serve it; it works in Python.")
    if settling is not None:
        reasons.append(settling.sentence)
    elif still_open and decision.action == "undecided":
        reasons.append(
            "The difference is too small for any number of windows to settle: both choices are about equally good."
        )
    judged, fit = decision.method or PLAIN, evidence.fit.result == "shown"
    reach = copies.reach(judged) if isinstance(copies, CopyMeasurement) and fit else None
    return Verdict(
        action=decision.action,
        headline=headline,
        reasons=tuple(reasons),
        method=decision.method,
        length=length,
        engine=run.engine,
        config=config,
        call=call,
        beside=_beside(evidence, decision, run),
        reach_loss=evidence.reach_loss(judged) if fit else None,
        reach_copies=reach,
        evidence=every_comparison(evidence),
        next=settling,
        windows=table.windows,
        stopped=run.stopped,
        final=decision.final,
    )


def _beside(evidence: Evidence, decision: Decision, run: RunFacts) -> Beside | None:
    """Return the best method that the engine cannot run, if it reaches further or reads better by the margin."""
    others = [name for name in evidence.methods if name not in evidence.candidates]
    best = (
        best_method(evidence, others) if others and decision.action in ("extend", "keep", "cut", "undecided") else None
    )
    if best is None or run.config_of is None:
        return None
    stretches = evidence.stretches_of(best)
    length = evidence.length(stretches)
    if stretches < decision.stretches:
        return None
    own = decision.method or PLAIN
    ahead = evidence.mean_beyond(own) - evidence.mean_beyond(best)
    if stretches == decision.stretches and ahead < MARGIN:
        return None
    call = attach_call(best, evidence.table.target)
    what = [f"reaches {length:,} tokens"] if stretches > decision.stretches else []
    what += [f"has a loss that is lower by {nats(ahead)} nats per token"] if ahead >= MARGIN else []
    where = "Python only" if run.engine is None else f"not in {run.engine}"
    sentence = f"{best} {' and '.join(what)} ({where})."
    return Beside(method=best, length=length, sentence=sentence, call=call)
