"""A search for the factors of a model's ropes: one divisor per pair and the attention factor, by what they cost."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ropewalk.context.measure import CHUNK, window_losses
from ropewalk.context.state import model_digest
from ropewalk.errors import RopeError
from ropewalk.extend.evolution import Evolution
from ropewalk.extend.factors import Factors, Space, search_space
from ropewalk.extend.history import Evaluation, History
from ropewalk.models.decoder import Decoder
from ropewalk.models.extras import need
from ropewalk.rope.config import RopeConfig

BUDGET = 200
TEXT = "text"
SAME = 1e-6  # in a logarithm: what other machines' last bits may change in a point
Objective = Callable[[Decoder], Sequence[float]]
Begin = Callable[[int, str, Evaluation | None], None]
Advance = Callable[[int], None]


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

    def apply(self, model: Decoder) -> Decoder:
        """The model under the best factors."""
        return self.space.apply(model, self.best.factors)

    @property
    def best_so_far(self) -> list[float]:
        """After each evaluation, the lowest loss until then."""
        found: list[float] = np.minimum.accumulate([line.loss for line in self.evaluations]).tolist()
        return found


def search(
    model: Decoder,
    windows: Tensor | None,
    *,
    trained_length: int,
    target: int,
    budget: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    monotone: bool = False,
    unscaled_tokens: int = 0,
    objective: Objective | None = None,
    objective_name: str = TEXT,
    state_path: Path | None = None,
    resume: bool = False,
    chunk: int = CHUNK,
    begin: Begin | None = None,
    advance: Advance | None = None,
) -> SearchResult:
    """Find divisors and an attention factor with a low loss beyond the trained length.

    **Arguments:**
    - `model`: with its tokenizer's ids in `windows`, int64 `[windows, target]`; None where an `objective` reads others.
      Its weights are never copied.
    - `trained_length`, `target`: tokens.
    - `budget`: evaluations in all, the analytic starts among them (None: 200, or no limit where `seconds` is given);
      `seconds`: of evaluations in all, counted over interruptions. The starts are always evaluated.
    - `seed`: decides every draw. `monotone`, `unscaled_tokens`: see `Space`.
    - `objective`: what a point costs, as several numbers whose mean counts (for windows or questions); default the mean
      loss of each window beyond the trained length. `answers.answer_objective` makes one of retrieval;
      `objective_name` tells objectives apart in `state_path`.
    - `state_path`: a JSON file that holds every evaluation, or a folder in which each search has a file of its own;
      with `resume` it is gone on with. A search that was stopped and resumed evaluates the same points as one that was
      not.
    - `begin` is told before each evaluation its number, its name and the best so far, `advance` the tokens done.

    **Returns:** a `SearchResult`; its best is never worse than the best analytic start, on this objective.
    **Raises:** `RopeError` for a budget below the number of starts, for a state of another search or with other points
    than this one asks for, and as `search_space`. A KeyboardInterrupt passes through; what was evaluated by then is in
    the file.
    **Source:** LongRoPE's search (Ding et al. 2024, arXiv:2402.13753, section 3.3) is evolutionary, from YaRN, PI and
    NTK; this one begins at the best of all analytic methods, and its steps are CMA-ES's.
    """
    space = search_space(
        model, trained_length=trained_length, target=target, monotone=monotone, unscaled_tokens=unscaled_tokens
    )
    limit = BUDGET if budget is None and seconds is None else budget
    if objective is not None and objective_name == TEXT and state_path is not None:
        raise RopeError(
            "search: an objective of your own needs a name, or another one's losses would be taken up as its.",
            facts={"objective_name": objective_name, "state_path": str(state_path)},
            cure="Pass objective_name=..., other than text, and another one for every other objective.",
        )
    if windows is not None or objective is None:
        _check_windows(windows, space)
    _check(space, limit, seconds, seed)
    strategy = str(need("cma", extra="search").__version__)
    history = History.of(state_path, _fingerprint(model, windows, space, seed, objective_name, strategy))
    history.take_up(resume=resume)
    kept = list(history.evaluations)
    cost = objective
    if cost is None:
        assert windows is not None, "checked above"
        cost = text_objective(windows, first=trained_length, chunk=chunk, advance=advance)
    done: list[Evaluation] = []

    def best(lines: Sequence[Evaluation]) -> Evaluation:
        return min(lines, key=lambda line: line.loss)

    def evaluate(factors: Factors) -> Evaluation:
        if len(done) < len(kept):
            found = dataclasses.replace(kept[len(done)], factors=factors)
            _check_same(kept[len(done)].factors, factors, len(done) + 1, history.path)
        else:
            if begin is not None:
                begin(len(done) + 1, factors.name, best(done) if done else None)
            started = time.perf_counter()
            losses = tuple(float(value) for value in cost(space.apply(model, factors)))
            found = Evaluation(factors, losses, time.perf_counter() - started)
            history.add(found)
        done.append(found)
        return found

    def ended() -> str | None:
        if limit is not None and len(done) >= limit:
            return "budget"
        spent = sum(line.seconds for line in done)
        return "time" if seconds is not None and spent >= seconds else None

    for start in space.starts:
        evaluate(start)
    best_start = best(done)
    if not np.isfinite(best_start.loss):
        raise RopeError(
            "search: no analytic method gives a finite loss.",
            facts={"losses": {line.factors.name: line.loss for line in done}},
            cure="Measure with float32; if it stays, the checkpoint's weights are broken.",
        )
    evolution = Evolution(best_start.factors, space.starts, seed=seed)
    reason = ended()
    while reason is None:
        generation: list[float] = []
        for logarithms in evolution.ask():
            reason = ended()
            if reason is not None:
                break
            generation.append(evaluate(space.factors(logarithms, f"candidate {len(done) + 1}")).loss)
        if len(generation) == evolution.population:
            evolution.tell(generation, best(done).factors)
            reason = ended()
    return SearchResult(
        space=space, best=best(done), best_start=best_start, evaluations=tuple(done), ended_by=reason or "budget"
    )


def text_objective(windows: Tensor, *, first: int, chunk: int = CHUNK, advance: Advance | None = None) -> Objective:
    """The mean loss of each window's tokens from `first` on, in nats per token, for a model."""

    def cost(model: Decoder) -> list[float]:
        return [float(window_losses(model, ids, first=first, chunk=chunk, advance=advance).mean()) for ids in windows]

    return cost


def _check_windows(windows: Tensor | None, space: Space) -> None:
    fits = windows is not None and windows.ndim == 2 and windows.dtype == torch.int64 and len(windows)
    if not fits or windows is None or windows.shape[1] != space.target:
        raise RopeError(
            "search: `windows` must be int64 [windows, target], at least one.",
            facts={"windows": windows, "target": space.target},
            cure="Take them from a text with context.doctor.take_windows.",
        )


def _check(space: Space, budget: int | None, seconds: float | None, seed: int) -> None:
    if not 0 <= space.unscaled_tokens < space.target:
        raise RopeError(
            "search: `unscaled_tokens` must lie from 0 to below the target.",
            facts={"unscaled_tokens": space.unscaled_tokens, "target": space.target},
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
    """Refuse a kept evaluation of another point: its loss would be told to the search as this one's."""
    same = kept.name == asked.name and len(kept.divisors) == len(asked.divisors)
    if not (same and np.allclose(kept.logarithms, asked.logarithms, rtol=0, atol=SAME)):
        raise RopeError(
            "search: the state holds another point than this search asks for.",
            facts={"state": str(path), "evaluation": number, "kept": kept, "asked for": asked},
            cure="Begin anew (--restart; resume=False), with the versions installed now.",
        )


def _fingerprint(model: Decoder, windows: Tensor | None, space: Space, seed: int, objective: str, strategy: str) -> str:
    """A short hash of what the evaluations depend on; the budget is not among it, so that a search can be prolonged."""
    lengths = (space.trained_length, space.target, space.monotone, space.unscaled_tokens, seed, objective)
    digest = hashlib.sha256(f"{model_digest(model)} {lengths} {space.starts!r} cma {strategy}".encode())
    if windows is not None:
        digest.update(windows.contiguous().numpy().tobytes())
    return digest.hexdigest()[:20]
