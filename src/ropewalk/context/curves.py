"""The numbers behind the doctor's figures; methods that share their frequencies share a label."""

from __future__ import annotations

from ropewalk.context.audit import text_frequencies, wavelengths
from ropewalk.context.doctor import Measurement
from ropewalk.context.methods import Ropes, unscaled
from ropewalk.context.recommend import difference
from ropewalk.context.statistics import over_windows
from ropewalk.rope.config import RopeConfig

Curves = dict[str, list[float]]


def labels(measurement: Measurement) -> dict[str, str]:
    """For each method that was measured on its own, its name and those of the methods that equal it."""
    alike = {name: [name] for name in measurement.results if name not in measurement.same_as}
    for name, first in measurement.same_as.items():
        alike[first].append(name)
    return {name: " = ".join(names) for name, names in alike.items()}


def loss_curves(measurement: Measurement) -> tuple[Curves, dict[str, list[tuple[float, float] | None]], str | None]:
    """By label: mean loss (nats per token) of each block; the interval of its difference to plain, put around it.

    And the label of the recommended method. Windows differ by far more than methods do: a mean's own interval would
    hide every difference.
    """
    named = labels(measurement)
    losses: Curves = {}
    intervals: dict[str, list[tuple[float, float] | None]] = {}
    plain = measurement.block_means("plain")
    for name, label in named.items():
        found = measurement.block_means(name)
        losses[label] = [over_windows(values)[0] for values in zip(*found, strict=True)]
        intervals[label] = []
        for block, mean in enumerate(losses[label]):
            apart, interval = difference([row[block] for row in found], [row[block] for row in plain])
            band = None if interval is None else (mean + interval[0] - apart, mean + interval[1] - apart)
            intervals[label].append(band)
    answer = measurement.recommendation().method
    return losses, intervals, None if answer is None else named[measurement.same_as.get(answer, answer)]


def scaled_wavelengths(measurement: Measurement, method: str | None) -> dict[str, list[float | None]]:
    """Tokens per turn of each pair under `method`, by its name; empty where it scales nothing."""
    if method is None:
        return {}
    rope = main_rope(measurement.ropes[method])
    if rope is None or rope == unscaled(rope):
        return {}
    return {method: list(wavelengths(text_frequencies(rope, measurement.protocol.target)[0]))}


def frequency_ratios(measurement: Measurement) -> dict[str, list[float | None]]:
    """By label: new frequency over unscaled for each pair (None: it does not turn), of every method that scales."""
    ratios: dict[str, list[float | None]] = {}
    for name, label in labels(measurement).items():
        rope = main_rope(measurement.ropes[name])
        if rope is None or rope == unscaled(rope):
            continue
        new, _ = text_frequencies(rope, measurement.protocol.target)
        old, _ = text_frequencies(unscaled(rope), measurement.protocol.target)
        ratios[label] = [float(n / o) if o else None for n, o in zip(new, old, strict=True)]
    return ratios


def main_rope(ropes: Ropes) -> RopeConfig | None:
    """The rope that reaches furthest: the first scaled one, or else the first; None where there is none."""
    present = [rope for rope in ropes if rope is not None]
    return next((rope for rope in present if rope.scaling is not None), present[0] if present else None)
