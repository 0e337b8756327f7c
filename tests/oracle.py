"""The truth about angles, at 60 digits. The rotation by them is the oracle of the benchmarks, which is numpy alone.

Neither shares code with what it judges; `tests/bench/test_oracle.py` holds the second against mpmath as well.
"""

from __future__ import annotations

import mpmath
import numpy as np

from ropewalk.bench.oracle import rotate

__all__ = ["angles", "rotate"]


def angles(positions: np.ndarray, theta: float, dim: int, rows: int = 50) -> np.ndarray:
    """m * theta^(-2i/dim), reduced modulo 2 pi at 60 digits, float64 `[positions, dim/2]` (Su et al. 2021, eq. 15)."""
    with mpmath.workdps(60):
        freqs = [mpmath.power(mpmath.mpf(theta), mpmath.mpf(-2 * i) / dim) for i in range(dim // 2)]
        turn = 2 * mpmath.pi
        return np.array([[float(mpmath.fmod(int(m) * f, turn)) for f in freqs] for m in positions.ravel()])
