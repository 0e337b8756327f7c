"""How each method stands, in numbers and in rows: for a console, a text or a notebook."""

from __future__ import annotations

import dataclasses

from ropewalk.diagnosis.evidence import TOLERATED, Evidence
from ropewalk.diagnosis.measurement import Measurement
from ropewalk.statistics import Interval, plus_minus

HEADS = ("within", "beyond", "within - plain", "beyond - plain", "seconds")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Standing:
    """One method's mean losses in nats within and beyond the trained length, and its paired differences to plain.

    The intervals are those of the verdict's evidence. `affordable`: shown to cost little within; by the mean where one
    window gives no interval.
    """

    name: str
    within: float
    beyond: float | None
    within_difference: float
    within_interval: Interval
    beyond_difference: float | None
    beyond_interval: Interval
    affordable: bool


def standings(measurement: Measurement) -> dict[str, Standing]:
    """Every method's standing, by name; one that shares another's numbers has that one's."""
    evidence = Evidence(measurement.losses())
    found = {}
    for name in measurement.results:
        own = measurement.same_as.get(name, name)
        cost = evidence.cost(own)
        gain = evidence.gain(own) if evidence.losses.beyond else None
        within = measurement.within(own)
        found[name] = Standing(
            name=name,
            within=sum(within) / len(within),
            beyond=evidence.mean_beyond(own) if gain is not None else None,
            within_difference=cost.difference,
            within_interval=cost.interval,
            beyond_difference=None if gain is None else gain.difference,
            beyond_interval=None if gain is None else gain.interval,
            affordable=cost.difference <= TOLERATED if cost.interval is None else cost.result == "shown",
        )
    return found


def standing_rows(measurement: Measurement) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Heads, and for each method its losses within and beyond the trained length, differences to plain, and seconds."""
    rows = {}
    for standing in standings(measurement).values():
        shared = measurement.same_as.get(standing.name)
        seconds = sum(result.seconds for result in measurement.results[standing.name])
        apart = standing.name != "plain"
        gain = standing.beyond_difference
        rows[standing.name] = [
            f"{standing.within:.3f}",
            "" if standing.beyond is None else f"{standing.beyond:.3f}",
            plus_minus(standing.within_difference, standing.within_interval) if apart else "",
            plus_minus(gain, standing.beyond_interval) if apart and gain is not None else "",
            f"as {shared}" if shared else f"{seconds:.1f}",
        ]
    return HEADS, rows
