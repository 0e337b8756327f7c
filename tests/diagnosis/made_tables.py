"""Tables of losses and measurements of copies that a test makes by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ropewalk.diagnosis.rules import LossTable
from ropewalk.diagnosis.verdict import Result
from ropewalk.statistics import Interval

TRAINED, TARGET, BLOCK = 256, 1024, 32
WITHIN = TRAINED // BLOCK
ENDS = (512, 768, 1024)
STRETCHES = ((8, 16), (16, 24), (24, 32))
BY_STRETCH = float | Sequence[float]


def made(
    beyond: Mapping[str, BY_STRETCH],
    *,
    within: Mapping[str, float] | None = None,
    spread: float | Mapping[str, float] = 0.002,
    spread_within: float = 0.002,
    windows: int = 1,
    fit: float = -1.0,
    texts: Sequence[int] | None = None,
    counts: Mapping[str, int] | None = None,
    hardness: Sequence[float] | None = None,
    crop: bool = True,
) -> LossTable:
    """A table of 256 trained tokens of 1,024, in blocks of 32; crop is added.

    - `beyond`: each method's loss less crop's, of each third or of all. `within`: its loss less plain's within.
    - `spread`, `spread_within`: the deviation of a method's blocks beyond and within, of alternating sign, so that no
      mean moves. `fit`: plain less token frequencies. `counts`: the windows of a method. `hardness`: nats that each
      window adds to everything. A step between thirds is noise to a single window, not to two.
    """
    hard = np.asarray(hardness if hardness is not None else [0.0] * windows)[:, None]
    blocks = np.arange(TARGET // BLOCK)

    def rows(name: str) -> list[list[float]]:
        far = np.repeat(np.broadcast_to(np.asarray(0.0 if name == "crop" else beyond[name]), 3), WITHIN)
        means = np.concatenate([np.full(WITHIN, (within or {}).get(name, 0.0)), 1.0 + far])
        size = np.full(len(blocks), spread if isinstance(spread, float) else spread.get(name, 0.002))
        size[:WITHIN] = 0.0 if name == "plain" else spread_within
        period = 1 if name == "plain" else 2
        signs = np.where((blocks // period + np.arange(windows)[:, None]) % 2, 1.0, -1.0)
        found = 3.0 + hard + means + (0.0 if name == "crop" else size) * signs
        return [list(map(float, row)) for row in found[: (counts or {}).get(name, windows)]]

    return LossTable(
        trained=TRAINED,
        target=TARGET,
        losses={name: rows(name) for name in [*beyond, *(["crop"] if crop else [])]},
        frequencies=(3.0 - fit + hard + np.zeros(WITHIN)).tolist(),
        weights=[BLOCK - 1, *[BLOCK] * (TARGET // BLOCK - 1)],
        within=WITHIN,
        stretches=STRETCHES,
        ends=ENDS,
        texts=tuple([0] * windows if texts is None else texts),
    )


@dataclasses.dataclass(frozen=True)
class MadeCopies:
    """Each method's gain less the bound, in nats per token, of all stretches or of each; intervals of +-0.2."""

    gains: Mapping[str, BY_STRETCH] = dataclasses.field(default_factory=dict)
    can_copy: bool = True
    half: float = 0.2

    def copies(self, method: str, stretch: int) -> Result:
        """Whether the interval lies above 0, below, or around it."""
        found = self.beyond_bound(method, stretch)
        if found is None or found[1] is None:
            return "open"
        low, high = found[1]
        return "shown" if low > 0 else "refuted" if high < 0 else "open"

    def beyond_bound(self, method: str, stretch: int) -> tuple[float, Interval] | None:
        """The mean and its interval."""
        if not self.can_copy or method not in self.gains:
            return None
        mean = float(np.broadcast_to(np.asarray(self.gains[method]), 3)[stretch])
        return mean, (mean - self.half, mean + self.half)
