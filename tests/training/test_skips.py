"""PoSE: windows whose positions skip once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import RopeError
from ropewalk.training.data import TokenStream, WindowSampler
from ropewalk.training.skips import SkipSampler


def skipping(window: int, seq_len: int, seed: int = 0) -> SkipSampler:
    """Windows of a text whose tokens are their own indices."""
    windows = WindowSampler(TokenStream(torch.arange(500), torch.tensor([0])), seq_len=window, seed=1)
    return SkipSampler(windows, seq_len=seq_len, seed=seed)


@given(st.integers(2, 40), st.integers(0, 200), st.integers(0, 5))
def test_positions_count_on_but_for_one_skip(window: int, more: int, seed: int) -> None:
    """They begin at 0, grow by one but at one place, and stay below the length; the text is the other sampler's."""
    sampler = skipping(window, window + more, seed)
    batch = sampler.batch(3, 4)
    assert batch.position_ids is not None
    steps = batch.position_ids.diff(dim=1)
    assert (batch.position_ids[:, 0] == 0).all()
    assert (steps >= 1).all()
    assert ((steps > 1).sum(1) <= 1).all()
    assert int(batch.position_ids.max()) < window + more
    assert batch.seq_len == window + more
    assert torch.equal(batch.inputs, sampler.windows.batch(3, 4).inputs)


def test_every_distance_is_met() -> None:
    """Over many windows each distance below the length turns up between two tokens."""
    positions = skipping(8, 40).batch(0, 3000).position_ids
    assert positions is not None
    met = (positions[:, :, None] - positions[:, None, :]).flatten().unique()
    assert set(range(40)) <= set(met.tolist())


def test_a_window_depends_on_its_number_alone() -> None:
    """So a run goes on as if it had never been stopped."""
    whole = skipping(16, 64).batch(0, 6).position_ids
    late = skipping(16, 64).batch(4, 2).position_ids
    assert whole is not None
    assert late is not None
    assert torch.equal(whole[4:], late)
    other = skipping(16, 64, seed=9).batch(0, 6).position_ids
    assert other is not None
    assert not torch.equal(whole, other)


def test_without_room_nothing_skips() -> None:
    """The control: a length of one window."""
    positions = skipping(16, 16).batch(0, 5).position_ids
    assert positions is not None
    assert torch.equal(positions, torch.arange(16).expand(5, -1))


def test_a_window_longer_than_the_length_is_refused() -> None:
    """It has no room to skip."""
    with pytest.raises(RopeError, match="positions cannot skip in windows"):
        skipping(16, 15).batch(0, 1)
