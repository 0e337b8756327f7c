"""The words of the answer: the headline, the sentences that support it, the table, and the next command."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from ropewalk.diagnosis.evidence import Evidence, Half, Standing
from ropewalk.diagnosis.facts import CHANCE, Found
from ropewalk.diagnosis.plan import PLAIN
from ropewalk.diagnosis.rules import COST_LIMIT, LOSS_LIMIT, Decision, length_of, works
from ropewalk.methods import METHODS
from ropewalk.serving.serve import setting_command


def facts_sentence(found: Found, trained: int, half: Half | None, target: int) -> str:
    """Return how many facts were found, with chance, and how far back.

    >>> facts_sentence(Found(25, 48, 0.3, 0.7, 0.0), 8192, None, 16384)
    'It finds 25 of 48 facts told more than 8,192 tokens earlier (chance 12).'
    """
    said = f"It finds {found.found} of {found.asked} facts told more than {trained:,} tokens earlier "
    said += f"(chance {CHANCE * found.asked:g})"
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


def headline(decision: Decision, trained: int, windows: int) -> str:
    """Return the answer in one sentence.

    >>> headline(Decision("extend", "yarn", 12288), 8192, 1)
    'Extend with yarn to 12,288 tokens.'
    """
    if decision.action == "extend":
        return f"Extend with {decision.method} to {decision.length:,} tokens."
    if decision.action == "keep":
        return f"Keep the model unchanged: it reaches {decision.length:,} tokens."
    if decision.action == "cut":
        return f"Cut: pass the model only its last {trained:,} tokens."
    if decision.action == "undecided":
        return f"Not decided after {windows_in_words(windows)}."
    return {
        "weights": "Unfit: the weights look untrained or damaged.",
        "text": "Unfit: the model does not predict this text.",
        "facts": "Unfit: the model finds no facts even within its trained length.",
    }[decision.reason or "text"]


def reasons(
    decision: Decision,
    evidence: Evidence,
    *,
    trained: int,
    target: int,
    texts: Sequence[str],
    log_vocabulary: float,
) -> tuple[str, ...]:
    """Return the sentences that support an answer."""
    plain = evidence.standings[PLAIN]
    if decision.reason == "weights":
        return (f"Its loss within {trained:,} tokens is {plain.within:.2f} nats per token; ln(vocabulary) is "
                f"{log_vocabulary:.2f}.",)  # fmt: skip
    if decision.reason == "text":
        above = f"{evidence.frequencies:.2f} nats per token above that of a"  # rules.py: never below it here
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
            are = "is" if len(decision.equal) == 1 else "are"
            lines.append(
                f"{_list(decision.equal)} {are} equal within what {windows_in_words(evidence.windows)} can tell."
            )
    if decision.action == "cut":
        lines += [f"{_why(one)}." for one in _candidates(evidence)]
    if decision.action == "undecided":
        lines += _open(decision, evidence, trained=trained, target=target)
    scope = f"This is about {texts[0]}" if len(texts) == 1 else f"This is about {len(texts)} texts"
    return (*filter(None, lines), f"{scope}, measured in {windows_in_words(evidence.windows)}.")


def _plainly(plain: Standing, chosen: Standing) -> str:
    """Return what the model does as it is, beside the chosen method."""
    if plain.beyond is None:
        return "Unchanged, its loss rises by more than a nat." if plain.broken else ""
    said = f"Unchanged, it finds {plain.beyond.found}"
    if chosen.cost is not None and abs(chosen.cost.value) >= 0.005:
        said += f"; within the trained length {chosen.method} costs {chosen.cost.value:+.2f} nats per token"
    return f"{said}."


def _candidates(evidence: Evidence) -> list[Standing]:
    return [one for name, one in evidence.standings.items() if name == PLAIN or METHODS[name].extends]


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


def _open(decision: Decision, evidence: Evidence, *, trained: int, target: int) -> list[str]:
    """Return what is missing for an answer."""
    control = evidence.control if target > trained else evidence.standings[PLAIN].near
    if control is None or not control.asked or control.low <= CHANCE:
        told = "no facts" if control is None or not control.asked else f"{control.found} of {control.asked} facts"
        return [f"Within its trained length the model finds {told}: too few to say anything about tokens farther back."]
    said = []
    for one in _candidates(evidence):
        if works(one) and length_of(one, trained, target) > trained:
            said.append(f"{one.method} works, but the engine cannot run it")
        else:
            said.append(_why(one))
    return [f"{'; '.join(said)}."]


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


def _list(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def windows_in_words(count: int) -> str:
    """Return a number of windows in words."""
    return f"{count} window{'s' if count > 1 else ''}"
