"""RIFLEx against its published formulas, at 40 digits.

The oracles follow the authors' code (thu-ml/RIFLEx) line by line and call nothing of the package.
"""

from __future__ import annotations

import dataclasses

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

import ropewalk as rw
from ropewalk.rope.scaling import Ladder, PerAxis, RIFLEx
from tests.rope.test_frequencies_oracle import Values, agree, ladder

# --- RIFLEx


def riflex(b: float, d: int, k: int, frames: int, share: float) -> Values:
    """get_1d_rotary_pos_embed_riflex: `freqs[k-1] = 0.9 * 2 * torch.pi / L_test`."""
    frequencies = ladder(b, d)
    frequencies[k - 1] = mpf(share) * 2 * mpmath.pi / frames
    return frequencies


@given(st.floats(100.0, 1e5), st.integers(1, 40), st.integers(2, 500), st.sampled_from([0.9, 1.0]), st.data())
def test_riflex(b: float, pairs: int, frames: int, share: float, data: st.DataObject) -> None:
    """Only pair k changes: its period is the new length over `share`."""
    k = data.draw(st.integers(1, pairs))
    agree(RIFLEx(k - 1, frames, share), b, 2 * pairs, riflex(b, 2 * pairs, k, frames, share))


def identify_k(b: float, d: int, repeats: int) -> tuple[int, int]:
    """thu-ml/RIFLEx, identify_k: the pair whose rounded period is nearest to the first frame that repeats."""
    periods = [int(mpmath.nint(2 * mpmath.pi / f)) for f in ladder(b, d)]
    k = min(range(len(periods)), key=lambda j: (abs(periods[j] - repeats), j))
    return k + 1, periods[k]


@given(st.floats(100.0, 1e5), st.integers(1, 40), st.integers(2, 300))
def test_the_intrinsic_pair(b: float, pairs: int, repeats: int) -> None:
    """For any ladder it is the authors' k."""
    k, _ = identify_k(b, 2 * pairs, repeats)
    found = RIFLEx.for_repetition(Ladder(b, 2 * pairs, tuple(range(pairs))), repeats, 2 * repeats)
    assert found == RIFLEx(k - 1, 2 * repeats)


def test_periods_are_rounded_before_they_are_compared() -> None:
    """Of b = 256 and d = 44 two rounded periods are equally far from 42; the unrounded ones are not."""
    assert identify_k(256.0, 44, 42)[0] == 8
    assert RIFLEx.for_repetition(Ladder(256.0, 44, tuple(range(22))), 42, 66).pair == 7


def test_riflex_on_the_time_axis() -> None:
    """In `PerAxis` one pair of the time axis changes, and no other."""
    plain = rw.RopeConfig.from_diffusers({"_class_name": "HunyuanVideoTransformer3DModel"})
    longer = dataclasses.replace(plain, scaling=PerAxis((RIFLEx(3, 66), None, None)))
    before, after = (rw.inverse_frequencies(rope).inv_freq for rope in (plain, longer))
    assert (before != after).nonzero().tolist() == [[0, 3]]
    assert after[0, 3].item() == pytest.approx(0.9 * 2 * torch.pi / 66, rel=1e-15)


@pytest.mark.rejects
@pytest.mark.parametrize("wrong", [(-1, 66), (1.5, 66), (3, 1), (3, 66.5), (3, 66, 0.0), (3, 66, 1.5)])
def test_wrong_riflex(wrong: tuple) -> None:
    with pytest.raises(rw.RopeError, match="RIFLEx"):
        RIFLEx(*wrong)
    with pytest.raises(rw.RopeError, match="RIFLEx"):
        RIFLEx.for_repetition(Ladder(256.0, 16, tuple(range(8))), 0, 66)


def test_a_pair_that_does_not_exist() -> None:
    """Refused with one ladder when the config is made, and with several when the axis is known."""
    with pytest.raises(rw.RopeError, match="RIFLEx: the axis has no pair"):
        rw.RopeConfig(16, interleaved=True, scaling=RIFLEx(8, 66))
    plain = rw.RopeConfig.from_diffusers({"_class_name": "HunyuanVideoTransformer3DModel"})
    with pytest.raises(rw.RopeError, match="RIFLEx: the axis has no pair"):
        rw.inverse_frequencies(dataclasses.replace(plain, scaling=PerAxis((RIFLEx(8, 66), None, None))))
