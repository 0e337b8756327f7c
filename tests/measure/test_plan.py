"""Plan a measurement: lengths, blocks and windows; and what token frequencies lose."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import RopeError
from ropewalk.ledger import fingerprint as hash_of
from ropewalk.measure.losses import frequency_losses
from ropewalk.measure.plan import FORMAT, LossProtocol, fingerprint


def test_the_recorded_experiment_has_eight_blocks() -> None:
    """16,384 tokens in blocks of 2,048."""
    found = LossProtocol.choose(trained_length=8192, text="t", target=16384, block=2048, windows=1, start_char=30_000)
    assert found.blocks == tuple((start, start + 2048) for start in range(0, 16384, 2048))
    assert found.stride == 2048
    assert "from character 30,000" in found.sentence()


@pytest.mark.parametrize(("tokens", "target"), [(None, 400), (400, 400), (399, 300), (299, 200), (199, 400)])
def test_the_target_is_as_far_as_the_text_holds(tokens: int | None, target: int) -> None:
    """Four times the trained length, or three, or two; what is too short for two is refused as four."""
    assert LossProtocol.choose(trained_length=100, text="t", tokens=tokens).target == target
    assert LossProtocol.choose(trained_length=100, text="t", tokens=tokens, target=150).target == 150


def test_defaults_follow_the_trained_length() -> None:
    """Four times, quarters, and no more windows than 65,536 tokens hold."""
    found = LossProtocol.choose(trained_length=8192, text="t")
    assert (found.target, found.block, found.stride, found.windows) == (32768, 2048, 2048, 2)


def test_windows_follow_the_text() -> None:
    """A text of three and a half windows gets three; one that holds none is left to be refused."""
    assert LossProtocol.choose(trained_length=512, text="t", tokens=7000).windows == 3
    assert LossProtocol.choose(trained_length=512, text="t", tokens=7).windows == 1


@given(st.integers(1, 300), st.integers(2, 400), st.integers(1, 9), st.integers(0, 500))
def test_blocks_tile_and_windows_are_disjoint(trained: int, target: int, windows: int, spare: int) -> None:
    """Blocks cover every position once; windows lie within the text and never overlap."""
    found = LossProtocol.choose(trained_length=trained, text="t", target=target, windows=windows)
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
        LossProtocol.choose(trained_length=25, text="t", windows=1).starts(99)


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
        LossProtocol.choose(trained_length=512, text="t", **changes)  # type: ignore[arg-type]


def protocol(**changes: int) -> LossProtocol:
    """Two trained tokens of four, one window."""
    return LossProtocol.choose(**{"trained_length": 2, "target": 4, "windows": 1, **changes}, text="t")  # type: ignore[arg-type]


def test_a_count_by_hand() -> None:
    """Outside: 7 tokens, 2 distinct, of 5 ids. The scored token occurs 3 times: (3 + 2/5) / (7 + 2)."""
    outside, window = [0, 1, 0, 1, 0, 1, 0], [0, 1, 4, 4]
    of = protocol()
    text = list(range(11))
    start = of.starts(11)[0]
    text[start : start + 4] = window
    text[:start], text[start + 4 :] = outside[:start], outside[start:]
    assert frequency_losses([text], of, vocab_size=5) == pytest.approx((-math.log(3.4 / 9),))


def test_probabilities_sum_to_one() -> None:
    """Over the whole vocabulary, the tokens that never occur included."""
    of, total = protocol(), 0.0
    for token in range(6):
        text = [0, 0, 1, 0, 2, 1, 0, 0, 0]
        start = of.starts(len(text))[0]
        text[start : start + 4] = [0, token, 0, 0]  # the counts outside stay as they are
        total += math.exp(-frequency_losses([text], of, vocab_size=6)[0])
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("texts", [1, 3])
def test_it_is_witten_and_bells(texts: int) -> None:
    """In exact fractions, token by token, with counts of the window's own text outside the window."""
    rng = np.random.default_rng(texts)
    ids = [rng.zipf(1.5, size).clip(max=40).tolist() for size in rng.integers(150, 300, texts)]
    of = LossProtocol.choose(trained_length=8, target=32, windows=3, text=[str(n) for n in range(texts)], seed=5)
    found = frequency_losses(ids, of, vocab_size=50)
    expected = []
    for number, text in enumerate(ids):
        for start in of.starts(len(text), number):
            counts = Counter(text[:start] + text[start + 32 :])
            tokens, types = sum(counts.values()), len(counts)
            new = Fraction(types, tokens + types)
            likely = [
                (1 - new) * Fraction(counts[token], tokens) + new * Fraction(1, 50)
                for token in text[start + 1 : start + 8]
            ]
            expected.append(-sum(math.log(one) for one in likely) / 7)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_text_that_is_one_window_knows_nothing() -> None:
    """No token lies outside: every one is as likely."""
    assert frequency_losses([[3, 1, 2, 0]], protocol(), vocab_size=8) == pytest.approx((math.log(8),))


def test_ledgers_of_version_0_1_are_found_again():
    """The key of a run is that of the class's former name."""
    protocol = LossProtocol.choose(trained_length=16, text="a", target=64, windows=1)
    windows = torch.arange(64)[None]
    former = (
        b"Protocol(trained_length=16, target=64, block=4, windows=1, stride=4, texts=('a',), start_char=0, seed=0, "
        b"unscaled_tokens=0)"
    )
    key = hash_of(FORMAT, torch.__version__, "digest", former, windows.numpy().tobytes())
    assert fingerprint(SimpleNamespace(digest=lambda: "digest"), windows, protocol) == key
