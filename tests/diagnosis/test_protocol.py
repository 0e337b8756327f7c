"""Lengths, blocks and windows."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.diagnosis.protocol import Protocol
from ropewalk.errors import RopeError


def test_the_recorded_experiment_has_eight_blocks() -> None:
    """16,384 tokens in blocks of 2,048."""
    found = Protocol.choose(trained_length=8192, text="t", target=16384, block=2048, windows=1, start_char=30_000)
    assert found.blocks == tuple((start, start + 2048) for start in range(0, 16384, 2048))
    assert found.stride == 2048
    assert "from character 30,000" in found.sentence()


@pytest.mark.parametrize(("tokens", "target"), [(None, 400), (400, 400), (399, 300), (299, 200), (199, 400)])
def test_the_target_is_as_far_as_the_text_holds(tokens: int | None, target: int) -> None:
    """Four times the trained length, or three, or two; what is too short for two is refused as four."""
    assert Protocol.choose(trained_length=100, text="t", tokens=tokens).target == target
    assert Protocol.choose(trained_length=100, text="t", tokens=tokens, target=150).target == 150


def test_defaults_follow_the_trained_length() -> None:
    """Four times, quarters, and no more windows than 65,536 tokens hold."""
    found = Protocol.choose(trained_length=8192, text="t")
    assert (found.target, found.block, found.stride, found.windows) == (32768, 2048, 2048, 2)


def test_windows_follow_the_text() -> None:
    """A text of three and a half windows gets three; one that holds none is left to be refused."""
    assert Protocol.choose(trained_length=512, text="t", tokens=7000).windows == 3
    assert Protocol.choose(trained_length=512, text="t", tokens=7).windows == 1


@given(st.integers(1, 300), st.integers(2, 400), st.integers(1, 9), st.integers(0, 500))
def test_blocks_tile_and_windows_are_disjoint(trained: int, target: int, windows: int, spare: int) -> None:
    """Blocks cover every position once; windows lie within the text and never overlap."""
    found = Protocol.choose(trained_length=trained, text="t", target=target, windows=windows)
    assert [position for start, end in found.blocks for position in range(start, end)] == list(range(target))
    tokens = windows * target + spare
    starts = found.starts(tokens)
    assert len(starts) == windows
    assert starts[0] >= 0
    assert starts[-1] + target <= tokens
    assert all(later - earlier >= target for earlier, later in itertools.pairwise(starts))


def test_a_short_text_is_refused_with_its_length() -> None:
    """The message says how many tokens there are and how many are needed."""
    with pytest.raises(RopeError, match=r"too short for the windows[\s\S]*99[\s\S]*100"):
        Protocol.choose(trained_length=25, text="t", windows=1).starts(99)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": 0}, "`target` must be at least 1"),
        ({"windows": 0}, "`windows` must be at least 1"),
        ({"block": 1}, "`block` must be from 2"),
        ({"block": 5000}, "`block` must be from 2"),
        ({"stride": 129}, "at most a quarter"),
        ({"start_char": -1}, "must not be negative"),
    ],
)
def test_impossible_numbers_are_refused(changes: dict[str, int], message: str) -> None:
    """Each with the rule that it breaks."""
    with pytest.raises(RopeError, match=message):
        Protocol.choose(trained_length=512, text="t", **changes)  # type: ignore[arg-type]
