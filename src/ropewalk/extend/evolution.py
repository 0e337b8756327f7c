"""CMA-ES about the best analytic method: asked for points and told their losses, it can be replayed from both.

pycma's state is a pickle, and a pickle runs code when it is read. So a search keeps its points and losses as JSON
instead: with the same seed the same points are asked for again, and are told what they cost then, at no cost now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ropewalk.extend.space import Point
from ropewalk.optional import need

WITHIN = 4.0  # pairs over which neighbours move together at first
ALONE = 0.25  # the share of the first steps' variance that each pair has for itself
Array = npt.NDArray[np.float64]


class Evolution:
    """CMA-ES (Hansen and Ostermeier 2001; `cma`) in coordinates where its first steps are what one would try by hand.

    It begins at the best analytic start. A first step goes towards and away from the other starts (their logarithms'
    covariance about the best), and moves neighbouring pairs together, by `step` in the logarithm of a divisor; what
    helps is learned from there. `seed` decides every draw, and no global generator is touched.
    """

    def __init__(self, best: Point, starts: Sequence[Point], *, seed: int, step: float = 0.04) -> None:
        self._cma = need("cma", extra="search")
        self._seed, self._restarts = seed, 0
        self._centre = np.array(best.logarithms)
        self._shape = _first_shape(self._centre, [np.array(start.logarithms) for start in starts], step)
        self._begin()

    def _begin(self) -> None:
        draws = np.random.default_rng([self._seed, self._restarts])
        options = {
            "seed": np.nan,
            "randn": lambda *size: draws.standard_normal(size),
            "verbose": -10,  # no file is looked for or written
            "verb_log": 0,
            "verb_disp": 0,
        }
        self._strategy: Any = self._cma.CMAEvolutionStrategy(np.zeros(len(self._centre)), 1.0, options)

    @property
    def population(self) -> int:
        """Points of one generation."""
        return int(self._strategy.popsize)

    def ask(self) -> list[list[float]]:
        """One generation of points: the logarithms of each."""
        self._asked = [np.asarray(point) for point in self._strategy.ask()]
        return [(self._centre + self._shape @ point).tolist() for point in self._asked]

    def tell(self, losses: Sequence[float], best: Point) -> None:
        """What the generation cost, in its order; `best` is the best point so far, where a search that has come to
        rest begins anew."""
        known = [loss for loss in losses if np.isfinite(loss)]
        worst = max(known, default=0.0) + 1.0
        self._strategy.tell(self._asked, [loss if np.isfinite(loss) else worst for loss in losses])
        if self._strategy.stop():
            self._restarts += 1
            self._centre = np.array(best.logarithms)
            self._begin()


def _first_shape(centre: Array, starts: Sequence[Array], step: float) -> Array:
    """A matrix whose product with independent normal numbers is distributed like a sensible first step."""
    size = len(centre)
    pairs = np.arange(size - 1)
    apart = (pairs[:, None] - pairs[None, :]) / WITHIN
    covariance = np.zeros((size, size))
    covariance[:-1, :-1] = (1 - ALONE) * np.exp(-0.5 * apart**2) + ALONE * np.eye(size - 1)
    covariance[-1, -1] = 0.25  # the attention factor's logarithm: half as far
    covariance *= step**2
    others = [start - centre for start in starts if not np.array_equal(start, centre)]
    for other in others:
        covariance += 0.1 * np.outer(other, other) / len(others) ** 2
    return np.asarray(np.linalg.cholesky(covariance), dtype=np.float64)
