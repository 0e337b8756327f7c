"""The oracles of the tests: they import nothing of the package, and agree with mpmath's complex numbers."""

from __future__ import annotations

import ast
from pathlib import Path

import mpmath
import numpy as np
import pytest

from tests import oracle
from tests.rotation.backends import truth


@pytest.mark.parametrize("module", [oracle, truth])
def test_nothing_of_the_package_is_imported(module) -> None:
    """Only packages of others, so that no mistake is on both sides."""
    names = [node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
             for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
             if isinstance(node, ast.Import | ast.ImportFrom)]  # fmt: skip
    assert set(names) <= {"__future__", "collections.abc", "math", "mpmath", "numpy", "torch", "typing"}


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("inverse", [True, False])
def test_a_pair_is_a_complex_number_times_a_phase(interleaved: bool, inverse: bool) -> None:
    """(a + ib) exp(i angle), times the scale, in both oracles; what follows the pairs stays."""
    x = np.random.default_rng(0).normal(size=(3, 7))
    angle = np.random.default_rng(1).uniform(-100, 100, (3, 2))
    one = oracle.rotate(x, angle, interleaved=interleaved, inverse=inverse, scale=1.5)
    two, _ = truth.turn(x, np.cos(angle), np.sin(angle), interleaved=interleaved, inverse=inverse, scale=1.5)
    for row in range(3):
        for i in range(2):
            first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + 2)
            phase = mpmath.expj(mpmath.mpf(angle[row, i]) * (-1 if inverse else 1))
            expected = complex(mpmath.mpc(x[row, first], x[row, second]) * phase * 1.5)
            for turned in (one, two):
                assert abs(expected - complex(turned[row, first], turned[row, second])) < 1e-14
    for turned in (one, two):
        assert (turned[:, 4:] == x[:, 4:]).all()


def test_norm() -> None:
    """RMSNorm is the paper's."""
    normed, _ = truth.rms_norm(np.array([3.0, 4.0]), np.array([1.0, 2.0]), 0.0)
    assert normed.tolist() == pytest.approx([3 / 12.5**0.5, 8 / 12.5**0.5])
