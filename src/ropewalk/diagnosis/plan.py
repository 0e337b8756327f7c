"""The plan of a measurement: the positions of each method, the jobs of its windows, and how one window is read."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from ropewalk.diagnosis.evidence import Window, WindowReading
from ropewalk.diagnosis.facts import GROUP, Layout, Told
from ropewalk.diagnosis.ledger import Ledger, fingerprint
from ropewalk.diagnosis.windows import Design
from ropewalk.diagnosis.workers import WorkersProgress, complete
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, ConfigForm, Reach, chosen_methods
from ropewalk.progress import Progress
from ropewalk.readers.reader import CHUNK, Advance, Losses, Reader
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.of_layers import Positions

PLAIN, CROP = "plain", "crop"
KIND = "windows"
FORMAT = 7  # of a result and of how it is measured: a change of either takes the next number
MOST_CONTROLS = 24  # facts asked for at the trained length, of one window
BROKEN = 1.0  # nats per token: a rise of the loss after which a reading is given up
RECENT = 512  # tokens over which that rise is measured


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The methods of a run in order, the positions of each, and the methods that share numbers.

    - `same_as`: maps a method to an earlier one with equal frequencies at this length. `own`: the model's positions.
    - `config_form`: the form of the ropes in the model's config.
    """

    design: Design
    own: Positions
    positions: Mapping[str, Positions]
    same_as: Mapping[str, str]
    config_form: ConfigForm = dataclasses.field(default_factory=ConfigForm)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods in order, `plain` first."""
        return tuple(self.positions)

    @property
    def distinct(self) -> tuple[str, ...]:
        """Return the methods with numbers of their own."""
        return tuple(name for name in self.positions if name not in self.same_as)

    def key(self, method: str, window: int) -> str:
        """Return a job's key in the ledger, which contains a digest of the method's positions."""
        return f"{method}/{_digest_of(self.positions[method])}/{window}"

    def due(self, ledger: Ledger, windows: range, methods: Collection[str], asked: int) -> tuple[Job, ...]:
        """Return the jobs without a result in the ledger, by window.

        - `asked`: tokens of the questions about one window.
        """
        return tuple(
            Job(name, window, key, self.work(name, window, asked))
            for window in windows
            for name in self.distinct
            if name in methods and (key := self.key(name, window)) not in ledger
        )

    def work(self, method: str, window: int, asked: int) -> Work:
        """Return the model's work for one window under a method."""
        if METHODS[method].crops:
            steps = self.design.crop_steps(window)
            return Work.of(self.design.trained_length).times(len(steps))
        whole = Work.of(self.design.target)
        return Work(whole.tokens + asked, whole.pairs + float(asked) * self.design.target)


@cache
def _digest_of(positions: Positions) -> str:
    return fingerprint(positions)


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of processing texts: tokens, and pairs of a query and a key."""

    tokens: int
    pairs: float

    @classmethod
    def of(cls, tokens: int) -> Work:
        """Return the work of one text of `tokens` tokens.

        >>> Work.of(3)
        Work(tokens=3, pairs=6.0)
        """
        return cls(tokens, tokens * (tokens + 1) / 2)

    def times(self, count: int) -> Work:
        """Return this work, `count` times."""
        return Work(count * self.tokens, count * self.pairs)


@dataclasses.dataclass(frozen=True)
class Job:
    """One window under one method. `key`: in the ledger."""

    method: str
    window: int
    key: str
    work: Work


def make_plan(reader: Reader, design: Design, methods: Sequence[str] | None) -> Plan:
    """Plan the measurement: always plain, crop if the target exceeds the trained length, each distinct form once.

    Raises `RopeError` if a method is unknown or does not apply.
    """
    reach, own = Reach(design.trained_length, design.target), reader.positions
    names = None if not methods else [*methods]
    if names is not None and design.extends and CROP not in names:
        names.append(CROP)
    chosen = chosen_methods(names, own, reach)
    if CROP in chosen and not design.extends:
        raise RopeError(
            "doctor: crop differs from plain only if the target exceeds the trained length.",
            facts={"target": reach.target, "trained_length": reach.trained},
            cure="Pass a longer --target, or leave out crop.",
        )
    positions = {name: METHODS[name].positions(own, reach) for name in chosen}
    same_as: dict[str, str] = {}
    seen: dict[object, str] = {}
    for name in chosen:
        if name != CROP:
            first = seen.setdefault((_angles(positions[name], reach.target), positions[name].extensions), name)
            if first != name:
                same_as[name] = first
    return Plan(design=design, own=own, positions=positions, same_as=same_as, config_form=reader.config_form)


def _angles(positions: Positions, seq_len: int) -> object:
    """Return each layer's frequencies and attention factor at this length, which define a method's computation."""
    distinct = {
        rope: (columns_of(rope, seq_len), attention_factor_of(rope, seq_len)) for rope in positions.present_ropes
    }
    return tuple(None if rope is None else distinct[rope] for rope in positions.ropes)


def run_jobs(
    reader: Reader,
    plan: Plan,
    layout: Layout,
    told: Sequence[Told],
    ledger: Ledger,
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    progress: Progress | None = None,
    until: Callable[[], bool] = lambda: False,
) -> None:
    """Read the windows of these jobs, several at a time, and save each result as it is computed.

    - `told`: the windows with their facts. `workers`: jobs at one time, each on its share of the cores.
    - `until`: no job begins after it returns True.

    A KeyboardInterrupt passes through; finished results are in the ledger. Raises `RopeError` if a loss is not finite.
    """
    stop, levels = threading.Event(), dict[int, float]()
    shown = WorkersProgress(progress, stop, pieces=len(jobs))

    def measure(job: Job) -> Mapping[str, Any]:
        shown.begin(f"{job.method}, window {job.window + 1}", job.work.tokens)
        started = time.perf_counter()
        variant, window = reader.under(plan.positions[job.method]), told[job.window]
        if job.method == CROP:
            found = _read_cropped(variant, window, plan.design, job.window, shown.advance)
        else:
            found = _read(variant, window, plan.design, layout, job, levels, shown.advance)
        return dataclasses.replace(found, seconds=round(time.perf_counter() - started, 3)).to_json()

    complete(ledger, jobs, lambda job: job.key, measure, workers=workers, stop=stop, until=until)


def _read(
    reader: Reader, window: Told, design: Design, layout: Layout, job: Job, levels: dict[int, float], advance: Advance
) -> WindowReading:
    """Read a window under a method, and ask for its facts at the end."""
    answers: list[list[float]] = []
    control: dict[int, tuple[float, ...]] = {}
    trained, plain = design.trained_length, job.method == PLAIN
    control_at = trained - (layout.target - layout.asked_at)

    def ask(prefix: Any) -> None:
        answers.extend(prefix.ask(window.questions))
        advance(sum(_tokens(window, number) for number in range(len(window.questions))))

    def ask_early(prefix: Any) -> None:
        numbers = control_facts(window, control_at)
        found = prefix.ask([window.questions[number] for number in numbers])
        control.update({number: tuple(_rounded(row)) for number, row in zip(numbers, found, strict=True)})

    def broken(losses: Losses) -> bool:
        """Return whether the loss has risen so far that no interval is needed; `losses` begin with token 1."""
        read = len(losses) + 1
        if read < trained or trained < 2 * RECENT:  # few tokens vary by a nat by themselves
            return False
        within = _mean(losses, window, trained // 2, trained)
        if plain:
            levels.setdefault(job.window, within)
        start = max(trained, read - RECENT)
        recent = _mean(losses, window, start, read) if read - start >= RECENT // 2 else within
        return max(within, recent) > min(within, levels.get(job.window, within)) + BROKEN

    asking = {layout.asked_at: ask}
    if plain and design.extends and control_facts(window, control_at):
        asking[control_at] = ask_early
    losses = reader.window_losses(
        torch.from_numpy(window.ids), chunk=CHUNK, advance=advance, asking=asking,
        until=broken if design.extends else None,
    )  # fmt: skip
    _check_finite(losses, job.method)
    whole = np.full(design.target, np.nan)
    whole[1 : 1 + len(losses)] = losses
    stopped = None if len(losses) == design.target - 1 else len(losses) + 1
    return WindowReading(
        loss=_by_block(whole, window, design),
        answers=tuple(tuple(_rounded(row)) for row in answers) if stopped is None else (),
        control=control,
        stopped=stopped,
    )


def _read_cropped(reader: Reader, window: Told, design: Design, number: int, advance: Advance) -> WindowReading:
    """Read only the last tokens before each part of a window that crop scores, at positions from 0."""
    whole = np.full(design.target, np.nan)
    for first, end in design.crop_steps(number):
        start = end - design.trained_length
        ids = torch.from_numpy(window.ids[start:end])
        losses = reader.window_losses(ids, first=first - start, chunk=CHUNK, advance=advance)
        _check_finite(losses, CROP)
        whole[first:end] = losses
    return WindowReading(loss=_by_block(whole, window, design))


def control_facts(window: Told, tokens: int) -> list[int]:
    """Return the facts to ask for after the first tokens: whole groups, at most six of them, evenly chosen."""
    known = window.within(tokens)
    groups = len(known) // GROUP
    chosen = dict.fromkeys(np.linspace(0, groups - 1, min(groups, MOST_CONTROLS // GROUP)).astype(int).tolist())
    return [known[GROUP * group + place] for group in chosen for place in range(GROUP)]


def window_of(told: Told, design: Design, text: int, start: int, frequencies: float) -> Window:
    """Return a window's entry in the evidence."""
    counted = tuple(int(told.counted[first:end].sum()) for first, end in design.blocks)
    return Window(text=text, start=start, facts=told.facts, counted=counted, frequencies=frequencies)


def _tokens(window: Told, number: int) -> int:
    question, choices = window.questions[number]
    return len(question) + sum(map(len, choices))


def asked_tokens(told: Sequence[Told]) -> int:
    """Return the tokens of the questions about one window."""
    return sum(_tokens(told[0], number) for number in range(len(told[0].questions))) if told else 0


def _rounded(row: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in row]


def _mean(losses: Losses, window: Told, start: int, end: int) -> float:
    counted = window.counted[max(1, start) : end]
    part = losses[max(1, start) - 1 : end - 1]
    return float(part[counted].mean()) if counted.any() else 0.0


def _by_block(losses: Losses, window: Told, design: Design) -> tuple[float | None, ...]:
    """Return the mean of the counted tokens of each block that was computed as a whole; None for the others."""
    found: list[float | None] = []
    for start, end in design.blocks:
        counted = window.counted[start:end]
        part = losses[start:end][counted]
        found.append(round(float(part.mean()), 5) if counted.any() and np.isfinite(part).all() else None)
    return tuple(found)


def _check_finite(losses: Losses, method: str) -> None:
    if not np.isfinite(losses).all():
        raise RopeError(
            "measurement: a loss is not a finite number.",
            facts={"method": method, "first such loss": int(np.flatnonzero(~np.isfinite(losses))[0])},
            cure="Measure with --dtype float32; if it stays, the checkpoint's weights are broken.",
        )
