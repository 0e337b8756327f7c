"""Measure the use of far tokens by the copy test: read the windows, gather the gains, and conclude."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropewalk.atomic_io import finite
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.measure.copy_windows import (
    CUE,
    HALVES,
    PLACES,
    ClosingBlock,
    CopyDesign,
    Half,
    Reading,
    UseInputs,
    UseProtocol,
    UseText,
    Where,
)
from ropewalk.measure.engine import NOTHING, Job, Workload, check_finite, due, run_jobs
from ropewalk.measure.plan import Plan
from ropewalk.methods import METHODS
from ropewalk.progress import Progress
from ropewalk.readers.losses import crop_steps, cropped_losses
from ropewalk.readers.reader import CHUNK, Advance, Losses, Reader
from ropewalk.readers.workers import fitting_workers
from ropewalk.statistics import Interval, mean_and_interval, signed

LEAST_COPY_GAIN = 0.1
"""Nats per token: below it the copy test says nothing about a model, because it cannot copy."""
SHARE = 0.5
"""Share of the gain within the trained length that a distance must be shown to reach."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UseRow:
    """The gain of one method at one distance: loss(absent) - loss(present) of the same tokens at the same positions.

    - `test`: always "copy"; old records also hold rows of the exchange test.
    - `distance`: tokens from the block back to its copy.
    - `gain`: nats per token, the mean over windows. `interval`: between windows, simultaneous over the distances of one
      method; None for one window.
    - `window`: tokens of each window. `control`: whether it is the control, in windows of the trained length.
    - `windows`, `tokens`: how many windows and scored tokens there are in all.
    """

    method: str
    test: str
    distance: int
    gain: float
    interval: Interval
    window: int
    control: bool
    windows: int
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        found: dict[str, Any] = finite(dataclasses.asdict(self))
        return found


@dataclasses.dataclass(frozen=True)
class Control:
    """The gain within the trained length, in nats per token, over all distances of the control together."""

    gain: float
    interval: Interval

    def shows(self, least: float, share: float = SHARE) -> bool:
        """Return whether it is shown to exceed `least` and known to within `share` of itself."""
        return self.interval is not None and self.interval[0] > max(least, share * self.gain)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UseMeasurement:
    """The gains of every method, and the controls.

    - `rows`: those of the methods at the target, and the control's under "plain". `controls`: by test, plain's gain
      within the trained length, all distances together.
    - `notes`: why a test is absent. `seconds`: of work, by method.

    >>> far = [UseRow(method="yarn", test="copy", distance=d, gain=6.0, interval=(5.0, 7.0), window=8192, control=False,
    ...               windows=3, tokens=300) for d in (1024, 4096)]
    >>> found = UseMeasurement(trained_length=2048, target=8192, rows=tuple(far),
    ...                        controls={"copy": Control(6.5, (6.0, 7.0))})
    >>> found.reach("yarn"), found.shows_use("yarn"), found.shows_use("crop")
    (4096, True, None)
    """

    trained_length: int
    target: int
    rows: tuple[UseRow, ...]
    controls: Mapping[str, Control]
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the methods measured at the target, in order."""
        return tuple(dict.fromkeys(row.method for row in self.rows if not row.control))

    @property
    def windows(self) -> int:
        """Return the number of windows."""
        return max((row.windows for row in self.rows), default=0)

    def of(self, method: str, test: str) -> list[UseRow]:
        """Return the rows of a method and test at the target, the nearest distance first."""
        found = [row for row in self.rows if (row.method, row.test, row.control) == (method, test, False)]
        return sorted(found, key=lambda row: row.distance)

    @property
    def can_copy(self) -> bool:
        """Return whether the control works: within the trained length the gain is clear and well known."""
        control = self.controls.get("copy")
        return control is not None and control.shows(LEAST_COPY_GAIN)

    @property
    def needed(self) -> float | None:
        """Half of the copy test's gain within the trained length, in nats per token; None where it is not measured."""
        return SHARE * self.controls["copy"].gain if self.can_copy else None

    def reach(self, method: str) -> int | None:
        """Return the largest distance in tokens up to which the copy test shows use.

        At it and at every nearer distance measured the interval lies above half of the gain within the trained length.
        None where the control does not work, or not even the nearest distance shows it.
        """
        reached = None
        for row in self.of(method, "copy"):
            if self.needed is None or row.interval is None or row.interval[0] <= self.needed:
                break
            reached = row.distance
        return reached

    def shown_at(self, method: str) -> tuple[int, ...]:
        """Return the distances in tokens at which the interval lies above half of the gain within."""
        needed = self.needed
        if needed is None:
            return ()
        found = self.of(method, "copy")
        return tuple(row.distance for row in found if row.interval is not None and row.interval[0] > needed)

    def shows_use(self, method: str) -> bool | None:
        """Return whether the method uses tokens beyond the trained length.

        True if at a distance beyond the trained length the gain is shown to be above half of that within, False if at
        every such distance it is shown to be below, None if the control does not work or the windows are too few.

        A method may use far tokens and have no `reach`, where it uses nearer ones less than that.
        """
        needed = self.needed
        if needed is None:
            return None
        beyond = [row.interval for row in self.of(method, "copy") if row.distance > self.trained_length]
        if any(interval is not None and interval[0] > needed for interval in beyond):
            return True
        refuted = beyond and all(interval is not None and interval[1] < needed for interval in beyond)
        return False if refuted else None

    def sentences(self) -> list[str]:
        """Describe the result in sentences."""
        return [*_copy_lines(self), *self.notes]

    def to_json(self) -> list[dict[str, Any]]:
        """Return every row as JSON holds it, with `needed`: half of the gain within."""
        return [{**row.to_json(), "needed": self.needed} for row in self.rows]


def span_of(shown: Sequence[int], measured: Sequence[int]) -> str:
    """Describe the measured distances at which use is shown, in order; empty for none.

    >>> span_of([128, 240], [128, 240, 464]), span_of([240, 464], [128, 240, 464]), span_of([464], [128, 240, 464])
    ('to 240', '240 to 464', 'at 464')
    >>> span_of([128, 464], [128, 240, 464])
    'in part'
    """
    if not shown:
        return ""
    first = measured.index(shown[0])
    if list(shown) != list(measured[first : first + len(shown)]):
        return "in part"
    if first == 0:
        return f"to {shown[-1]:,}"
    return f"at {shown[0]:,}" if len(shown) == 1 else f"{shown[0]:,} to {shown[-1]:,}"


def _copy_lines(found: UseMeasurement) -> Iterator[str]:
    """Describe the control of the copy test, and how far each method's use reaches."""
    control = found.controls.get("copy")
    if control is None:
        return
    gain = f"{signed(control.gain, control.interval)} nats per token"
    if not found.can_copy:
        yield (
            f"Copy test: not measured. Within the trained length a block of random words gains {gain} from an earlier "
            "copy: too little, or too uncertain, to tell anything about distant tokens."
        )
        return
    yield f"Copy test: within the trained length a block of random words gains {gain} from an earlier copy."
    beyond = f"tokens more than {found.trained_length:,} back"
    for method in found.methods:
        uses, where = found.shows_use(method), _where_half_is_shown(found, method)
        if uses:
            yield f"{method} uses {beyond}: at least half of that gain is shown {where}."
        elif uses is None:
            yield (
                f"{method}: {found.windows} windows do not tell whether it uses {beyond}; half of that gain is shown "
                f"{where}."
            )
        else:
            yield f"{method} is not shown to use {beyond}: the gain from them is less than half of that."


def _where_half_is_shown(found: UseMeasurement, method: str) -> str:
    """Return the distances at which the copy test's interval lies above half of the control's gain."""
    rows, shown = found.of(method, "copy"), list(found.shown_at(method))
    if not shown:
        return "at no distance"
    if shown[-1] == found.reach(method):
        return f"at every distance up to {shown[-1]:,} tokens back"
    others = [row.distance for row in rows if row.distance not in shown]
    return f"at {_listed(shown)} tokens back, not at {_listed(others)}"


def _listed(distances: list[int]) -> str:
    """Join distances for a sentence: 1, 2 and 3."""
    *most, last = [f"{distance:,}" for distance in distances]
    return f"{', '.join(most)} and {last}" if most else last


LossesOf = Callable[[str, Reading, int], Losses]
"""The losses of a method's reading of a window."""


def copy_gains(design: CopyDesign, blocks: Sequence[ClosingBlock], losses: Mapping[Half, Losses]) -> dict[int, float]:
    """Return for each distance the mean over its blocks of loss(absent) - loss(present), in nats per token.

    `losses` are those of all closing tokens in the two readings, nats `[closing]`.
    """
    means = {half: found.reshape(-1, design.block)[:, CUE:].mean(1) for half, found in losses.items()}
    gains: dict[int, list[float]] = {distance: [] for distance in design.distances}
    for number, block in enumerate(blocks):
        other: Half = "even" if block.half == "odd" else "odd"
        gains[block.distance].append(float(means[other][number] - means[block.half][number]))
    return {distance: sum(found) / len(found) for distance, found in gains.items()}


def gather(
    inputs: UseInputs, methods: Sequence[str], losses_of: LossesOf
) -> tuple[tuple[UseRow, ...], dict[str, Control]]:
    """Return the rows of every method and the control, from the losses of all readings."""
    rows: list[UseRow] = []
    controls: dict[str, Control] = {}
    for where in PLACES:
        for method in methods if where == "far" else ("plain",):
            copied, gains = copy_rows(inputs, where, method, losses_of)
            rows += copied
            if where == "control" and gains:
                controls["copy"] = Control(*mean_and_interval(gains))
    return tuple(rows), controls


def copy_rows(inputs: UseInputs, where: Where, method: str, losses_of: LossesOf) -> tuple[list[UseRow], list[float]]:
    """Return a row for each distance, and the gain of each window over all distances; both empty if not measured."""
    design, windows = inputs.copy(where), range(inputs.protocol.total_windows)
    if design is None:
        return [], []
    gains = []
    for window in windows:
        losses = {half: losses_of(method, Reading(where, half), window) for half in HALVES}
        gains.append(copy_gains(design, inputs.blocks(where, window), losses))
    by_distance = {distance: [of_window[distance] for of_window in gains] for distance in design.distances}
    scored = (design.block - CUE) * design.per_distance * len(windows)
    rows = [
        _row(inputs, where, method, distance, values, scored, comparisons=len(by_distance))
        for distance, values in by_distance.items()
    ]
    return rows, [sum(found.values()) / len(found) for found in gains]


def _row(
    inputs: UseInputs,
    where: Where,
    method: str,
    distance: int,
    values: Sequence[float],
    tokens: int,
    *,
    comparisons: int,
) -> UseRow:
    """Return the mean of the windows' values with a Bonferroni-corrected interval."""
    protocol, (gain, interval) = inputs.protocol, mean_and_interval(values, comparisons=comparisons)
    window = protocol.target if where == "far" else min(protocol.trained_length, protocol.target)
    return UseRow(
        method=method,
        test="copy",
        distance=distance,
        gain=gain,
        interval=interval,
        window=window,
        control=where == "control",
        windows=protocol.total_windows,
        tokens=tokens,
    )


FORMAT = 2  # of the results and of how readings are made: a change of either takes the next number


@dataclass(frozen=True)
class UseModel:
    """A method to measure: its reader, and the stride of crop where it reads only the last trained length."""

    reader: Reader
    stride: int | None = None

    @cached_property
    def key(self) -> str:
        """Return everything besides the weights that its losses depend on."""
        return fingerprint(self.reader.positions, self.stride)


@dataclass(frozen=True, kw_only=True)
class UseRun:
    """A measurement of use with checked arguments: the jobs that are due, and the work.

    The methods are named when it is measured: the doctor learns which one is best from the losses.
    """

    inputs: UseInputs
    ledger: Ledger
    chunk: int = CHUNK

    @classmethod
    def prepare(
        cls,
        protocol: UseProtocol,
        reader: Reader,
        texts: Sequence[UseText],
        *,
        state: Path | None = None,
        resume: bool = False,
        chunk: int = CHUNK,
    ) -> UseRun:
        """Prepare the run of a protocol on its texts.

        **Arguments:**
        - `reader`: the model, under any positions. `texts`: with the windows of the protocol.
        - `state`: a folder that saves each reading as it is computed; None: in memory. With `resume` what it
          holds is taken up; else it begins again. `chunk`: tokens of one forward.

        **Raises:** `RopeError` for a model without a tokenizer, and a state of another run.
        """
        tokenizer = reader.tokenizer
        if tokenizer is None:
            raise RopeError(
                "use: the model has no tokenizer, so no text can be read.",
                facts={"model": reader.name},
                cure="Put its tokenizer.json next to the weights.",
            )
        inputs = UseInputs(protocol=protocol, texts=tuple(texts), tokenizer=tokenizer)
        made = [(text.contents, tuple(text.tokens), text.starts) for text in texts]
        key = fingerprint(FORMAT, torch.__version__, reader.digest(), protocol, made, tokenizer.tokenizer.to_str())
        ledger = Ledger(state, kind="use", key=key)
        _ = ledger.resume() if resume else ledger.begin()
        return cls(inputs=inputs, ledger=ledger, chunk=chunk)

    @staticmethod
    def model(name: str, reader: Reader, plan: Plan) -> UseModel:
        """Return a method of the plan as its use is measured; one that shares another's numbers is that one."""
        positions = plan.positions[plan.same_as.get(name, name)]
        return UseModel(reader.under(positions), plan.protocol.stride if METHODS[name].crops else None)

    def due(self, methods: Mapping[str, UseModel]) -> tuple[Job, ...]:
        """Return every reading without a result, window by window; only plain reads the control."""
        protocol = self.inputs.protocol
        jobs = []
        for window in range(protocol.total_windows):
            for where in PLACES:
                for method in methods if where == "far" else ("plain",):
                    for reading in self.inputs.readings(where):
                        work = self._work(reading, methods[method].stride)
                        jobs.append(
                            Job(
                                method=method,
                                window=window,
                                key=self.key(methods[method], reading, window),
                                description=f"{method}, window {window + 1} of {protocol.total_windows}: "
                                f"{reading.description}",
                                tokens=work.tokens,
                                work=work,
                                part=reading,
                            )
                        )
        return due(jobs, self.ledger)

    def key(self, model: UseModel, reading: Reading, window: int) -> str:
        """Return a reading's key in the ledger."""
        return f"{model.key}/{reading.label}/{window}"

    def measure(
        self, methods: Mapping[str, UseModel], *, workers: int | None = None, progress: Progress | None = None
    ) -> UseMeasurement:
        """Process what is due, save each result as it is computed, and gather all of them.

        - `methods`: by name, plain among them. `workers`: readings at one time; None: as cores and memory allow.
        """
        if "plain" not in methods:
            raise RopeError(
                "use: plain reads the control, so it must be among the methods.",
                facts={"methods": list(methods)},
                cure="Add the model as it was trained, under the name plain.",
            )
        jobs = self.due(methods)
        if workers is None:
            workers = fitting_workers(methods["plain"].reader, self.inputs.protocol.target, len(jobs))

        def read(job: Job, advance: Advance) -> dict[str, Any]:
            losses = self._losses(job, methods[job.method], advance)
            return {"losses": [round(float(loss), 6) for loss in losses]}

        run_jobs(self.ledger, jobs, read, workers=workers, progress=progress)
        return self._gathered(methods)

    def _work(self, reading: Reading, stride: int | None) -> Workload:
        """Return the work of one reading."""
        protocol, first = self.inputs.protocol, self.inputs.first(reading)
        if reading.where == "control":
            return Workload.of(min(protocol.trained_length, protocol.target), chunk=self.chunk, first=first)
        if stride is None:
            return Workload.of(protocol.target, chunk=self.chunk, first=first)
        work = NOTHING
        for start, end, scored in crop_steps(protocol.target, protocol.trained_length, stride, first=first):
            work += Workload.of(end - start, chunk=self.chunk, first=scored - start)
        return work

    def _losses(self, job: Job, model: UseModel, advance: Advance) -> Losses:
        """Return the losses of a reading's scored tokens."""
        ids, first = self.inputs.ids(job.part, job.window), self.inputs.first(job.part)
        if model.stride is None:
            losses = model.reader.window_losses(ids, first=first, chunk=self.chunk, advance=advance)
        else:
            losses = cropped_losses(
                model.reader,
                ids,
                trained_length=self.inputs.protocol.trained_length,
                stride=model.stride,
                first=first,
                chunk=self.chunk,
                advance=advance,
            )
        check_finite(losses, job.method, first=first)
        return losses

    def _gathered(self, methods: Mapping[str, UseModel]) -> UseMeasurement:
        """Return the measurement from the ledger."""

        def result(method: str, reading: Reading, window: int) -> dict[str, Any]:
            return self.ledger[self.key(methods[method], reading, window)]

        def losses_of(method: str, reading: Reading, window: int) -> Losses:
            return np.asarray(result(method, reading, window)["losses"], dtype=np.float64)

        protocol = self.inputs.protocol
        rows, controls = gather(self.inputs, list(methods), losses_of)
        windows = range(protocol.total_windows)
        seconds = {
            method: sum(
                float(result(method, reading, window)["seconds"])
                for window in windows
                for reading in self.inputs.readings("far")
            )
            for method in methods
        }
        return UseMeasurement(
            trained_length=protocol.trained_length,
            target=protocol.target,
            rows=rows,
            controls=controls,
            notes=tuple(self.inputs.notes()),
            seconds=seconds,
        )
