"""cos and sin against mpmath, up to position 10,000,000, in float64, float32 and through the integer phase."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.rope.tables import make_tables, phase_tables, turns_per_token
from tests import oracle

BOUND = 1.2e-7
POSITIONS = np.unique(
    np.concatenate(
        [
            np.arange(6), [255, 4095, 131_071, 999_999, 1_000_000, 2**24 + 1, 9_999_999, 10_000_000],
            np.random.default_rng(0).integers(0, 10_000_001, 12), -np.array([1, 77, 131_072, 10_000_000]),
        ]
    )
)  # fmt: skip


@pytest.mark.parametrize("theta", [1e2, 1e3, 1e4, 1e5, 1e6, 1e7])
@pytest.mark.parametrize("dim", [64, 128])
def test_within_one_rounding_to_ten_million(theta, dim):
    """cos and sin are within 1.2e-7 of mpmath at every theta, also far beyond any trained length and below zero."""
    angle = oracle.angles(POSITIONS, theta, dim)
    rope = rw.RotaryEmbedding(rw.RopeConfig(dim, interleaved=True, theta=theta))
    cos, sin = rope.cos_sin(torch.from_numpy(POSITIONS))
    assert cos.dtype == sin.dtype == torch.float32
    np.testing.assert_allclose(cos.double().numpy(), np.cos(angle), rtol=0, atol=BOUND)
    np.testing.assert_allclose(sin.double().numpy(), np.sin(angle), rtol=0, atol=BOUND)
    cos64, sin64 = rope.cos_sin(torch.from_numpy(POSITIONS), dtype=torch.float64)
    np.testing.assert_allclose(cos64.numpy(), np.cos(angle), rtol=0, atol=5e-9)
    np.testing.assert_allclose(sin64.numpy(), np.sin(angle), rtol=0, atol=5e-9)


@pytest.mark.parametrize("theta", [1e2, 1e4, 1e7])
def test_the_error_grows_with_the_angle_beyond_ten_million(theta):
    """Beyond the promised range an angle is off by 2^-51 of its size and no more, at any integer, as is documented."""
    far = np.array([2**28, 2**32, -(2**32) - 7, 10**12 + 7, 2**53 - 1, 2**60 + 12_345, 2**63 - 1, -(2**63)])
    config = rw.RopeConfig(64, interleaved=True, theta=theta)
    size = np.abs(far.astype(np.float64))[:, None] * rw.inverse_frequencies(config).inv_freq[0].numpy()
    angle = oracle.angles(far, theta, 64)
    for table, truth in zip(
        rw.RotaryEmbedding(config).cos_sin(torch.from_numpy(far)), (np.cos(angle), np.sin(angle)), strict=True
    ):
        error = np.abs(table.double().numpy() - truth)
        assert (error <= 2.0**-25 + 2.0**-51 * size).all()
        assert error[0].max() <= BOUND  # 268 million
        assert error[3].max() > BOUND  # 10^12: no promise that holds everywhere
        assert error[-1].max() > 0.1


FREQUENCIES = (
    *rw.inverse_frequencies(rw.RopeConfig(64, interleaved=True)).inv_freq[0].tolist(),
    3.0,
    4.0,
    2.0**100,
    0.0,
)


def test_turns_per_token_are_the_nearest_integers():
    """Each frequency in 2^-64 of a turn is within half a unit of its float64 value, modulo whole turns."""
    with mpmath.workdps(120):
        for frequency, turns in zip(FREQUENCIES, turns_per_token(FREQUENCIES), strict=True):
            assert -(2**63) <= turns < 2**63
            off = mpmath.mpf(frequency) * 2**64 / (2 * mpmath.pi) - turns
            assert abs(off - mpmath.nint(off / 2**64) * 2**64) <= 0.5


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float32, BOUND), (torch.float64, 1e-15)], ids=str)
def test_the_integer_phase_to_position_2_to_the_53(dtype, rounding):
    """An angle is off by 2^-65 turns per token and the table's rounding, at any position up to 2^53."""
    places = [0, 1, -77, 131_071, 9_999_999, 2**24 + 1, 10**9 + 7, 2**40 - 1, 10**15 + 1, 2**53 - 1, 2**53, -(2**53)]
    columns = FREQUENCIES[:-3]
    positions = torch.tensor(places)[:, None]
    cos, sin = phase_tables(positions, torch.tensor(turns_per_token(columns)), dtype)
    with mpmath.workdps(60):
        for row, place in enumerate(places):
            bound = rounding + 2 * np.pi * 2.0**-65 * abs(place)
            for pair, frequency in enumerate(columns):
                angle = mpmath.mpf(frequency) * place
                assert abs(cos[row, pair].item() - mpmath.cos(angle)) <= bound
                assert abs(sin[row, pair].item() - mpmath.sin(angle)) <= bound


def test_any_leading_shape_and_real_coordinates():
    """Positions keep their shape; real coordinates are allowed."""
    cos, sin = make_tables(torch.tensor([[0.5, -0.25]]), (2.0, 1.0))
    assert cos.shape == (1, 2, 2)
    np.testing.assert_allclose(sin.numpy(), np.sin([[[1.0, 0.5], [-0.5, -0.25]]]), rtol=1e-6)
