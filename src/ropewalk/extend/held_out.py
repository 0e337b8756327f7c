"""What a search is worth: its factors beside every analytic start, on text that it never saw."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from ropewalk.context.measure import CHUNK, window_losses
from ropewalk.context.output import finite
from ropewalk.context.recommend import Interval, difference, signed
from ropewalk.context.state import State, WindowResult, model_digest, peak_memory
from ropewalk.context.statistics import mean_and_interval
from ropewalk.errors import RopeError
from ropewalk.extend.factors import Factors
from ropewalk.extend.search import Advance, Begin, SearchResult
from ropewalk.models.decoder import Decoder

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
        found: dict[str, Any] = finite(
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
        return found


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
    return "The gain is not significant: the 95 % interval holds zero."


def measure_points(
    model: Decoder,
    result: SearchResult,
    items: Sequence[ItemT],
    measure: Callable[[Decoder, ItemT], tuple[float, ...]],
    state: State,
    *,
    resume: bool,
    begin: Begin | None,
) -> None:
    """Measure every point of `points_of` on every item, keeping each one's numbers in `state` as `block_sums`.

    Raises `RopeError` where one of them is not finite.
    """
    if resume:
        state.resume()
    else:
        state.begin()
    count = 0
    for index, item in enumerate(items):
        for name, factors in points_of(result).items():
            if (name, index) in state.results:
                continue
            count += 1
            if begin is not None:
                begin(count, name, None)
            started = time.perf_counter()
            found = measure(result.space.apply(model, factors), item)
            if not np.isfinite(found).all():
                raise RopeError(
                    "held_out: a loss is not a finite number.",
                    facts={"factors": name, "number": index},
                    cure="Measure with float32.",
                )
            state.add(name, index, WindowResult(found, found[0], time.perf_counter() - started, peak_memory()))


def held_out(
    model: Decoder,
    result: SearchResult,
    windows: Tensor,
    *,
    text: str,
    state_path: Path | None = None,
    resume: bool = False,
    chunk: int = CHUNK,
    begin: Begin | None = None,
    advance: Advance | None = None,
) -> HeldOut:
    """Measure a search's factors and every analytic start on windows that the search did not see.

    **Arguments:**
    - `windows`: int64 `[windows, target]` of another text, or of another part; `text` names it.
    - `state_path`, `resume`: a file that keeps each window's result, so that a stopped measurement goes on; or a
      folder, in which it has a file of its own.
    - `begin` is told before each window its number, the name measured and None; `advance` the tokens done.

    **Raises:** `RopeError` where the windows do not fit the search, a loss is not finite, or `state_path` is a file
    that holds something else.
    """
    space = result.space
    if windows.ndim != 2 or not len(windows) or windows.shape[1] != space.target:
        raise RopeError(
            "held_out: `windows` must be [windows, target].",
            facts={"windows": windows, "target": space.target},
            cure="Take them with the search's own target.",
        )
    points = points_of(result)
    fingerprint = _fingerprint(model, windows, list(points.values()), space.unscaled_tokens)
    place = state_path
    if place is not None and place.is_dir():
        place = place / f"{fingerprint}.json"

    def one(model: Decoder, ids: Tensor) -> tuple[float, float]:
        losses = window_losses(model, ids, chunk=chunk, advance=advance)
        inside = space.trained_length - 1
        return float(losses[:inside].sum()), float(losses[inside:].sum())

    state = State(place, fingerprint)
    measure_points(model, result, list(windows), one, state, resume=resume, begin=begin)
    inside, outside = space.trained_length - 1, space.target - space.trained_length

    def means(part: int, count: int) -> dict[str, tuple[float, ...]]:
        return {
            name: tuple(state.results[name, index].block_sums[part] / count for index in range(len(windows)))
            for name in points
        }

    return HeldOut(
        text=text,
        chosen=result.best_start.factors.name,
        found_better=result.best.loss < result.best_start.loss,
        within=means(0, inside),
        beyond=means(1, outside),
    )


def search_record(
    result: SearchResult, found: HeldOut | None, *, model: str, text: str, further: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything that was searched and found, as one JSON document; losses in nats per token, lengths in tokens.

    `further` are entries to add, or to put in place of these.
    """
    space = result.space
    cleaned: dict[str, Any] = finite(
        {
            "kind": "search",
            "model": model,
            "text": text,
            "windows": len(result.best.losses),
            "trained_length": space.trained_length,
            "target": space.target,
            "monotone": space.monotone,
            "unscaled_tokens": space.unscaled_tokens,
            "evaluations": len(result.evaluations),
            "ended_by": result.ended_by,
            "seconds": sum(line.seconds for line in result.evaluations),
            "starts": [{**start.to_json(), "loss": _loss_of(result, start)} for start in space.starts],
            "left_out": [list(pair) for pair in space.left_out],
            "best": {**result.best.factors.to_json(), "loss": result.best.loss},
            "best_start": result.best_start.factors.name,
            "gain_on_search_text": result.best.loss - result.best_start.loss,
            "rope_parameters": None if space.unscaled_tokens else result.rope.to_hf(),
            "max_position_embeddings": space.target,
            "losses": [line.loss for line in result.evaluations],
            "held_out": None if found is None else found.to_json(),
            **further,
        }
    )
    return cleaned


def _loss_of(result: SearchResult, start: Factors) -> float:
    return next(line.loss for line in result.evaluations if line.factors == start)


def _fingerprint(model: Decoder, windows: Tensor, points: Sequence[Factors], unscaled_tokens: int) -> str:
    digest = hashlib.sha256(f"{model_digest(model)} {points!r} {unscaled_tokens}".encode())
    digest.update(windows.contiguous().numpy().tobytes())
    return digest.hexdigest()[:20]
