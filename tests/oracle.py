"""The float64 truth: angles at 60 digits and the rotation by them, from the paper's equations; rules of scaling.

It imports nothing of the package. `tests/test_oracle.py` compares the rotation with mpmath's complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import mpmath
import numpy as np


def angles(positions: np.ndarray, theta: float, dim: int) -> np.ndarray:
    """m * theta^(-2i/dim), reduced modulo 2 pi at 60 digits, float64 `[positions, dim/2]` (Su et al. 2021, eq. 15)."""
    with mpmath.workdps(60):
        freqs = [mpmath.power(mpmath.mpf(theta), mpmath.mpf(-2 * i) / dim) for i in range(dim // 2)]
        turn = 2 * mpmath.pi
        return np.array([[float(mpmath.fmod(int(m) * f, turn)) for f in freqs] for m in positions.ravel()])


def rotate(x: np.ndarray, angle: np.ndarray, *, interleaved: bool, inverse: bool = False, scale: float = 1.0):
    """Rotate the leading 2 * pairs features of `x` by `angle` (broadcast over `x[..., 0]`), pair by pair, in float64.

    Each pair is multiplied by the 2 x 2 matrix [[cos, -sin], [sin, cos]] of the paper's eq. 34.
    """
    y = np.array(x, dtype=np.float64)
    pairs = angle.shape[-1]
    for i in range(pairs):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
        c, s = np.cos(angle[..., i]), np.sin(angle[..., i]) * (-1 if inverse else 1)
        a, b = np.array(x[..., first], dtype=np.float64), np.array(x[..., second], dtype=np.float64)
        y[..., first], y[..., second] = (a * c - b * s) * scale, (a * s + b * c) * scale
    return y


def ladder(theta: float, dim: int) -> np.ndarray:
    """theta^(-2i/dim), radians per token (Su et al. 2021, section 3.2.2)."""
    return theta ** -(np.arange(0, dim, 2) / dim)


def yarn(theta: float, dim: int, block: Mapping[str, Any], original: float, truncate: bool = True) -> np.ndarray:
    """The frequencies of YaRN's code, by the keys of a config's block."""

    def place(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = place(block.get("beta_fast", 32)), place(block.get("beta_slow", 1))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / ((high - low) or 0.001), 0, 1)
    plain = ladder(theta, dim)
    return plain / block["factor"] * ramp + plain * (1 - ramp)


def llama3(theta: float, dim: int, block: Mapping[str, Any]) -> np.ndarray:
    """The frequencies of Llama 3.1's rule by wavelengths, as Meta's `apply_scaling`."""
    plain = ladder(theta, dim)
    waves = 2 * math.pi / plain
    low, high, original = block["low_freq_factor"], block["high_freq_factor"], block["original_max_position_embeddings"]
    smooth = 0.0 if low == high else (original / waves - low) / (high - low)
    middle = (1 - smooth) * plain / block["factor"] + smooth * plain
    slow = np.where(waves > original / low, plain / block["factor"], middle)
    return np.where(waves < original / high, plain, slow)
