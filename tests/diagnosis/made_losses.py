"""Losses by window that a test makes by hand: means, and how far windows lie from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from ropewalk.measure.losses import WindowLosses

FAR = 4.0  # nats: crop's loss beyond the trained length
STRETCHES = ((256, 448), (448, 640), (640, 832), (832, 1024))


def made(
    beyond: Mapping[str, float],
    *,
    within: Mapping[str, float] | None = None,
    spread: float | Mapping[str, float] = 0.01,
    spread_within: float = 0.01,
    windows: int = 8,
    fit: float = -1.0,
    last: float = 0.0,
    texts: int = 1,
) -> WindowLosses:
    """Losses whose means are exact: `beyond` each method's distance to crop (which is added), `within` that to plain.

    Half of the windows lie `spread` above the mean and half below, but for crop, and for plain within: so a difference
    has the deviation `spread` * sqrt(windows / (windows - 1)). `fit`: plain minus token frequencies. `last`: what plain
    loses more in the last stretch, and less in the first.
    """
    wave = np.where(np.arange(windows) % 2, 1.0, -1.0) - (windows % 2) * -1.0 / windows
    far = {**beyond, "crop": 0.0}
    near = {**dict.fromkeys(far, 0.0), **(within or {})}

    def values(mean: float, name: str) -> np.ndarray:
        size = spread if isinstance(spread, float) else spread.get(name, 0.01)
        return mean + (0.0 if name == "crop" else size) * wave

    rows = {name: values(FAR + distance, name) for name, distance in far.items()}
    tilt = np.array([-last, 0.0, 0.0, last])
    return WindowLosses(
        trained=256,
        target=1024,
        within={
            name: (3.0 + cost + (0.0 if name == "plain" else spread_within) * wave).tolist()
            for name, cost in near.items()
        },
        frequencies=(3.0 - fit + 0.01 * wave).tolist(),
        beyond={name: row.tolist() for name, row in rows.items()},
        stretches=STRETCHES,
        by_stretch={
            name: (row[:, None] + (tilt if name == "plain" else 0.0 * tilt)).tolist() for name, row in rows.items()
        },
        texts=texts,
    )


@dataclasses.dataclass(frozen=True)
class MadeUse:
    """Which methods are shown to use far tokens; None where that was not measured."""

    used: Mapping[str, bool | None]

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.used)

    def shows_use(self, method: str) -> bool | None:
        return self.used.get(method)

    def reach(self, method: str) -> int | None:
        return 777 if self.used.get(method) else None
