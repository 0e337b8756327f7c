"""What follows from a verdict: the run that would settle an open comparison, or the command to type next."""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Callable, Sequence

from ropewalk.diagnosis.evidence import Evidence
from ropewalk.diagnosis.verdict import Comparison, NextRun, Verdict
from ropewalk.measure.estimate import duration

FIRST_WINDOWS = 8  # from one window, which shows no variance
MOST_WINDOWS = 1_000


def plain_command(windows: int) -> str:
    """The command of a run that is all defaults but for its windows."""
    return f"ropewalk doctor --windows {windows}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunFacts:
    """What a verdict says of the run that it comes from.

    - `texts`: their names. `room`: how many windows the shortest text holds; None where that is not known.
    - `seconds`: of all its windows together; None where they were not timed.
    - `command`: what measures the same with another number of windows of each text.
    """

    texts: tuple[str, ...] = ("this text",)
    room: int | None = None
    seconds: float | None = None
    command: Callable[[int], str] = plain_command


def next_run(evidence: Evidence, undecided: Sequence[Comparison], run: RunFacts) -> NextRun | None:
    """The run that would settle all of these comparisons; None where no number of windows would."""
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
    fitting = windows if run.room is None else min(windows, run.room)
    if fitting < windows:
        others = math.ceil(windows * texts / max(1, fitting)) - texts
        purpose += f" {_holds(run)} for this length: give {others} more text{'s' if others > 1 else ''} with --text."
    seconds = None if run.seconds is None else run.seconds / evidence.losses.windows * windows * texts
    time = "" if seconds is None else f" That takes about {duration(seconds)} here."
    return NextRun(windows=windows, seconds=seconds, command=run.command(fitting), sentence=purpose + time)


def _holds(run: RunFacts) -> str:
    """How many windows there are, in words."""
    which = run.texts[0] if len(run.texts) == 1 else "The shortest text"
    return f"{which} holds {run.room} window{'' if run.room == 1 else 's'}"


def next_step(
    verdict: Verdict,
    model: str,
    target: int,
    *,
    trained_length: int | None = None,
    record: str | None = None,
    library: str = "ropewalk",
) -> str | None:
    """What to type next; None where there is nothing to run.

    - `model`: as a command names it. `trained_length`: where it had to be given.
    - `record`: the doctor's, as a file; method and lengths are taken from it. `library`: what computed the model: a
      method that no config can say goes into a live model of another library by `rw.attach`, in Python.

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
    """The call that puts a live model of transformers under a method.

    >>> attach_call("dca", 1024)
    'rw.attach(model, "dca", target=1024)'
    """
    stated = "" if trained_length is None else f", trained_length={trained_length}"
    return f'rw.attach(model, "{method}", target={target}{stated})'
