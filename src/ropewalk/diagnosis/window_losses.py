"""What a verdict is made of: losses by method and window, and nothing else of the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from ropewalk.errors import RopeError

PLAIN, CROP = "plain", "crop"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WindowLosses:
    """Each method's mean loss in nats per token, window by window.

    - `within`: of the tokens up to the `trained` length. `beyond`: of those after it, up to the `target`; empty where
      there are none. Methods that were measured once for two are in it once; `plain` is.
    - `frequencies`: what smoothed token frequencies of the text outside the window lose on the tokens of `within`.
    - `stretches`: `[start, end)` of some parts of the positions beyond, which `by_stretch` has for each window.
    - `texts`: how many; the windows of each follow one another, as many of each.

    Raises `RopeError` where the windows differ in number, or plain is missing.
    """

    trained: int
    target: int
    within: Mapping[str, Sequence[float]]
    frequencies: Sequence[float]
    beyond: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
    stretches: tuple[tuple[int, int], ...] = ()
    by_stretch: Mapping[str, Sequence[Sequence[float]]] = dataclasses.field(default_factory=dict)
    texts: int = 1

    def __post_init__(self) -> None:
        counts = {len(values) for values in (*self.within.values(), *self.beyond.values(), self.frequencies)}
        known = not self.beyond or (
            self.beyond.keys() == self.within.keys() == self.by_stretch.keys() and bool(self.stretches)
        )
        if PLAIN not in self.within or counts == {0} or len(counts) != 1 or not known or self.windows % self.texts:
            raise RopeError(
                "verdict: every method needs one loss for each window, and plain must be among them.",
                facts={
                    "windows within": {name: len(values) for name, values in self.within.items()},
                    "windows beyond": {name: len(values) for name, values in self.beyond.items()},
                    "windows of token frequencies": len(self.frequencies),
                    "texts": self.texts,
                },
                cure="Measure plain and every other method on the same windows.",
            )

    @property
    def windows(self) -> int:
        """Windows of all texts."""
        return len(self.within[PLAIN])

    def over_texts(self) -> WindowLosses:
        """The same with one mean for each text in place of its windows."""

        def means(values: Sequence[float]) -> list[float]:
            return [float(mean) for mean in np.reshape(values, (self.texts, -1)).mean(1)]

        return dataclasses.replace(
            self,
            within={name: means(values) for name, values in self.within.items()},
            frequencies=means(self.frequencies),
            beyond={name: means(values) for name, values in self.beyond.items()},
            by_stretch={
                name: np.transpose([means(column) for column in zip(*rows, strict=True)]).tolist()
                for name, rows in self.by_stretch.items()
            },
        )
