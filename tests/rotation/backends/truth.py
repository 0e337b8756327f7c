"""The truth about a call: rotation and norm in numpy, from the paper's equations, and what rounding may do to them.

Nothing of the package is used here. Every bound is the one that the kernels promise: half a unit in the last place of
the result, and 2e-7 of the length of the pair (for float64 the same number of its own roundings).
"""

from __future__ import annotations

import numpy as np
import torch

Array = np.ndarray

# digits of the significand, least exponent of a normal number
FORMATS = {torch.float64: (53, -1022), torch.float32: (24, -126), torch.bfloat16: (8, -126), torch.float16: (11, -14)}
LARGEST = {dtype: torch.finfo(dtype).max for dtype in FORMATS}
OF_THE_PAIR = 2e-7  # 3.4 units of 2^-24: a table's rounding, two products and a sum
SMALLEST = {torch.float64: 2.0**-1074, torch.float32: 2.0**-148}  # what underflow in the arithmetic itself can lose


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Arithmetic is in float32, for float64 in float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def slack(lengths: Array, dtype: torch.dtype, roundings: float = 1.0) -> Array:
    """What the arithmetic may be off by before the last rounding, for pairs of these lengths."""
    compute = compute_dtype(dtype)
    unit = OF_THE_PAIR if compute == torch.float32 else OF_THE_PAIR * 2.0**-29
    return roundings * unit * lengths + SMALLEST[compute]


def wide(x: torch.Tensor) -> Array:
    """A tensor's numbers, exactly: float64, and for float64 itself long double, which has room for its products."""
    numbers = x.detach().double().cpu().numpy()
    return numbers.astype(np.longdouble) if x.dtype == torch.float64 else numbers


def places_of(pairs: int, interleaved: bool, first: int = 0) -> tuple[Array, Array]:
    """Numbers of the first and of the second feature of every pair: neighbours, or halves."""
    count = np.arange(pairs)
    return (first + 2 * count, first + 2 * count + 1) if interleaved else (first + count, first + pairs + count)


def turn(
    x: Array, cos: Array, sin: Array, *, interleaved: bool, inverse: bool = False, scale: float = 1.0,
    first: int = 0,
) -> tuple[Array, Array]:  # fmt: skip
    """`x` turned by tables that broadcast against `x[..., :pairs]`, and the length of every feature's pair.

    Pairs lie from feature `first` on. Features that do not turn are as they were, of length 0.
    """
    pairs = cos.shape[-1]
    i, j = places_of(pairs, interleaved, first)
    a, b = x[..., i], x[..., j]
    y, lengths = np.array(x), np.zeros(x.shape)
    with np.errstate(invalid="ignore"):  # infinity minus infinity is NaN, and meant
        sin = -sin if inverse else sin
        y[..., i], y[..., j] = (a * cos - b * sin) * scale, (a * sin + b * cos) * scale
        lengths[..., i] = lengths[..., j] = np.hypot(a, b) * abs(scale)
    return y, lengths


def rounded(values: Array, dtype: torch.dtype) -> Array:
    """The nearest numbers of `dtype`, ties to even: by arithmetic, not by anybody's conversion."""
    digits, least = FORMATS[dtype]
    exponent = np.maximum(np.frexp(values)[1] - 1, least)
    unit = np.ldexp(np.ones_like(values), exponent - digits + 1)
    nearest = np.rint(values / unit) * unit
    return np.where(np.abs(nearest) > LARGEST[dtype], np.copysign(np.inf, nearest), nearest)


class Allowed:
    """What a result may be: what rounding makes of anything within `off` of the expected numbers."""

    def __init__(self, expected: Array, off: Array, dtype: torch.dtype) -> None:
        off = np.where(np.isfinite(expected), off, 0.0)
        self.expected, self.off = expected, off
        self.low, self.high = rounded(expected - off, dtype), rounded(expected + off, dtype)

    def check(self, got: torch.Tensor, what: str = "") -> None:
        """Raises AssertionError with the first number that is out of bounds; NaN must be NaN."""
        found = wide(got)
        assert found.shape == self.expected.shape, (what, found.shape, self.expected.shape)
        right = ((self.low <= found) & (found <= self.high)) | (np.isnan(self.expected) & np.isnan(found))
        if not right.all():
            at = tuple(int(i) for i in np.argwhere(~right)[0])
            raise AssertionError(
                f"{what} {got.dtype}: {int((~right).sum())} of {right.size} wrong; at {at} "
                f"{found[at]!r} instead of {self.expected[at]!r} within {self.off[at]:.3g} before rounding"
            )


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal to the last bit, NaN and its payload included."""
    assert a.dtype == b.dtype
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    return torch.equal(a.detach().contiguous().view(integers), b.detach().contiguous().view(integers))


def rms_norm(x: Array, weight: Array, eps: float) -> tuple[Array, Array]:
    """x / sqrt(mean(x^2) + eps) times the weight (Zhang and Sennrich 2019, eq. 4), and 1 / sqrt(...)."""
    r = 1.0 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    return x * r * weight, r
