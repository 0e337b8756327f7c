"""How long a run will take and how much memory it needs, before it starts; and what fits into a number of minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from ropewalk.diagnosis.plan import Job, shared_tokens
from ropewalk.diagnosis.protocol import Protocol
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.readers.losses import crop_steps
from ropewalk.readers.pace import NOTHING, Clock, Pace, Trial, Workload, resident_bytes, time_trial
from ropewalk.readers.reader import Reader, ReadingOn

IN_ATTENTION = 1.2  # time of a method in attention over plain's; recorded: 1.03 to 1.14 of SmolLM2, 0.9 to 1.5 of tiny
ENOUGH_WINDOWS = 4  # more methods come before more windows than these


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds of a run from its start, and the process's largest resident memory in bytes (None: not known)."""

    seconds: float
    peak_bytes: int | None

    @property
    def sentence(self) -> str:
        """In words.

        >>> Estimate(seconds=190.0, peak_bytes=1_230_000_000).sentence
        'about 3 min, 1.2 GB'
        """
        words = f"about {duration(self.seconds)}"
        return words if self.peak_bytes is None else f"{words}, {self.peak_bytes / 1e9:.1f} GB"


def duration(seconds: float) -> str:
    """A time in one or two units, rounded as an estimate deserves.

    >>> [duration(seconds) for seconds in (0.4, 52, 100, 3000, 8000, 200_000)]
    ['1 s', '50 s', '2 min', '50 min', '2 h 15 min', '56 h']
    """
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 90:
        return f"{5 * round(seconds / 5)} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(5 * round(minutes / 5), 60)
    return f"{hours} h {rest} min" if rest and hours < 10 else f"{round(minutes / 60)} h"


def workload_of(method: str, protocol: Protocol, *, chunk: int, reuse: bool = True) -> Workload:
    """What a method reads of one window; `reuse`: it has the beginning from plain, where it can."""
    if not METHODS[method].crops:
        whole = Workload.of(protocol.target, chunk=chunk)
        shared = shared_tokens(method, protocol, chunk) if reuse else 0
        return whole.without(Workload.of(shared, chunk=chunk)) if shared else whole
    whole = NOTHING if reuse else Workload.of(protocol.trained_length, chunk=chunk)
    for start, end, scored in crop_steps(protocol.target, protocol.trained_length, protocol.stride):
        whole += Workload.of(end - start, chunk=chunk, first=scored - start)
    return whole


def job_seconds(method: str, protocol: Protocol, pace: Pace, *, chunk: int, reuse: bool = True) -> float:
    """Seconds of one worker for a method on one window."""
    slower = IN_ATTENTION if METHODS[method].in_attention else 1.0
    return slower * pace.seconds(workload_of(method, protocol, chunk=chunk, reuse=reuse))


def seconds_at_once(jobs: Iterable[float], workers: int) -> float:
    """Seconds until all jobs are done, each begun in order by the first worker that is free.

    >>> seconds_at_once([3.0, 1.0, 1.0, 2.0], 2)
    4.0
    """
    free = [0.0] * max(1, workers)
    for seconds in jobs:
        first = free.index(min(free))
        free[first] += seconds
    return max(free)


def estimate_losses(jobs: Sequence[Job], protocol: Protocol, pace: Pace, *, workers: int, chunk: int) -> float:
    """Seconds of these jobs, which are due."""
    with_plain = {job.window for job in jobs if job.method == "plain"}
    each = (job_seconds(job.method, protocol, pace, chunk=chunk, reuse=job.window in with_plain) for job in jobs)
    return seconds_at_once(each, workers)


def try_out(
    reader: Reader, window: Tensor, jobs: Sequence[Job], protocol: Protocol, *, workers: int, chunk: int, clock: Clock
) -> Trial:
    """The trial of a run with these jobs, on a window of its text."""
    ahead = NOTHING
    for job in jobs:
        ahead += workload_of(job.method, protocol, chunk=chunk)
    return time_trial(reader, window, ahead=ahead, workers=workers, chunk=chunk, clock=clock)


def estimate_memory(
    reader: Reader, trial: Trial, protocol: Protocol, jobs: Sequence[Job], *, workers: int, chunk: int
) -> int | None:
    """The largest resident memory of these jobs, so many at one time; None where unknown.

    Each worker holds a cache of the whole window. Where methods read on from plain's beginning of a window, it is kept
    beside the caches until they have: jobs go window by window, so that there are never more of them than workers.
    """
    now = resident_bytes()
    if not now or reader.device.type != "cpu":
        return None
    sharing = [job for job in jobs if shared_tokens(job.method, protocol, chunk)]
    beginnings = 0
    if sharing and isinstance(reader, ReadingOn):
        longest = max(shared_tokens(job.method, protocol, chunk) for job in sharing)
        beginnings = min(workers, len({job.window for job in sharing})) * reader.cache_bytes(longest)
    return now + workers * (reader.cache_bytes(protocol.target) + trial.workspace) + beginnings


@dataclass(frozen=True)
class Fitted:
    """What fits into a time: windows of each text, and methods; `left_out` says in sentences what does not."""

    windows: int
    methods: tuple[str, ...]
    left_out: tuple[str, ...]


def fit(
    budget: float, *, windows: int, texts: int, methods: Sequence[str], seconds: Callable[[int, Sequence[str]], float]
) -> Fitted:
    """The most of a plan that can be measured in `budget` seconds; plain and crop are always among the methods.

    **Arguments:**
    - `windows`: of each text, as planned. `methods`: as planned, in order.
    - `seconds`: of a run with so many windows of each text and these methods.

    Windows are left out first, down to four in all; then methods by `Method.priority`, down to one beside plain and
    crop; then further windows; then that method.

    **Raises:** `RopeError` where plain and crop on one window of each text do not fit.
    """
    required = tuple(name for name in methods if name == "plain" or METHODS[name].crops)
    ranked = sorted((name for name in methods if name not in required), key=_rank)
    enough = min(windows, -(-ENOUGH_WINDOWS // texts))
    choices = [(kept, enough) for kept in range(len(ranked), 0, -1)]
    choices += [(kept, fewest) for kept in sorted({min(1, len(ranked)), 0}, reverse=True) for fewest in (enough, 1)]
    for kept, fewest in choices:
        chosen = {*required, *ranked[:kept]}
        named = tuple(name for name in methods if name in chosen)
        for count in range(windows, fewest - 1, -1):
            if seconds(count, named) <= budget:
                return Fitted(windows=count, methods=named, left_out=_left_out(windows, count, methods, named))
    least = seconds(1, required)
    raise RopeError(
        f"doctor: {' and '.join(required)} on one window of each text take longer than that.",
        facts={"minutes left": max(0.0, round(budget / 60, 2)), "minutes needed": round(least / 60, 2)},
        cure="Give more --minutes, or a shorter --target.",
    )


def _rank(name: str) -> tuple[int, int]:
    return METHODS[name].priority, METHODS[name].order


def _left_out(windows: int, count: int, methods: Sequence[str], named: Sequence[str]) -> tuple[str, ...]:
    """What is not measured, in sentences."""
    gone = [name for name in methods if name not in named]
    said = (
        [f"Left out to fit the time: {windows - count} of {windows} windows of each text."] if count < windows else []
    )
    return (*said, *([f"Left out to fit the time: {', '.join(gone)}."] if gone else []))
