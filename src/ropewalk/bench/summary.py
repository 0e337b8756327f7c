"""From records to what is shown: the share of copy bandwidth by size, and who was left out."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.bench.ours import COPY
from ropewalk.bench.record import Record

Curve = list[tuple[int, float]]


def shares(records: Sequence[Record]) -> dict[str, dict[str, Curve]]:
    """For each dtype and contender of the sweep: (tokens, the copy's median time over its own), by tokens."""
    found: dict[str, dict[str, Curve]] = {}
    for record in records:
        times = record.get("microseconds", {})
        if record["kind"] != "sweep" or COPY not in times:
            continue
        curves = found.setdefault(record["dtype"], {})
        for name, taken in times.items():
            if name != COPY:
                curves.setdefault(name, []).append((record["tokens"], times[COPY]["p50"] / taken["p50"]))
    return {dtype: {name: sorted(curve) for name, curve in curves.items()} for dtype, curves in found.items()}


def copy_bandwidths(records: Sequence[Record]) -> dict[str, float]:
    """Bytes that the copy read and wrote in a second, at the largest size of each dtype."""
    sweeps = sorted((r for r in records if r["kind"] == "sweep" and COPY in r["microseconds"]), key=_tokens)
    return {record["dtype"]: 2 * record["bytes"] / record["microseconds"][COPY]["p50"] * 1e6 for record in sweeps}


def left_out(records: Sequence[Record]) -> dict[str, list[str]]:
    """Each reason why a contender was not timed, with the dtypes or cases that it was given for."""
    found: dict[tuple[str, str], list[str]] = {}
    for record in records:
        for name, reason in record.get("skipped", {}).items():
            found.setdefault((name, reason), []).append(record["dtype"])
    lines: dict[str, list[str]] = {}
    for (name, reason), dtypes in found.items():
        lines.setdefault(name, []).append(f"{', '.join(dict.fromkeys(dtypes))}: {reason}")
    return lines


def _tokens(record: Record) -> int:
    tokens: int = record["tokens"]
    return tokens
