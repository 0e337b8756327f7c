"""The search of a space: points by what they cost, poor ones left early, within a limit at the trained length."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.extend.evaluation import Evaluation, Objective
from ropewalk.extend.jobs import open_ledger, result_of
from ropewalk.extend.space import PLAIN, Point, Space
from ropewalk.launch.processes import current
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import Reach
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import CHUNK, Advance, Reader
from ropewalk.readers.workers import complete
from ropewalk.rope.config import RopeConfig

WITHIN = 0.05  # nats per token that a point may cost within the trained length
SAME = 1e-6  # in a logarithm: what other machines' last bits may change in a point


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found: the best point, the best analytic start, and every evaluation in order.

    Both were read whole and keep the limit within the trained length; others may have been left early.
    """

    space: Space
    best: Evaluation
    best_start: Evaluation
    evaluations: tuple[Evaluation, ...]
    ended_by: str
    items: int
    limit: float

    @property
    def rope(self) -> RopeConfig | None:
        """The searched layers' rope under the best point; None where it acts in attention instead."""
        return self.space.rope(self.best.point)

    @property
    def found_better(self) -> bool:
        """Whether the best point is none of the analytic starts."""
        return self.best.loss < self.best_start.loss

    def apply(self, reader: Reader) -> Reader:
        """The model under the best point."""
        return self.space.apply(reader, self.best.point)

    def counts(self, line: Evaluation) -> bool:
        """Whether an evaluation was read whole and keeps the limit, so that it may be the best."""
        return len(line.losses) == self.items and line.cost_within <= self.limit

    @property
    def keeping(self) -> tuple[str, ...]:
        """The names of the analytic starts that keep the limit within the trained length, as far as they were read."""
        starts = self.evaluations[: len(self.space.starts)]
        return tuple(line.point.name for line in starts if line.cost_within <= self.limit)

    @property
    def best_so_far(self) -> list[float]:
        """After each evaluation, the lowest loss until then of those that count."""
        losses = [line.loss if self.counts(line) else math.inf for line in self.evaluations]
        found: list[float] = np.minimum.accumulate(losses).tolist()
        return found


def search_points(
    reader: Reader,
    space: Space,
    objective: Objective,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    limit: float = WITHIN,
    halving: bool | None = None,
    folder: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> SearchResult:
    """Find the point of a space that costs least, among those that cost little within the trained length.

    **Arguments:**
    - `objective`: what a point costs; `text_objective` and `answers.answer_objective` make one.
    - `budget`: points in all, the analytic starts among them (None: the space's own, or no limit where `seconds` is
      given); `seconds`: of evaluations in all, counted over interruptions. The starts are always evaluated.
    - `seed`: decides every draw.
    - `limit`: nats per token that a point may lose against plain within the trained length; a point beyond it is not
      read further and cannot be the best. Read only where the objective has `within`.
    - `halving`: successive halving (None: as the space has it): the points of a generation read the first item, the
      better half the second, the better half of those items three and four, and so on. An item is a window or a text.
    - `folder`: each search keeps its evaluations there, in a ledger named by its fingerprint; with `resume` they are
      taken from it. A search that was stopped and resumed evaluates the same points as one that was not.
    - `progress`: each evaluation begins with its number, its name and the best loss until then.

    **Returns:** a `SearchResult`; its best is never worse than the best analytic start, on this objective.
    **Raises:** `RopeError` for a budget below the number of starts, and for a ledger with other points than this search
    asks for. A KeyboardInterrupt passes through; what was evaluated by then is in the ledger.
    **Source:** successive halving: Jamieson and Talwalkar 2016, arXiv:1502.07943. Over factors: LongRoPE's search (Ding
    et al. 2024, arXiv:2402.13753, section 3.3) is evolutionary, from YaRN, PI and NTK; `Evolution` begins at the best
    of all analytic methods, and its steps are CMA-ES's.
    """
    most = space.budget if budget is None and seconds is None else budget
    _check(space, most, seconds, seed, limit)
    rungs = _rungs(objective.items, halving=space.halves if halving is None else halving)
    parts = (reader.digest(), space.reach, space.settings, space.starts, seed, objective.name, limit, rungs)
    ledger = open_ledger(folder, kind="search", key=fingerprint(*parts), resume=resume)
    work = _Work(reader, space, objective, ledger, progress or SilentProgress(), most, seconds, limit, rungs)
    work.race(space.starts, timed=False)
    best_start = work.best
    if best_start is None or not math.isfinite(best_start.loss):
        raise RopeError(
            "search: no analytic method gives a finite loss.",
            facts={"losses": {line.point.name: line.loss for line in work.done}},
            cure="Measure with float32; if it stays, the checkpoint's weights are broken.",
        )
    sampler = space.sampler(best_start.point, seed=seed)
    reason = work.ended()
    while reason is None:
        asked = sampler.ask()
        room = len(asked) if most is None else most - len(work.done)
        names = range(len(work.done) + 1, len(work.done) + len(asked) + 1)
        points = [space.point(one, f"candidate {number}") for one, number in zip(asked, names, strict=True)][:room]
        reason = work.race(points)
        if reason is None and len(points) == sampler.population:
            best = work.best
            assert best is not None, "a start counts"
            sampler.tell(work.told(len(points)), best.point)
        reason = reason or work.ended()
    best = work.best
    assert best is not None, "a start counts"
    return SearchResult(
        space=space,
        best=best,
        best_start=best_start,
        evaluations=tuple(work.done),
        ended_by=reason,
        items=objective.items,
        limit=limit,
    )


def _rungs(items: int, *, halving: bool) -> list[int]:
    """How many items have been read after each round: 1, 2, 4, ... and all of them; without halving all at once.

    >>> _rungs(6, halving=True), _rungs(6, halving=False)
    ([1, 2, 4, 6], [6])
    """
    return [*(2**n for n in range(items.bit_length()) if 2**n < items), items] if halving else [items]


@dataclasses.dataclass
class _Work:
    """Evaluates points in rounds, taking from the ledger what is there; `done` are the evaluations until now."""

    reader: Reader
    space: Space
    objective: Objective
    ledger: Ledger
    progress: Progress
    most: int | None
    seconds: float | None
    limit: float
    rungs: list[int]
    done: list[Evaluation] = dataclasses.field(default_factory=list)

    @property
    def best(self) -> Evaluation | None:
        """The lowest loss until now of those that count, the earlier one on a tie."""
        return min((line for line in self.done if self._counts(line)), key=lambda line: line.loss, default=None)

    def ended(self) -> str | None:
        """Why the search has ended, or None."""
        if self.most is not None and len(self.done) >= self.most:
            return "budget"
        return "time" if self._late() else None

    def race(self, points: Sequence[Point], *, timed: bool = True) -> str | None:
        """Read points in rounds, each with half as many as the last; returns "time" where that has ended it.

        Each round takes the best of the last one, in order, until it has so many that keep the limit.
        """
        first = len(self.done)
        order = list(range(first, first + len(points)))
        for rung in range(len(self.rungs)):
            wanted = math.ceil(len(points) / 2**rung)
            self._plain_within(rung)
            self._ahead([(number, points[number - first]) for number in order[:wanted]], rung)
            passed: list[int] = []
            for number in order:
                if rung and len(passed) == wanted:
                    break
                if timed and self._late():
                    return "time"
                self._evaluate(number, points[number - first], rung)
                if self.done[number].cost_within <= self.limit:
                    passed.append(number)
            order = sorted(passed, key=lambda number: self.done[number].loss)
        return None

    def told(self, count: int) -> list[float]:
        """What a sampler is told of the last so many points: their losses, and behind them those that do not count,
        in the order in which they were left."""
        lines = self.done[-count:]
        losses = [line.loss for line in lines if self._counts(line)]
        worst = max((loss for loss in losses if math.isfinite(loss)), default=0.0)
        left = [index for index, line in enumerate(lines) if not self._counts(line)]
        left.sort(key=lambda index: (-len(lines[index].losses), max(0.0, lines[index].cost_within - self.limit),
                                     lines[index].loss))  # fmt: skip
        behind = {index: worst + 1.0 + place for place, index in enumerate(left)}
        return [behind.get(index, line.loss) for index, line in enumerate(lines)]

    def _counts(self, line: Evaluation) -> bool:
        return len(line.losses) == self.objective.items and line.cost_within <= self.limit

    def _late(self) -> bool:
        return self.seconds is not None and sum(line.seconds for line in self.done) >= self.seconds

    def _evaluate(self, number: int, point: Point, rung: int) -> None:
        """The next round of a point, which is the next point in the first."""
        content = result_of(self.ledger, _job(number, rung), lambda: self._compute(number, point, rung))
        kept = Evaluation.from_json(content, self.space.read)
        _check_same(kept.point, point, number, self.ledger.folder)
        kept = dataclasses.replace(kept, point=point)
        if rung:
            self.done[number] = self.done[number].followed_by(kept)
        else:
            self.done.append(kept)

    def _ahead(self, points: Sequence[tuple[int, Point]], rung: int) -> None:
        """Share the points of a round out among the processes of a launch; one alone, or one that is timed, waits."""
        if current().several and self.seconds is None:
            complete(self.ledger, points, lambda one: _job(one[0], rung), lambda one: self._compute(*one, rung))

    def _plain_within(self, rung: int) -> list[float]:
        """The loss of the model as it was trained, on each window within the trained length up to a round's last."""
        within = self.objective.within
        if within is None or not math.isfinite(self.limit):
            return []
        plain = next(start for start in self.space.starts if start.name == PLAIN)

        def compute(index: int) -> dict[str, Any]:
            self.progress.begin(f"plain within the trained length {index + 1}", self.objective.window_tokens)
            return {"loss": within(self.space.apply(self.reader, plain), index)}

        windows = range(min(self.rungs[rung], self.objective.windows))
        complete(self.ledger, windows, _plain_job, compute)
        return [float(self.ledger[_plain_job(index)]["loss"]) for index in windows]

    def _compute(self, number: int, point: Point, rung: int) -> dict[str, Any]:
        """What a point costs on this round's items; none is read where it is beyond the limit before."""
        objective, before = self.objective, self.rungs[rung - 1] if rung else 0
        plain = self._plain_within(rung)
        windows, items = range(min(before, len(plain)), len(plain)), range(before, self.rungs[rung])
        earlier = self.done[number].within if rung else ()
        step = f"{number + 1}/{self.most}" if self.most else str(number + 1)
        best = f", best {self.best.loss:.4f} ({self.best.point.name})" if self.best else ""
        part = "" if len(self.rungs) == 1 else f", {self.rungs[rung]} of {objective.items}"
        tokens = len(windows) * objective.window_tokens + len(items) * objective.tokens
        self.progress.begin(f"{step} {point.name}{part}{best}", tokens)
        started = time.perf_counter()
        candidate = self.space.apply(self.reader, point)
        within = []
        if objective.within is not None:
            within = [objective.within(candidate, index) - plain[index] for index in windows]
        so_far = Evaluation(point, (), (*earlier, *within), 0.0)
        losses = [float(objective.cost(candidate, item)) for item in items] if so_far.cost_within <= self.limit else []
        return Evaluation(point, tuple(losses), tuple(within), time.perf_counter() - started).to_json()


def _job(number: int, rung: int) -> str:
    """The key of a point's round in the ledger; points are numbered from 1."""
    return f"{number + 1}/{rung}" if rung else str(number + 1)


def _plain_job(window: int) -> str:
    """The key of plain's loss within the trained length in the ledger."""
    return f"plain within/{window}"


def text_objective(
    windows: Tensor, reach: Reach, *, constrained: bool = True, chunk: int = CHUNK, advance: Advance | None = None
) -> Objective:
    """The mean loss of each window beyond the trained length, in nats per token.

    - `windows`: int64 `[windows, target]`, token ids of the reader's tokenizer.
    - `constrained`: the loss within the trained length, on the beginnings of the same windows, is measured as well.

    Raises `RopeError` for windows of another shape.
    """
    fits = windows.ndim == 2 and windows.dtype == torch.int64 and len(windows)
    if not fits or windows.shape[1] != reach.target:
        raise RopeError(
            "search: `windows` must be int64 [windows, target], at least one.",
            facts={"windows": windows, "target": reach.target},
            cure="Take them from a text with measure.plan.take_windows.",
        )

    def cost(reader: Reader, item: int) -> float:
        return float(reader.window_losses(windows[item], first=reach.trained, chunk=chunk, advance=advance).mean())

    objective = Objective(
        name=f"text {fingerprint(windows.contiguous().numpy().tobytes())}",
        items=len(windows),
        cost=cost,
        tokens=reach.target,
    )
    return within_limit(objective, windows, reach, chunk=chunk, advance=advance) if constrained else objective


def within_limit(
    objective: Objective, windows: Tensor, reach: Reach, *, chunk: int = CHUNK, advance: Advance | None = None
) -> Objective:
    """An objective with the loss within the trained length, on the beginnings of windows, int64 `[windows, tokens]`."""

    def within(reader: Reader, index: int) -> float:
        ids = windows[index, : reach.trained]
        losses = reader.window_losses(ids, seq_len=reach.target, chunk=chunk, advance=advance)
        return float(losses.mean())

    digest = fingerprint(windows[:, : reach.trained].contiguous().numpy().tobytes())
    return dataclasses.replace(
        objective,
        name=f"{objective.name}, within {digest}",
        within=within,
        windows=len(windows),
        window_tokens=reach.trained,
    )


def _check(space: Space, budget: int | None, seconds: float | None, seed: int, limit: float) -> None:
    least = len(space.starts)
    if budget is not None and budget < least:
        raise RopeError(
            "search: the budget does not cover the analytic methods that the search starts from.",
            facts={"budget": budget, "analytic starts": [start.name for start in space.starts]},
            cure=f"Pass --budget {least} or more; {space.budget} is usual.",
        )
    if seconds is not None and not seconds > 0:
        raise RopeError("search: the time must be above zero.", facts={"seconds": seconds}, cure="Pass --minutes 30.")
    if seed < 0:
        raise RopeError("search: the seed must not be negative.", facts={"seed": seed}, cure="Pass --seed 0.")
    if not limit >= 0:
        raise RopeError(
            "search: the limit within the trained length must be 0 or more.",
            facts={"within": limit},
            cure="Pass nats per token, --within 0.05, or --within inf for none.",
        )


def _check_same(kept: Point, asked: Point, number: int, path: Path | None) -> None:
    """Refuse a kept evaluation of another point: the search would take its loss for this one's."""
    same = kept.name == asked.name and len(kept.logarithms) == len(asked.logarithms)
    if not (same and np.allclose(kept.logarithms, asked.logarithms, rtol=0, atol=SAME)):
        raise RopeError(
            "search: the ledger holds another point than this search asks for.",
            facts={"ledger": str(path), "evaluation": number + 1, "kept": kept, "asked for": asked},
            cure="Begin again (--restart; resume=False), with the versions installed now.",
        )
