"""From the losses of the readings to gains: paired by token, averaged over blocks, with intervals between windows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ropewalk.readers.reader import Losses
from ropewalk.statistics import mean_and_interval
from ropewalk.use.blocks import HALVES, ClosingBlock, Half
from ropewalk.use.inputs import PLACES, Reading, UseInputs, Where
from ropewalk.use.protocol import CUE, CopyDesign
from ropewalk.use.result import Control, UseRow

LossesOf = Callable[[str, Reading, int], Losses]
"""The losses of a method's reading of a window."""


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


def gather(
    inputs: UseInputs, methods: Sequence[str], losses_of: LossesOf
) -> tuple[tuple[UseRow, ...], dict[str, Control]]:
    """Return the rows of every method and the control, from the losses of all readings."""
    rows: list[UseRow] = []
    controls: dict[str, Control] = {}
    for where in PLACES:
        for method in methods if where == "far" else ("plain",):
            copied, gains = copy_rows(inputs, where, method, losses_of)
            rows += copied
            if where == "control" and gains:
                controls["copy"] = Control(*mean_and_interval(gains))
    return tuple(rows), controls


def copy_rows(inputs: UseInputs, where: Where, method: str, losses_of: LossesOf) -> tuple[list[UseRow], list[float]]:
    """Return a row for each distance, and the gain of each window over all distances; both empty if not measured."""
    design, windows = inputs.copy(where), range(inputs.protocol.total_windows)
    if design is None:
        return [], []
    gains = []
    for window in windows:
        losses = {half: losses_of(method, Reading(where, half), window) for half in HALVES}
        gains.append(copy_gains(design, inputs.blocks(where, window), losses))
    by_distance = {distance: [of_window[distance] for of_window in gains] for distance in design.distances}
    scored = (design.block - CUE) * design.per_distance * len(windows)
    rows = [
        _row(inputs, where, method, distance, values, scored, comparisons=len(by_distance))
        for distance, values in by_distance.items()
    ]
    return rows, [sum(found.values()) / len(found) for found in gains]


def _row(
    inputs: UseInputs,
    where: Where,
    method: str,
    distance: int,
    values: Sequence[float],
    tokens: int,
    *,
    comparisons: int,
) -> UseRow:
    """The mean of the windows' values, with an interval that holds together with so many (Bonferroni)."""
    protocol, (gain, interval) = inputs.protocol, mean_and_interval(values, comparisons=comparisons)
    window = protocol.target if where == "far" else min(protocol.trained_length, protocol.target)
    return UseRow(
        method=method,
        test="copy",
        distance=distance,
        gain=gain,
        interval=interval,
        window=window,
        control=where == "control",
        windows=protocol.total_windows,
        tokens=tokens,
    )
