"""What a search is worth: its factors beside every analytic start, on text that it never saw."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from ropewalk.atomic_io import finite
from ropewalk.errors import RopeError
from ropewalk.extend.factor_search import SearchResult
from ropewalk.extend.factors import Factors
from ropewalk.extend.jobs import open_ledger
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import CHUNK, Reader
from ropewalk.readers.workers import complete
from ropewalk.statistics import Interval, difference, mean_and_interval, signed

SEARCHED = "searched"
ItemT = TypeVar("ItemT")


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Mean losses (nats per token) in each window of a text, by name: "searched", then the analytic starts.

    `chosen` is the best start on the search's own text; `text` names the held-out one.
    """

    text: str
    chosen: str
    found_better: bool
    within: Mapping[str, tuple[float, ...]]
    beyond: Mapping[str, tuple[float, ...]]

    @property
    def gain(self) -> tuple[float, Interval]:
        """The searched factors' loss beyond the trained length minus the chosen start's, paired by window."""
        return difference(self.beyond[SEARCHED], self.beyond[self.chosen])

    @property
    def best_here(self) -> str:
        """The analytic start with the lowest mean loss on this very text: a harder rival, chosen with hindsight."""
        rivals = [name for name in self.beyond if name != SEARCHED]
        return min(rivals, key=lambda name: float(np.mean(self.beyond[name])))

    def sentences(self) -> list[str]:
        """The answer in words."""
        if not self.found_better:
            return [f"The search found nothing better than {self.chosen}, and returns it."]
        windows = len(self.beyond[SEARCHED])
        mean, interval = self.gain
        lines = [
            f"On {self.text} ({windows} window{'s' * (windows > 1)}), which the search never saw, its factors change "
            f"the loss beyond the trained length by {signed(mean, interval)} nats against {self.chosen}, the best "
            f"analytic method in the search. {weighed(mean, interval, self.chosen)}"
        ]
        if self.best_here != self.chosen:
            other, around = difference(self.beyond[SEARCHED], self.beyond[self.best_here])
            lines.append(
                f"Against {self.best_here}, the best analytic method on {self.text} itself: {signed(other, around)}."
            )
        cost, around = difference(self.within[SEARCHED], self.within["plain"])
        lines.append(f"Within the trained length they cost {signed(cost, around)} nats against plain.")
        return lines

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it: by name the losses of each window, their means, and the paired difference to `chosen`."""
        rows = []
        for name, beyond in self.beyond.items():
            apart, interval = difference(beyond, self.beyond[self.chosen])
            rows.append(
                {
                    "name": name,
                    "within": mean_and_interval(self.within[name])[0],
                    "beyond": mean_and_interval(beyond)[0],
                    "minus_chosen_beyond": apart,
                    "minus_chosen_beyond_ci": interval,
                    "within_by_window": list(self.within[name]),
                    "beyond_by_window": list(beyond),
                }
            )
        mean, interval = self.gain
        document: dict[str, Any] = finite(
            {
                "text": self.text,
                "windows": len(self.beyond[SEARCHED]),
                "chosen": self.chosen,
                "best_here": self.best_here,
                "gain": mean,
                "gain_ci": interval,
                "rows": rows,
                "sentences": self.sentences(),
            }
        )
        return document


def points_of(result: SearchResult) -> dict[str, Factors]:
    """What a search is held against: its own factors as "searched", then every analytic start."""
    return {SEARCHED: result.best.factors, **{start.name: start for start in result.space.starts}}


def weighed(mean: float, interval: Interval, chosen: str, *, unit: str = "window", seen: str = "text") -> str:
    """Whether a difference is shown; each `unit` gave one, `seen` is what the search was made on."""
    if interval is None:
        return f"One {unit}: no interval, so nothing is shown."
    if interval[1] < 0:
        return "The gain is significant: the 95 % interval lies below zero."
    if interval[0] > 0:
        return f"That is a loss, and significant: the search has fitted its own {seen}; {chosen} is better."
    return "The gain is not significant: the 95 % interval contains zero."


def measure_points(
    reader: Reader,
    result: SearchResult,
    items: Sequence[ItemT],
    measure: Callable[[Reader, ItemT], tuple[float, ...]],
    ledger: Ledger,
    *,
    what: str,
    tokens: int,
    progress: Progress,
) -> dict[str, list[tuple[float, ...]]]:
    """By name, the losses of every point of `points_of` on each item: those in the ledger, and the others measured now.

    `what` and `tokens` describe one measurement in `progress`. Raises `RopeError` for a loss that is not finite.
    """
    points = points_of(result)
    jobs = [(name, index) for index in range(len(items)) for name in points]

    def key(job: tuple[str, int]) -> str:
        return f"{job[0]}/{job[1]}"

    def compute(job: tuple[str, int]) -> dict[str, Any]:
        name, index = job
        progress.begin(f"{jobs.index(job) + 1}/{len(jobs)} {what} {name}", tokens)
        values = measure(result.space.apply(reader, points[name]), items[index])
        if not np.isfinite(values).all():
            raise RopeError(
                "held_out: a loss is not a finite number.",
                facts={"factors": name, "number": index},
                cure="Measure with float32.",
            )
        return {"losses": list(values)}

    complete(ledger, jobs, key, compute)
    return {name: [tuple(ledger[key((name, index))]["losses"]) for index in range(len(items))] for name in points}


def held_out(
    reader: Reader,
    result: SearchResult,
    windows: Tensor,
    *,
    text: str,
    folder: Path | None = None,
    resume: bool = False,
    chunk: int = CHUNK,
    progress: Progress | None = None,
) -> HeldOut:
    """Measure a search's factors and every analytic start on windows that the search did not see.

    **Arguments:**
    - `windows`: int64 `[windows, target]` of another text, or of another part; `text` names it.
    - `folder`, `resume`: keeps each window's result in a ledger of its own, so that a stopped measurement continues.

    **Raises:** `RopeError` where the windows do not fit the search, or a loss is not finite.
    """
    reach = result.space.reach
    if windows.ndim != 2 or not len(windows) or windows.shape[1] != reach.target:
        raise RopeError(
            "held_out: `windows` must be [windows, target].",
            facts={"windows": windows, "target": reach.target},
            cure="Take them with the search's own target.",
        )
    shown = progress or SilentProgress()
    points = list(points_of(result).values())
    key = fingerprint(reader.digest(), points, reach.unscaled_tokens, windows.contiguous().numpy().tobytes())
    inside = reach.trained - 1

    def sums(reader: Reader, ids: Tensor) -> tuple[float, float]:
        losses = reader.window_losses(ids, chunk=chunk, advance=shown.advance)
        return float(losses[:inside].sum()), float(losses[inside:].sum())

    ledger = open_ledger(folder, kind="held-out", key=key, resume=resume)
    totals = measure_points(
        reader, result, list(windows), sums, ledger, what="held out", tokens=reach.target, progress=shown
    )
    outside = reach.target - reach.trained
    return HeldOut(
        text=text,
        chosen=result.best_start.factors.name,
        found_better=result.found_better,
        within={name: tuple(window[0] / inside for window in values) for name, values in totals.items()},
        beyond={name: tuple(window[1] / outside for window in values) for name, values in totals.items()},
    )


def search_record(
    result: SearchResult, unseen: HeldOut | None, *, model: str, text: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """The search and its result as one JSON document; losses in nats per token, lengths in tokens.

    `more` are entries to add, or to put in place of these.
    """
    space, reach = result.space, result.space.reach
    document: dict[str, Any] = finite(
        {
            "kind": "search",
            "model": model,
            "text": text,
            "windows": len(result.best.losses),
            "trained_length": reach.trained,
            "target": reach.target,
            "monotone": space.monotone,
            "unscaled_tokens": reach.unscaled_tokens,
            "evaluations": len(result.evaluations),
            "ended_by": result.ended_by,
            "seconds": sum(line.seconds for line in result.evaluations),
            "starts": [{**start.to_json(), "loss": _loss_of(result, start)} for start in space.starts],
            "left_out": [list(pair) for pair in space.left_out],
            "best": {**result.best.factors.to_json(), "loss": result.best.loss},
            "best_start": result.best_start.factors.name,
            "gain_on_search_text": result.best.loss - result.best_start.loss,
            "rope_parameters": None if reach.unscaled_tokens else result.rope.to_hf(),
            "max_position_embeddings": reach.target,
            "losses": [line.loss for line in result.evaluations],
            "held_out": None if unseen is None else unseen.to_json(),
            **more,
        }
    )
    return document


def _loss_of(result: SearchResult, start: Factors) -> float:
    return next(line.loss for line in result.evaluations if line.factors == start)
