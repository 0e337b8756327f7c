"""How each method stands, in numbers and in rows: for a console, a text or a notebook."""

from __future__ import annotations

import dataclasses

from ropewalk.diagnosis.evidence import TOLERATED, Evidence
from ropewalk.measure.copy_test import UseMeasurement, span_of
from ropewalk.measure.losses import CROP, PLAIN, Measurement
from ropewalk.statistics import Interval, plus_minus


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """One method's mean losses in nats within and beyond the trained length, and its paired differences.

    `within_difference` and `beyond_difference` are those to plain, `crop_difference` that to crop, beyond. Intervals
    are those of the verdict's evidence. `affordable`: shown to cost little within; by the mean where there is none.
    """

    name: str
    within: float
    beyond: float | None
    within_difference: float
    within_interval: Interval
    beyond_difference: float | None
    beyond_interval: Interval
    crop_difference: float | None
    crop_interval: Interval
    affordable: bool


def standings(measurement: Measurement) -> dict[str, Standing]:
    """Every method's standing, by name; one that shares another's numbers has that one's."""
    evidence = Evidence(measurement.losses())
    found = {}
    for name in measurement.results:
        own = measurement.same_as.get(name, name)
        cost = evidence.cost(own)
        gain = evidence.gain(own) if evidence.losses.beyond else None
        apart = evidence.beats_crop(own) if CROP in evidence.losses.beyond and own != CROP else None
        within = measurement.within(own)
        found[name] = Standing(
            name=name,
            within=sum(within) / len(within),
            beyond=evidence.mean_beyond(own) if gain is not None else None,
            within_difference=cost.difference,
            within_interval=cost.interval,
            beyond_difference=None if gain is None else gain.difference,
            beyond_interval=None if gain is None else gain.interval,
            crop_difference=None if apart is None else apart.difference,
            crop_interval=None if apart is None else apart.interval,
            affordable=cost.difference <= TOLERATED if cost.interval is None else cost.result == "shown",
        )
    return found


def standing_rows(
    measurement: Measurement, use: UseMeasurement | None = None
) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Heads, and for each method that was measured on its own its losses, and its differences beyond.

    With `use` a last column says how far back tokens are shown to be used. Methods that share one's numbers stand in
    its name: "ntk = dynamic". A column that says nothing of any method is left out.
    """
    heads = ("within", "beyond", "beyond - plain", "beyond - crop", *(() if use is None else ("far use",)))
    rows = {}
    for name, standing in standings(measurement).items():
        if name in measurement.same_as:
            continue
        label = " = ".join([name, *(other for other, first in measurement.same_as.items() if first == name)])
        apart = standing.beyond_difference if name != PLAIN else None
        row = [
            f"{standing.within:.3f}",
            "" if standing.beyond is None else f"{standing.beyond:.3f}",
            "" if apart is None else plus_minus(apart, standing.beyond_interval),
            "" if standing.crop_difference is None else plus_minus(standing.crop_difference, standing.crop_interval),
        ]
        rows[label] = row if use is None else [*row, used_in_words(use, name)]
    told = [number for number in range(len(heads)) if any(row[number] for row in rows.values())]
    return tuple(heads[number] for number in told), {
        label: [row[number] for number in told] for label, row in rows.items()
    }


def used_in_words(use: UseMeasurement, method: str) -> str:
    """How far back a method is shown to use tokens, in a few words; empty where it was not measured."""
    if method not in use.methods:
        return ""
    span = span_of(use.shown_at(method), [row.distance for row in use.of(method, "copy")])
    return span or {True: "yes", False: "no", None: "open"}[use.shows_use(method)]
