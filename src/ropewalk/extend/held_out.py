"""What a search is worth: its point beside every analytic start, on text that it never saw."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from ropewalk.atomic_io import finite
from ropewalk.errors import RopeError
from ropewalk.extend.evaluation import Evaluation
from ropewalk.extend.jobs import open_ledger
from ropewalk.extend.point_search import SearchResult
from ropewalk.extend.space import PLAIN, Point
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.progress import Progress, SilentProgress
from ropewalk.readers.reader import CHUNK, Reader
from ropewalk.readers.workers import complete
from ropewalk.statistics import Interval, difference, mean_and_interval, signed

SEARCHED = "searched"
BEYOND = "the loss beyond the trained length differs by"
FEW = 8  # numbers of a point: all points of such a search stand in its record
ItemT = TypeVar("ItemT")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contest:
    """The searched point against the best analytic method on what was held out: "wins", "loses" or "undecided".

    `best` is chosen by these very numbers, with hindsight: a harder rival than the one that the search text names.
    `keeps_limit`: whether it keeps the search's limit within the trained length, as the searched point does.
    `difference` is searched minus best, with its 95 % interval, paired by window or text; `what` differs.
    `among_keeping` is the same against the best of those that keep the limit, where that is another one.
    """

    outcome: str
    best: str
    keeps_limit: bool
    difference: float
    interval: Interval
    what: str
    among_keeping: Contest | None = None

    @classmethod
    def of(
        cls,
        values: Mapping[str, Sequence[float]],
        keeping: Sequence[str],
        *,
        found_better: bool,
        what: str,
        higher: bool = False,
    ) -> Contest:
        """By name, one value for each window or text; `higher`: more is better. `keeping` are those within the limit.

        >>> losses = {"searched": (2.0, 3.0, 4.0), "yarn": (2.5, 3.5, 4.6), "pi": (4.0, 5.0, 6.0)}
        >>> Contest.of(losses, ["yarn"], found_better=True, what="the loss differs by").outcome
        'wins'
        """
        sign = -1.0 if higher else 1.0

        def against(names: Sequence[str]) -> Contest:
            best = min(names, key=lambda name: sign * float(np.mean(values[name])))
            mean, interval = difference(values[SEARCHED], values[best])
            outcome = "undecided"
            if found_better and interval is not None:
                low, high = sorted(sign * end for end in interval)
                outcome = "wins" if high < 0 else "loses" if low > 0 else "undecided"
            return cls(
                outcome=outcome,
                best=best,
                keeps_limit=best in keeping,
                difference=mean,
                interval=interval,
                what=what,
            )

        first = against([name for name in values if name != SEARCHED])
        return first if first.keeps_limit else dataclasses.replace(first, among_keeping=against(keeping))

    @property
    def sentence(self) -> str:
        """In words."""
        said = {"wins": "The search wins", "loses": "The search loses", "undecided": "Undecided"}
        beyond = "" if self.keeps_limit else " (which costs more than the limit within)"
        advice = {"wins": "", "loses": f" Use {self.best}.", "undecided": f" Nothing speaks against {self.best}."}
        sentence = (
            f"{said[self.outcome]}: {self.what} {signed(self.difference, self.interval)} against {self.best}{beyond}, "
            f"the best analytic method on what was held out."
        )
        sentence += advice[self.outcome] if self.keeps_limit else ""
        if self.among_keeping is not None:
            other = self.among_keeping
            sentence += (
                f" Among those that keep the limit {other.best} is best, and against it the search "
                f"{other.outcome if other.outcome != 'undecided' else 'is undecided'}: "
                f"{signed(other.difference, other.interval)}."
            )
        return sentence

    def best_method(self, measured: str) -> str:
        """The best analytic method in words, where the search returns one as it is; `measured` says by what."""
        beyond = "" if self.keeps_limit else ", but costs more than the limit within"
        return f"Of the analytic methods {self.best} is best {measured}{beyond}."

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it, with the sentence."""
        return {**dataclasses.asdict(self), "sentence": self.sentence}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Mean losses (nats per token) in each window of a text, by name: "searched", then the analytic starts.

    `chosen` is the best start on the search's own text; `text` names the held-out one. `keeping` are the starts
    that keep the search's limit within the trained length, in nats per token.
    """

    text: str
    chosen: str
    found_better: bool
    keeping: tuple[str, ...]
    limit: float
    within: Mapping[str, tuple[float, ...]]
    beyond: Mapping[str, tuple[float, ...]]

    @property
    def gain(self) -> tuple[float, Interval]:
        """The searched factors' loss beyond the trained length minus the chosen start's, paired by window."""
        return difference(self.beyond[SEARCHED], self.beyond[self.chosen])

    @property
    def standing(self) -> Contest:
        """Against the best method on this very text."""
        return Contest.of(self.beyond, self.keeping, found_better=self.found_better, what=BEYOND)

    def sentences(self) -> list[str]:
        """The answer in words."""
        if not self.found_better:
            return [
                f"The search found nothing better than {self.chosen}, and returns it.",
                self.standing.best_method(f"by the loss on {self.text} beyond the trained length"),
            ]
        windows = len(self.beyond[SEARCHED])
        mean, interval = self.gain
        lines = [
            self.standing.sentence,
            f"On {self.text} ({windows} window{'s' * (windows > 1)}), which the search never saw, its point changes "
            f"the loss beyond the trained length by {signed(mean, interval)} nats against {self.chosen}, the best "
            f"analytic method in the search. {weighed(mean, interval, self.chosen)}",
        ]
        cost, around = difference(self.within[SEARCHED], self.within[PLAIN])
        limit = f" (limit in the search: {self.limit:g})" if math.isfinite(self.limit) else ""
        lines.append(f"Within the trained length it costs {signed(cost, around)} nats against plain{limit}.")
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
                "keeping": list(self.keeping),
                "standing": self.standing.to_json(),
                "gain": mean,
                "gain_ci": interval,
                "rows": rows,
                "sentences": self.sentences(),
            }
        )
        return document


def points_of(result: SearchResult) -> dict[str, Point]:
    """What a search is held against: its own point as "searched", then every analytic start."""
    return {SEARCHED: result.best.point, **{start.name: start for start in result.space.starts}}


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
    points: Mapping[str, Point],
    items: Sequence[ItemT],
    measure: Callable[[Reader, ItemT], tuple[float, ...]],
    ledger: Ledger,
    *,
    what: str,
    tokens: int,
    progress: Progress,
) -> dict[str, list[tuple[float, ...]]]:
    """By name, the losses of every point on each item: those in the ledger, and the others measured now.

    A point that stands under two names, as the searched one does where nothing better was found, is measured once.
    `what` and `tokens` describe one measurement in `progress`. Raises `RopeError` for a loss that is not finite.
    """
    first = {name: next(other for other in points if points[other] == points[name]) for name in points}
    jobs = [(name, index) for index in range(len(items)) for name in points if first[name] == name]

    def key(job: tuple[str, int]) -> str:
        return f"{job[0]}/{job[1]}"

    def compute(job: tuple[str, int]) -> dict[str, Any]:
        name, index = job
        progress.begin(f"{jobs.index(job) + 1}/{len(jobs)} {what} {name}", tokens)
        values = measure(result.space.apply(reader, points[name]), items[index])
        if not np.isfinite(values).all():
            raise RopeError(
                "held_out: a loss is not a finite number.",
                facts={"point": name, "number": index},
                cure="Measure with float32.",
            )
        return {"losses": list(values)}

    complete(ledger, jobs, key, compute)
    return {
        name: [tuple(ledger[key((of, index))]["losses"]) for index in range(len(items))] for name, of in first.items()
    }


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
    """Measure a search's point and every analytic start on windows that the search did not see.

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
    points = points_of(result)
    key = fingerprint(
        reader.digest(), list(points.values()), reach.unscaled_tokens, windows.contiguous().numpy().tobytes()
    )
    inside = reach.trained - 1

    def sums(reader: Reader, ids: Tensor) -> tuple[float, float]:
        losses = reader.window_losses(ids, chunk=chunk, advance=shown.advance)
        return float(losses[:inside].sum()), float(losses[inside:].sum())

    ledger = open_ledger(folder, kind="held-out", key=key, resume=resume)
    totals = measure_points(
        reader, result, points, list(windows), sums, ledger, what="held out", tokens=reach.target, progress=shown
    )
    outside = reach.target - reach.trained
    return HeldOut(
        text=text,
        chosen=result.best_start.point.name,
        found_better=result.found_better,
        keeping=result.keeping,
        limit=result.limit,
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
    few = len(result.best.point.logarithms) <= FEW
    document: dict[str, Any] = finite(
        {
            "kind": "search",
            "model": model,
            "over": space.over,
            "text": text,
            "windows": result.items,
            "trained_length": reach.trained,
            "target": reach.target,
            "unscaled_tokens": reach.unscaled_tokens,
            "within_limit": result.limit,
            "evaluations": len(result.evaluations),
            "ended_by": result.ended_by,
            "seconds": sum(line.seconds for line in result.evaluations),
            "items_read": sum(len(line.losses) for line in result.evaluations),
            "starts": [_row(result, line) for line in result.evaluations[: len(space.starts)]],
            "left_out": [list(pair) for pair in space.left_out],
            "best": _row(result, result.best),
            "best_start": result.best_start.point.name,
            "gain_on_search_text": result.best.loss - result.best_start.loss,
            "rope_parameters": None if reach.unscaled_tokens or result.rope is None else result.rope.to_hf(),
            "max_position_embeddings": reach.target,
            "losses": [line.loss if result.counts(line) else None for line in result.evaluations],
            "points": [_row(result, line) for line in result.evaluations] if few else None,
            "held_out": None if unseen is None else unseen.to_json(),
            **more,
        }
    )
    return document


def _row(result: SearchResult, line: Evaluation) -> dict[str, Any]:
    """An evaluation in the record: `loss` is the mean over the items read."""
    divisors, attention_factor = result.space.profile(line.point)
    return {
        **line.point.to_json(),
        "divisors": list(divisors),
        "attention_factor": attention_factor,
        "loss": line.loss,
        "items": len(line.losses),
        "cost_within": line.cost_within,
    }
