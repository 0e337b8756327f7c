"""The oracle of the benchmarks: numpy alone, and right by mpmath's complex numbers."""

from __future__ import annotations

import ast
from pathlib import Path

import mpmath
import numpy as np
import pytest

from ropewalk.bench import oracle
from tests.oracle import angles as exact_angles


def test_it_imports_nothing_that_it_judges() -> None:
    """Only numpy, and what types need."""
    found = set()
    for node in ast.walk(ast.parse(Path(oracle.__file__).read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
    assert found == {"__future__", "typing", "numpy", "numpy.typing"}


@pytest.mark.parametrize("theta", [1e2, 1e4, 5e5, 1e7])
def test_angles_agree_with_sixty_digits(theta: float) -> None:
    """float64 keeps an angle within 5e-9 of a turn's truth up to position 10,000,000."""
    positions = np.array([0, 1, 1023, 131_071, 9_999_999, 10_000_000])
    apart = oracle.angles(positions, theta, 64) - exact_angles(positions, theta, 64)
    turns = np.round(apart / (2 * np.pi))
    assert np.abs(apart - turns * 2 * np.pi).max() < 5e-9


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("inverse", [True, False])
def test_a_pair_is_a_complex_number_times_a_phase(interleaved: bool, inverse: bool) -> None:
    """(a + ib) exp(i angle), times the scale; what comes after the pairs stays."""
    x = np.random.default_rng(0).normal(size=(3, 7))
    angle = np.random.default_rng(1).uniform(-100, 100, (3, 2))
    turned = oracle.rotate(x, angle, interleaved=interleaved, inverse=inverse, scale=1.5)
    for row in range(3):
        for i in range(2):
            first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + 2)
            phase = mpmath.expj(mpmath.mpf(angle[row, i]) * (-1 if inverse else 1))
            expected = mpmath.mpc(x[row, first], x[row, second]) * phase * 1.5
            assert abs(complex(expected) - complex(turned[row, first], turned[row, second])) < 1e-14
    assert (turned[:, 4:] == x[:, 4:]).all()


def test_lengths_and_norm() -> None:
    """A pair's length stands at both of its features; RMSNorm is the paper's."""
    x = np.array([[3.0, 1.0, 4.0, 2.0]])
    assert oracle.pair_lengths(x, 1, interleaved=True).tolist() == [[10**0.5, 10**0.5, 0.0, 0.0]]
    assert oracle.pair_lengths(x, 2, interleaved=False).tolist() == [[5.0, 5**0.5, 5.0, 5**0.5]]
    normed = oracle.rms_norm(np.array([3.0, 4.0]), np.array([1.0, 2.0]), 0.0)
    assert normed.tolist() == pytest.approx([3 / 12.5**0.5, 8 / 12.5**0.5])
