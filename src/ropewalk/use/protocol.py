"""The copy test's blocks, distances and windows, chosen from the lengths."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.statistics import CONFIDENCE

CUE = 4
"""First tokens of a block that are not scored: until they have been read, nothing says which block it is."""
BLOCK, LEAST_BLOCK = 32, 8  # tokens
MOST_DISTANCES = 6  # more would make intervals that hold for all of them wide: at three windows, Student's t is 11
PER_DISTANCE = ((48, 8), (16, 4), (2, 2))
"""Where there is room for so many blocks, so many of them at one distance; half of them are present at a time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyDesign:
    """One window of the copy test; lengths in tokens.

    The window ends with `closing` tokens of random words, in blocks of `block`; `per_distance` of the blocks (an even
    number) belong to each of `distances`, and stand, where they are present, that much earlier as well.

    >>> CopyDesign(window=1024, block=16, per_distance=2, distances=(128, 240)).first
    960
    """

    window: int
    block: int
    per_distance: int
    distances: tuple[int, ...]

    @property
    def closing(self) -> int:
        """Tokens of all closing blocks."""
        return self.block * self.per_distance * len(self.distances)

    @property
    def first(self) -> int:
        """The first token of the closing blocks."""
        return self.window - self.closing


@dataclasses.dataclass(frozen=True, kw_only=True)
class UseProtocol:
    """The settings of the copy test; lengths in tokens. It reads windows of the target, its control windows of the
    trained length; a design that does not fit is None.

    - `windows`: number of windows of each text. `seed` draws the words and their order.
    """

    trained_length: int
    target: int
    texts: tuple[str, ...]
    windows: int
    seed: int
    copy: CopyDesign | None
    copy_control: CopyDesign | None

    @classmethod
    def choose(
        cls,
        *,
        trained_length: int,
        target: int,
        texts: tuple[str, ...],
        windows: int,
        seed: int = 0,
    ) -> UseProtocol:
        """Blocks and distances for these lengths.

        Closing blocks take at most half the trained length (a quarter in the control, and half of what lies beyond
        the trained length), distances run from half the trained length to the window's beginning, evenly on a
        logarithmic scale. Those between three quarters of the trained length and all of it are moved below, because
        crop sees only some tokens so far back.

        >>> found = UseProtocol.choose(trained_length=256, target=1024, texts=("t",), windows=2)
        >>> found.copy.distances, found.copy_control.distances
        ((128, 176, 464, 880), (64, 176))
        """
        if trained_length < 1 or target < 1 or windows < 1:
            raise RopeError(
                "use: lengths and windows are at least 1.",
                facts={"trained_length": trained_length, "target": target, "windows": windows},
                cure="Give lengths in tokens.",
            )
        near, beyond = min(trained_length, target), target - trained_length
        block = min(BLOCK, near // 16)
        copy = control = None
        if block >= LEAST_BLOCK:
            control = _copy_design(near, block, closing=near // 4, shortest=near // 4)
            closing = min(trained_length // 2, beyond // 2)
            seen = trained_length - trained_length // 4 - CUE  # by crop under its default stride
            copy = _copy_design(target, block, closing=closing, shortest=trained_length // 2)
            if copy is not None:
                moved = (seen // block * block if seen < at <= trained_length else at for at in copy.distances)
                copy = dataclasses.replace(copy, distances=tuple(sorted(set(moved))))
        return cls(
            trained_length=trained_length,
            target=target,
            texts=texts,
            windows=windows,
            seed=seed,
            copy=copy,
            copy_control=control,
        )

    @property
    def total_windows(self) -> int:
        """Windows of all texts."""
        return self.windows * len(self.texts)

    def sentence(self) -> str:
        """The protocol in words."""
        parts = []
        if self.copy or self.copy_control:
            blocks = next(one for one in (self.copy, self.copy_control) if one)
            parts.append(
                f"Copy test: each window ends with blocks of {blocks.block} tokens of random words, read twice: once "
                "every other block also stands at its distance and fresh words stand in the place of the others, once "
                f"the reverse; gain = loss where absent - loss where present of the same tokens, the first {CUE} of a "
                "block left out."
            )
        parts.append(
            f"Control: plain, in windows of {min(self.trained_length, self.target):,} tokens. Intervals: "
            f"{CONFIDENCE:.0%}, between windows, simultaneous over the distances of a method."
        )
        return " ".join(parts)


def _copy_design(window: int, block: int, *, closing: int, shortest: int) -> CopyDesign | None:
    """The design with as many distances as fit, up to six; None where not one does."""
    blocks = closing // block
    per = next((per for room, per in PER_DISTANCE if blocks >= room), 2)
    count = min(MOST_DISTANCES, blocks // per)
    if count < 1:
        return None
    longest = window - count * per * block - block  # the window begins with real text
    shortest = max(shortest, count * per * block)
    if longest < shortest:
        return None
    return CopyDesign(
        window=window, block=block, per_distance=per, distances=_spaced(shortest, longest, count, step=block)
    )


def _spaced(shortest: int, longest: int, count: int, *, step: int) -> tuple[int, ...]:
    """At most `count` multiples of `step`, evenly on a logarithmic scale; a single one is the longest."""
    low, high = -(-shortest // step), longest // step
    values = np.geomspace(low, high, count) if count > 1 else [high]
    return tuple(sorted({step * round(float(value)) for value in values}))


def to_json(protocol: UseProtocol) -> dict[str, Any]:
    """The protocol as JSON holds it, with its sentence."""
    return {**dataclasses.asdict(protocol), "confidence": CONFIDENCE, "sentence": protocol.sentence()}
