"""Which method to take, from paired losses: numbers in, numbers and sentences out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.statistics import Interval, difference, over_windows

TOLERATED = 0.05  # nats that a method may cost within the trained length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """One method's mean losses in nats within and beyond the trained length, and its paired differences to plain."""

    name: str
    within: float
    beyond: float | None
    within_difference: float
    within_interval: Interval
    beyond_difference: float | None
    beyond_interval: Interval
    affordable: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The method to take (None where nothing lies beyond the trained length), why, and how it stands against crop.

    `over_crop` is the paired loss beyond the trained length of the best method minus crop's: below zero it beats
    crop. `best_name` is that method, whatever it costs within; chosen among several on these very windows, so that its
    interval, which knows of no choice, is a little too narrow.
    """

    method: str | None
    reason: str
    standings: tuple[Standing, ...]
    best_name: str | None = None
    over_crop: float | None = None
    over_crop_interval: Interval = None
    beats_crop: bool | None = None
    crop_sentence: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return dataclasses.asdict(self)


def recommend(within: Mapping[str, Sequence[float]], beyond: Mapping[str, Sequence[float]] | None) -> Recommendation:
    """Choose the method with the lowest loss beyond the trained length that costs little within it.

    **Arguments:**
    - `within`, `beyond`: for each method, its mean loss (nats per token) in each window, within and beyond the trained
      length; `plain` among them. `beyond` is None where the target lies within the trained length.

    **Returns:** a `Recommendation`. A method is affordable if the upper end of its paired 95 % interval to plain
    within the trained length is at most 0.05 nats (with one window: if the mean is). Among affordable methods but
    those that forget (`Method.forgets`), the lowest mean beyond wins, the earlier named on a tie. It beats crop if
    the paired interval lies below zero (with one window: if the mean does).
    **Raises:** `RopeError` if plain is missing or the windows differ in number.

    >>> recommend({"plain": [3.0], "pi": [3.5], "yarn": [3.02]}, {"plain": [6.0], "pi": [3.1], "yarn": [3.3]}).method
    'yarn'
    """
    _check(within, beyond)
    standings = tuple(_standing(name, within, beyond) for name in within)
    if beyond is None:
        return Recommendation(
            method=None,
            reason="The target lies within the trained length: nothing is extended, so nothing is recommended.",
            standings=standings,
        )
    rivals = [standing for standing in standings if not _forgets(standing.name)]
    best = min((standing for standing in rivals if standing.affordable), key=_beyond)
    return _against_crop(best, rivals, standings, beyond, windows=len(within["plain"]))


def _forgets(name: str) -> bool:
    """Whether a method lowers the loss by not seeing distant tokens: a baseline, never recommended."""
    return name in METHODS and METHODS[name].forgets


def _check(within: Mapping[str, Sequence[float]], beyond: Mapping[str, Sequence[float]] | None) -> None:
    counts = {name: len(values) for name, values in within.items()}
    others = {name: len(values) for name, values in (within if beyond is None else beyond).items()}
    if "plain" not in counts or counts != others or len(set(counts.values())) != 1 or 0 in counts.values():
        raise RopeError(
            "recommend: every method needs one loss for each window, and plain must be among them.",
            facts={"windows within": counts, "windows beyond": others},
            cure="Measure plain and every other method on the same windows.",
        )


def _standing(
    name: str, within: Mapping[str, Sequence[float]], beyond: Mapping[str, Sequence[float]] | None
) -> Standing:
    cost, interval = difference(within[name], within["plain"])
    gain, gain_interval = difference(beyond[name], beyond["plain"]) if beyond is not None else (None, None)
    return Standing(
        name=name,
        within=over_windows(within[name])[0],
        beyond=over_windows(beyond[name])[0] if beyond is not None else None,
        within_difference=cost,
        within_interval=interval,
        beyond_difference=gain,
        beyond_interval=gain_interval,
        affordable=(cost if interval is None else interval[1]) <= TOLERATED,
    )


def _beyond(standing: Standing) -> float:
    return float("inf") if standing.beyond is None else standing.beyond


def _against_crop(
    best: Standing,
    rivals: Sequence[Standing],
    standings: tuple[Standing, ...],
    beyond: Mapping[str, Sequence[float]],
    *,
    windows: int,
) -> Recommendation:
    gain = best.beyond_difference or 0.0
    if best.name == "plain":
        reason = "No affordable method has a lower loss beyond the trained length than plain."
    else:
        reason = (
            f"{best.name} changes the loss beyond the trained length by {_nats(gain, best.beyond_interval)} "
            f"against plain, and within it by {_nats(best.within_difference, best.within_interval)}."
        )
    refused = [s for s in rivals if not s.affordable and _beyond(s) < _beyond(best)]
    if refused:
        by = "by the upper end of the interval" if windows > 1 else "by the mean"
        names = ", ".join(f"{s.name} ({s.within_difference:+.3f})" for s in refused)
        reason += f" Lower beyond it, but costing more than {TOLERATED} nats within it ({by}): {names}."
    if windows == 1:
        reason += " One window gives no interval: the means decide."
    if "crop" not in beyond:
        return Recommendation(method=best.name, reason=reason, standings=standings)
    lowest = min(rivals, key=_beyond)
    over, interval = difference(beyond[lowest.name], beyond["crop"])
    beats = (over if interval is None else interval[1]) < 0
    if beats:
        sentence = f"{lowest.name} beats crop: {_nats(over, interval)}."
    else:
        sentence = f"No method beats crop. {lowest.name} comes closest: {_nats(over, interval)}."
        if over < 0:
            sentence += " The interval contains zero."
        else:
            sentence += " Reading only the latest tokens costs no more loss than extending, but forgets the others."
    if interval is not None and len(rivals) > 2:
        sentence += (
            f" {lowest.name} is the lowest of {len(rivals)} methods on these windows, so its interval is slightly too "
            "favourable."
        )
    if beats and lowest.name != best.name:
        own, own_interval = difference(beyond[best.name], beyond["crop"])
        sentence += f" The recommended {best.name} minus crop: {_nats(own, own_interval)}."
    return Recommendation(
        method=best.name,
        reason=reason,
        standings=standings,
        best_name=lowest.name,
        over_crop=over,
        over_crop_interval=interval,
        beats_crop=beats,
        crop_sentence=sentence,
    )


def _nats(value: float, interval: Interval) -> str:
    """A difference in words: -0.001 nats, 95 % interval [-0.004, +0.002]."""
    shown = f"{value:+.3f} nats"
    return shown if interval is None else f"{shown}, 95 % interval [{interval[0]:+.3f}, {interval[1]:+.3f}]"
