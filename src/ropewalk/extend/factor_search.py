"""A search for the factors of a model's ropes: one divisor per pair and the attention factor, by what they cost."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.extend.evaluation import Evaluation
from ropewalk.extend.evolution import Evolution
from ropewalk.extend.factors import Factors, Space, search_space
from ropewalk.extend.jobs import open_ledger, result_of
from ropewalk.launch.processes import current
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods import Reach
from ropewalk.optional import need
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import CHUNK, Advance, Reader
from ropewalk.readers.workers import complete
from ropewalk.rope.config import RopeConfig

BUDGET = 200
TEXT = "text"
SAME = 1e-6  # in a logarithm: what other machines' last bits may change in a point
Objective = Callable[[Reader], Sequence[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What a search found: the best point, the best analytic start, and every evaluation in order.

    Losses are nats per token on the search text, beyond the trained length unless another objective was given.
    """

    space: Space
    best: Evaluation
    best_start: Evaluation
    evaluations: tuple[Evaluation, ...]
    ended_by: str

    @property
    def rope(self) -> RopeConfig:
        """The searched layers' rope with the best factors: LongRoPE with two equal lists."""
        return self.space.rope(self.best.factors)

    @property
    def found_better(self) -> bool:
        """Whether the best point is none of the analytic starts."""
        return self.best.loss < self.best_start.loss

    def apply(self, reader: Reader) -> Reader:
        """The model under the best factors."""
        return self.space.apply(reader, self.best.factors)

    @property
    def best_so_far(self) -> list[float]:
        """After each evaluation, the lowest loss until then."""
        found: list[float] = np.minimum.accumulate([line.loss for line in self.evaluations]).tolist()
        return found


def search_factors(
    reader: Reader,
    windows: Tensor | None,
    reach: Reach,
    *,
    budget: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    monotone: bool = False,
    objective: Objective | None = None,
    objective_name: str = TEXT,
    tokens_per_evaluation: int = 0,
    folder: Path | None = None,
    resume: bool = False,
    chunk: int = CHUNK,
    progress: Progress | None = None,
) -> SearchResult:
    """Find divisors and an attention factor with a low loss beyond the trained length.

    **Arguments:**
    - `windows`: int64 `[windows, target]`, token ids of the reader's tokenizer; None where an `objective` reads others.
    - `reach`: the lengths; see `Space`.
    - `budget`: evaluations in all, the analytic starts among them (None: 200, or no limit where `seconds` is given);
      `seconds`: of evaluations in all, counted over interruptions. The starts are always evaluated.
    - `seed`: decides every draw. `monotone`: see `Space`.
    - `objective`: what a point costs, as several numbers whose mean counts (for windows or questions); default the mean
      loss of each window beyond the trained length. `answers.answer_objective` makes one of retrieval;
      `objective_name` tells objectives apart in `folder`, and `tokens_per_evaluation` is what one reads.
    - `folder`: each search keeps its evaluations there, in a ledger named by its fingerprint; with `resume` they are
      taken from it. A search that was stopped and resumed evaluates the same points as one that was not.
    - `progress`: each evaluation begins with its number, its name and the best loss until then.

    **Returns:** a `SearchResult`; its best is never worse than the best analytic start, on this objective.
    **Raises:** `RopeError` for a budget below the number of starts, for a ledger with other points than this search
    asks for, and as `search_space`. A KeyboardInterrupt passes through; what was evaluated by then is in the ledger.
    **Source:** LongRoPE's search (Ding et al. 2024, arXiv:2402.13753, section 3.3) is evolutionary, from YaRN, PI and
    NTK; this one begins at the best of all analytic methods, and its steps are CMA-ES's.
    """
    space = search_space(reader.positions, reach, monotone=monotone)
    limit = BUDGET if budget is None and seconds is None else budget
    shown = progress or SilentProgress()
    if objective is not None and objective_name == TEXT and folder is not None:
        raise RopeError(
            "search: an objective of your own needs a name, or another one's losses would be taken for its own.",
            facts={"objective_name": objective_name, "folder": str(folder)},
            cure="Pass objective_name=..., other than text, and another one for every other objective.",
        )
    if windows is not None or objective is None:
        _check_windows(windows, space)
    _check(space, limit, seconds, seed)
    if objective is None:
        assert windows is not None, "checked above"
        tokens_per_evaluation = windows.numel()
        objective = text_objective(windows, first=reach.trained, chunk=chunk, advance=shown.advance)
    key = _fingerprint(reader, windows, space, seed, objective_name)
    ledger = open_ledger(folder, kind="search", key=key, resume=resume)
    evaluate = _Evaluator(reader, space, objective, ledger, shown, limit, tokens_per_evaluation)

    def ended() -> str | None:
        if limit is not None and len(evaluate.done) >= limit:
            return "budget"
        spent = sum(line.seconds for line in evaluate.done)
        return "time" if seconds is not None and spent >= seconds else None

    evaluate.ahead(space.starts)
    for start in space.starts:
        evaluate(start)
    best_start = evaluate.best
    if not np.isfinite(best_start.loss):
        raise RopeError(
            "search: no analytic method gives a finite loss.",
            facts={"losses": {line.factors.name: line.loss for line in evaluate.done}},
            cure="Measure with float32; if it stays, the checkpoint's weights are broken.",
        )
    evolution = Evolution(best_start.factors, space.starts, seed=seed)
    reason = ended()
    while reason is None:
        generation: list[float] = []
        number = len(evaluate.done) + 1
        points = [space.factors(asked, f"candidate {n}") for n, asked in enumerate(evolution.ask(), number)]
        if seconds is None:
            evaluate.ahead(points)
        for point in points:
            reason = ended()
            if reason is not None:
                break
            generation.append(evaluate(point).loss)
        if len(generation) == evolution.population:
            evolution.tell(generation, evaluate.best.factors)
            reason = ended()
    return SearchResult(
        space=space,
        best=evaluate.best,
        best_start=best_start,
        evaluations=tuple(evaluate.done),
        ended_by=reason or "budget",
    )


class _Evaluator:
    """Evaluates one point after the other, taking from the ledger what is there."""

    def __init__(
        self,
        reader: Reader,
        space: Space,
        objective: Objective,
        ledger: Ledger,
        progress: Progress,
        limit: int | None,
        tokens: int,
    ) -> None:
        self.reader, self.space, self.objective, self.ledger = reader, space, objective, ledger
        self.progress, self.limit, self.tokens = progress, limit, tokens
        self.done: list[Evaluation] = []

    @property
    def best(self) -> Evaluation:
        """The lowest loss until now, the earlier one on a tie."""
        return min(self.done, key=lambda line: line.loss)

    def __call__(self, factors: Factors) -> Evaluation:
        """The evaluation of the next point."""
        number = len(self.done) + 1
        kept = Evaluation.from_json(result_of(self.ledger, str(number), lambda: self._compute(number, factors)))
        _check_same(kept.factors, factors, number, self.ledger.folder)
        self.done.append(dataclasses.replace(kept, factors=factors))
        return self.done[-1]

    def ahead(self, points: Sequence[Factors]) -> None:
        """Share the next points out among the processes of a launch, as far as the limit allows; one alone waits."""
        if current().several:
            room = len(points) if self.limit is None else self.limit - len(self.done)
            jobs = list(enumerate(points[:room], len(self.done) + 1))
            complete(self.ledger, jobs, lambda job: str(job[0]), lambda job: self._compute(*job))

    def _compute(self, number: int, factors: Factors) -> dict[str, Any]:
        step = f"{number}/{self.limit}" if self.limit else str(number)
        best = f", best {self.best.loss:.4f} ({self.best.factors.name})" if self.done else ""
        self.progress.begin(f"{step} {factors.name}{best}", self.tokens)
        started = time.perf_counter()
        losses = tuple(float(value) for value in self.objective(self.space.apply(self.reader, factors)))
        return Evaluation(factors, losses, time.perf_counter() - started).to_json()


def text_objective(windows: Tensor, *, first: int, chunk: int = CHUNK, advance: Advance | None = None) -> Objective:
    """The mean loss of each window's tokens from `first` on, in nats per token, for a model."""

    def cost(reader: Reader) -> list[float]:
        return [float(reader.window_losses(ids, first=first, chunk=chunk, advance=advance).mean()) for ids in windows]

    return cost


def _check_windows(windows: Tensor | None, space: Space) -> None:
    fits = windows is not None and windows.ndim == 2 and windows.dtype == torch.int64 and len(windows)
    if not fits or windows is None or windows.shape[1] != space.reach.target:
        raise RopeError(
            "search: `windows` must be int64 [windows, target], at least one.",
            facts={"windows": windows, "target": space.reach.target},
            cure="Take them from a text with diagnosis.plan.take_windows.",
        )


def _check(space: Space, budget: int | None, seconds: float | None, seed: int) -> None:
    if space.reach.unscaled_tokens >= space.reach.target:
        raise RopeError(
            "search: `unscaled_tokens` must lie from 0 to below the target.",
            facts={"unscaled_tokens": space.reach.unscaled_tokens, "target": space.reach.target},
            cure="LongRoPE tries 0 to 256.",
        )
    least = len(space.starts)
    if budget is not None and budget < least:
        raise RopeError(
            "search: the budget does not cover the analytic methods that the search starts from.",
            facts={"budget": budget, "analytic starts": [start.name for start in space.starts]},
            cure=f"Pass --budget {least} or more; 200 is usual.",
        )
    if seconds is not None and not seconds > 0:
        raise RopeError("search: the time must be above zero.", facts={"seconds": seconds}, cure="Pass --minutes 30.")
    if seed < 0:
        raise RopeError("search: the seed must not be negative.", facts={"seed": seed}, cure="Pass --seed 0.")


def _check_same(kept: Factors, asked: Factors, number: int, path: Path | None) -> None:
    """Refuse a kept evaluation of another point: the search would take its loss for this one's."""
    same = kept.name == asked.name and len(kept.divisors) == len(asked.divisors)
    if not (same and np.allclose(kept.logarithms, asked.logarithms, rtol=0, atol=SAME)):
        raise RopeError(
            "search: the ledger holds another point than this search asks for.",
            facts={"ledger": str(path), "evaluation": number, "kept": kept, "asked for": asked},
            cure="Begin again (--restart; resume=False), with the versions installed now.",
        )


def _fingerprint(reader: Reader, windows: Tensor | None, space: Space, seed: int, objective: str) -> str:
    """What the evaluations depend on; the budget is not among it, so that a search can be prolonged."""
    version = str(need("cma", extra="search").__version__)
    tokens = b"" if windows is None else windows.contiguous().numpy().tobytes()
    return fingerprint(reader.digest(), space.reach, space.monotone, seed, objective, space.starts, version, tokens)
