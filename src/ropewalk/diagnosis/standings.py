"""How each method stands, in rows: for a console, a text or a notebook."""

from __future__ import annotations

from ropewalk.diagnosis.measurement import Measurement
from ropewalk.statistics import plus_minus

HEADS = ("within", "beyond", "within - plain", "beyond - plain", "seconds")


def standing_rows(measurement: Measurement) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Heads, and for each method its losses within and beyond the trained length, differences to plain, and seconds."""
    rows = {}
    for standing in measurement.recommendation().standings:
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
