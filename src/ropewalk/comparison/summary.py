"""Means and intervals over seeds of a comparison's record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ropewalk.statistics import mean_and_interval

Interval = tuple[float, float] | None


class Row(NamedTuple):
    """One encoding (under one scaling) at one length: nats per token, mean and 95 % t interval over seeds.

    `rise` is the loss there less the loss at the trained length, paired by seed. All None where there is no value.
    """

    encoding: str
    scaling: str | None
    length: int
    seeds: int
    loss: float | None
    interval: Interval
    rise: float | None
    rise_interval: Interval


class Curve(NamedTuple):
    """Validation loss (nats per token) at the trained length by tokens trained on: mean and interval over seeds."""

    encoding: str
    tokens: tuple[int, ...]
    loss: tuple[float, ...]
    intervals: tuple[Interval, ...]


def summarise(lines: Sequence[dict[str, Any]], trained_length: int) -> list[Row]:
    """A row for each encoding, scaling and length in a record, in the record's order."""
    losses: dict[tuple[str, str | None, int], dict[int, float | None]] = {}
    for line in lines:
        if line["kind"] == "loss":
            key = (line["encoding"], line["scaling"], line["length"])
            losses.setdefault(key, {})[line["seed"]] = line["loss"]
    rows = []
    for (encoding, scaling, length), by_seed in losses.items():
        measured = {seed: loss for seed, loss in by_seed.items() if loss is not None}
        if not measured:
            rows.append(Row(encoding, scaling, length, len(by_seed), None, None, None, None))
            continue
        within = losses.get((encoding, None, trained_length), {})
        rises = [loss - base for seed, loss in measured.items() if (base := within.get(seed)) is not None]
        mean, interval = mean_and_interval(list(measured.values()))
        rise, rise_interval = mean_and_interval(rises) if rises else (None, None)
        rows.append(Row(encoding, scaling, length, len(measured), mean, interval, rise, rise_interval))
    return rows


def convergence(lines: Sequence[dict[str, Any]]) -> list[Curve]:
    """The training of each encoding, over the seeds that are in a record."""
    runs: dict[str, list[list[list[float]]]] = {}
    for line in lines:
        if line["kind"] == "run":
            runs.setdefault(line["encoding"], []).append(line["curve"])
    curves = []
    for encoding, each in runs.items():
        points = [mean_and_interval([run[i][1] for run in each]) for i in range(min(map(len, each)))]
        tokens = tuple(int(point[0]) for point in each[0][: len(points)])
        curves.append(Curve(encoding, tokens, tuple(mean for mean, _ in points), tuple(band for _, band in points)))
    return curves
