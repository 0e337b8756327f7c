"""From the losses of the readings to gains: paired by token, averaged over blocks, with intervals between windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ropewalk.readers.reader import Losses
from ropewalk.statistics import mean_and_interval
from ropewalk.use.blocks import HALVES, ClosingBlock, Half
from ropewalk.use.exchange import Mask
from ropewalk.use.inputs import PLACES, Reading, UseInputs, Where
from ropewalk.use.protocol import CUE, CopyDesign
from ropewalk.use.result import SHUFFLED, Control, UseRow

LossesOf = Callable[[str, Reading, int], Losses]
"""The losses of a method's reading of a window."""
KeyOf = Callable[[Where, int], Mask]
"""The key tokens among the scored tokens of the exchange test in a window."""


def copy_gains(design: CopyDesign, blocks: Sequence[ClosingBlock], losses: Mapping[Half, Losses]) -> dict[int, float]:
    """For each distance, the mean over its blocks of loss(absent) - loss(present), in nats per token.

    `losses` are those of all closing tokens in the two readings, nats `[closing]`.
    """
    means = {half: found.reshape(-1, design.block)[:, CUE:].mean(1) for half, found in losses.items()}
    gains: dict[int, list[float]] = {distance: [] for distance in design.distances}
    for number, block in enumerate(blocks):
        other: Half = "even" if block.half == "odd" else "odd"
        gains[block.distance].append(float(means[other][number] - means[block.half][number]))
    return {distance: sum(found) / len(found) for distance, found in gains.items()}


def ratio_values(sums: Sequence[float], counts: Sequence[int]) -> list[float] | None:
    """One value for each window whose mean is sum(sums) / sum(counts) and whose spread is that of this ratio.

    So a window with many chosen tokens counts for more (Cochran 1977, section 6.4: the linearised ratio estimator).
    None where there are no tokens at all.

    >>> [round(value, 3) for value in ratio_values([1.0, 6.0], [1, 2])]
    [1.444, 3.222]
    """
    total = sum(counts)
    if not total:
        return None
    mean, each = sum(sums) / total, total / len(counts)
    return [mean + (found - mean * count) / each for found, count in zip(sums, counts, strict=True)]


def gather(
    inputs: UseInputs, methods: Sequence[str], losses_of: LossesOf, key_of: KeyOf | None
) -> tuple[tuple[UseRow, ...], dict[str, Control]]:
    """The rows of every method and the controls, from the losses of all readings."""
    rows: list[UseRow] = []
    controls: dict[str, Control] = {}
    for where in PLACES:
        for method in methods if where == "far" else ("plain",):
            copied, gains = copy_rows(inputs, where, method, losses_of)
            exchanged, of_tests = exchange_rows(inputs, where, method, losses_of, key_of)
            rows += [*copied, *exchanged]
            if where == "control":
                controls |= {
                    test: Control(*mean_and_interval(values)) for test, values in {**gains, **of_tests}.items()
                }
    return tuple(rows), controls


def copy_rows(
    inputs: UseInputs, where: Where, method: str, losses_of: LossesOf
) -> tuple[list[UseRow], dict[str, list[float]]]:
    """A row for each distance, and by test the gain of each window over all distances; nothing where not measured."""
    design, windows = inputs.copy(where), range(inputs.protocol.total_windows)
    if design is None:
        return [], {}
    gains = []
    for window in windows:
        losses = {half: losses_of(method, Reading(where, "copy", half), window) for half in HALVES}
        gains.append(copy_gains(design, inputs.blocks(where, window), losses))
    by_distance = {distance: [of_window[distance] for of_window in gains] for distance in design.distances}
    scored = (design.block - CUE) * design.per_distance * len(windows)
    rows = [
        _row(inputs, where, method, "copy", distance, values, scored, comparisons=len(by_distance))
        for distance, values in by_distance.items()
    ]
    return rows, {"copy": [sum(found.values()) / len(found) for found in gains]}


def exchange_rows(
    inputs: UseInputs, where: Where, method: str, losses_of: LossesOf, key_of: KeyOf | None
) -> tuple[list[UseRow], dict[str, list[float]]]:
    """A row for all scored tokens, for the rare and for the key ones, and by test the values of the windows."""
    design, windows = inputs.exchange(where), range(inputs.protocol.total_windows)
    if design is None:
        return [], {}
    real = [losses_of(method, Reading(where, "exchange", "real"), window) for window in windows]
    other = [losses_of(method, Reading(where, "exchange", "other"), window) for window in windows]
    gains = [one - of_real for one, of_real in zip(other, real, strict=True)]
    every = np.ones(design.scored, dtype=np.bool_)
    masks: dict[str, list[Mask]] = {
        "exchange": [every for _ in windows],
        "exchange-rare": [inputs.rare(where, window) for window in windows],
    }
    if key_of is not None:
        masks["exchange-key"] = [key_of(where, window) for window in windows]
    values, counts = {}, {}
    for test, chosen in masks.items():
        counts[test] = [int(mask.sum()) for mask in chosen]
        sums = [float(gain[mask].sum()) for gain, mask in zip(gains, chosen, strict=True)]
        of_windows = ratio_values(sums, counts[test])
        if of_windows is not None:
            values[test] = of_windows
    rows = [
        _row(inputs, where, method, test, design.distance, of_test, sum(counts[test]), comparisons=len(values))
        for test, of_test in values.items()
    ]
    if inputs.protocol.shuffled:
        apart = [losses_of(method, Reading(where, "exchange", "shuffled"), window) for window in windows]
        gained = [float((one - of_real).mean()) for one, of_real in zip(apart, real, strict=True)]
        rows.append(_row(inputs, where, method, SHUFFLED, design.distance, gained, design.scored * len(windows)))
    return rows, values


def _row(
    inputs: UseInputs,
    where: Where,
    method: str,
    test: str,
    distance: int,
    values: Sequence[float],
    tokens: int,
    *,
    comparisons: int = 1,
) -> UseRow:
    """The mean of the windows' values, with an interval that holds together with so many (Bonferroni)."""
    protocol, (gain, interval) = inputs.protocol, mean_and_interval(values, comparisons=comparisons)
    window = protocol.target if where == "far" else min(protocol.trained_length, protocol.target)
    return UseRow(
        method=method,
        test=test,
        distance=distance,
        gain=gain,
        interval=interval,
        window=window,
        control=where == "control",
        windows=protocol.total_windows,
        tokens=tokens,
    )
