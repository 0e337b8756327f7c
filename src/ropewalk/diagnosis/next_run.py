"""What would settle an open comparison, how long that takes here, and the command."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from ropewalk.diagnosis.estimate import duration
from ropewalk.diagnosis.evidence import Evidence
from ropewalk.diagnosis.verdict import Comparison, NextRun

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
