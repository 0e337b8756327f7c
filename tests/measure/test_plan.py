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
from ropewalk.measure.plan import FORMAT, LossProtocol, fingerprint, most_windows


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
    """Four times, eighths, a quarter, and as many windows as the last look has."""
    found = LossProtocol.choose(trained_length=8192, text="t")
    assert (found.target, found.block, found.stride, found.windows) == (32768, 1024, 2048, 16)
    assert LossProtocol.choose(trained_length=8192, text="t", target=10240).block == 256  # of the shorter part
    assert LossProtocol.choose(trained_length=8192, text="t", target=4096).block == 512


def test_windows_follow_the_text() -> None:
    """A text of three and a half windows gets five that overlap; one that holds none is left to be refused."""
    assert LossProtocol.choose(trained_length=512, text="t", tokens=7000).windows == 5
    assert LossProtocol.choose(trained_length=512, text=("a", "b"), target=2048, tokens=(7000, 5000)).windows == 8
    assert LossProtocol.choose(trained_length=512, text="t", tokens=7).windows == 1


@given(st.integers(1, 300), st.integers(2, 700), st.one_of(st.none(), st.integers(2, 90)), st.integers(1, 16))
def test_blocks_and_stretches_tile(trained: int, target: int, block: int | None, windows: int) -> None:
    """Blocks cover [0, target) once, none holds the trained length inside; stretches cover the blocks beyond it."""
    block = None if block is None else min(block, target)
    found = LossProtocol.choose(trained_length=trained, text="t", target=target, block=block, windows=windows)
    assert [position for start, end in found.blocks for position in range(start, end)] == list(range(target))
    assert not any(start < trained < end for start, end in found.blocks)
    assert all(end - start <= found.block for start, end in found.blocks)
    assert sum(found.weights) == target - 1
    assert [end for _, end in found.blocks[: found.blocks_within]][-1] == min(trained, target)
    beyond = range(found.blocks_within, len(found.blocks))
    assert [number for first, last in found.stretches for number in range(first, last)] == list(beyond)
    assert len(found.stretches) == min(3, len(beyond))
    assert all(first < last for first, last in found.stretches)
    assert list(found.stretch_ends[-1:]) == ([target] if target > trained else [])


@given(st.integers(2, 60), st.integers(1, 16), st.lists(st.integers(0, 400), min_size=1, max_size=5), st.integers(0, 9))
def test_windows_go_round_the_texts(target: int, windows: int, tokens: list[int], seed: int) -> None:
    """Each text in turn while it has room; disjoint where that is possible, else an overlap of at most a half."""
    names = [str(number) for number in range(len(tokens))]
    found = LossProtocol.choose(trained_length=8, text=names, target=target, windows=windows, seed=seed)
    room = [max(0, 2 * length // target - 1) if length >= target else 0 for length in tokens]
    assert room == [most_windows(length, target) for length in tokens]
    if sum(room) < windows:
        with pytest.raises(RopeError, match="too short for the windows"):
            found.places(tokens)
        return
    places = found.places(tokens)
    assert places == found.places(tokens)
    assert len(places) == windows
    of = [text for text, _ in places]
    expected = [
        text for turn in range(max(room)) for text in range(len(tokens)) if turn < room[text]
    ]  # every text once, then every one that holds another
    assert of == expected[:windows]
    for text, length in enumerate(tokens):
        starts = sorted(start for number, start in places if number == text)
        apart = [later - earlier for earlier, later in itertools.pairwise(starts)]
        assert all(0 <= start <= length - target for start in starts)
        assert all(distance >= (target if len(starts) * target <= length else target // 2) for distance in apart)
    worth = sum(min(of.count(text), length / target) for text, length in enumerate(tokens))
    assert found.share(tokens) == pytest.approx(worth / windows)
    assert 1 / 2 < found.share(tokens) <= 1


def test_the_first_windows_do_not_follow_the_text() -> None:
    """In one text windows come in a random order, another one for each seed, so that the first is not the beginning."""
    firsts = set()
    for seed in range(8):
        found = LossProtocol.choose(trained_length=8, text="t", target=32, windows=8, seed=seed)
        starts = [start for _, start in found.places([32 * 8])]
        assert sorted(starts) == list(range(0, 256, 32))
        firsts.add(starts[0])
    assert len(firsts) > 3


def test_a_short_text_is_refused_with_its_length() -> None:
    """The message says how many tokens each text has, how many windows they hold, and how many were asked for."""
    with pytest.raises(RopeError, match=r"too short for the windows[\s\S]*'t': 99[\s\S]*them +0[\s\S]*target +100"):
        LossProtocol.choose(trained_length=25, text="t", windows=1).places([99])
    of = LossProtocol.choose(trained_length=25, text=("a", "b"), windows=4)
    assert [text for text, _ in LossProtocol.choose(trained_length=25, text="t", windows=3).places([200])] == [0] * 3
    with pytest.raises(RopeError, match=r"'a': 150, 'b': 20[\s\S]*them +2[\s\S]*windows +4"):
        of.places([150, 20])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": 0}, "`target` must be a whole number from 1"),
        ({"windows": 0}, "`windows` must be a whole number from 1"),
        ({"block": 1}, "`block` must be from 2"),
        ({"block": 5000}, "`block` must be from 2"),
        ({"stride": 129}, "at most a quarter"),
        ({"start_char": -1}, "must be a whole number from 0"),
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
    ((_, start),) = of.places([11])
    text[start : start + 4] = window
    text[:start], text[start + 4 :] = outside[:start], outside[start:]
    assert frequency_losses([text], of, vocab_size=5) == ((pytest.approx(-math.log(3.4 / 9)),),)


def test_probabilities_sum_to_one() -> None:
    """Over the whole vocabulary, the tokens that never occur included."""
    of, total = protocol(), 0.0
    for token in range(6):
        text = [0, 0, 1, 0, 2, 1, 0, 0, 0]
        ((_, start),) = of.places([len(text)])
        text[start : start + 4] = [0, token, 0, 0]  # the counts outside stay as they are
        total += math.exp(-frequency_losses([text], of, vocab_size=6)[0][0])
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("texts", [1, 3])
def test_it_is_witten_and_bells(texts: int) -> None:
    """In exact fractions, token by token, with counts of the window's own text outside the window."""
    rng = np.random.default_rng(texts)
    ids = [rng.zipf(1.5, size).clip(max=40).tolist() for size in rng.integers(150, 300, texts)]
    of = LossProtocol.choose(
        trained_length=8, target=32, block=3, windows=3 * texts, text=[str(n) for n in range(texts)], seed=5
    )
    found = frequency_losses(ids, of, vocab_size=50)
    expected = []
    for number, start in of.places([len(text) for text in ids]):
        text = ids[number]
        counts = Counter(text[:start] + text[start + 32 :])
        tokens, types = sum(counts.values()), len(counts)
        new = Fraction(types, tokens + types)
        nats = [
            -math.log((1 - new) * Fraction(counts[token], tokens) + new * Fraction(1, 50))
            for token in text[start : start + 8]
        ]
        expected.append([sum(nats[1:3]) / 2, sum(nats[3:6]) / 3, sum(nats[6:8]) / 2])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_text_that_is_one_window_knows_nothing() -> None:
    """No token lies outside: every one is as likely."""
    assert frequency_losses([[3, 1, 2, 0]], protocol(), vocab_size=8) == ((pytest.approx(math.log(8)),),)


def test_the_key_of_a_run() -> None:
    """It holds the format, torch's version, the model, the protocol as text, and the tokens."""
    protocol = LossProtocol.choose(trained_length=16, text="a", target=64, windows=1)
    windows = torch.arange(64)[None]
    words = (
        "LossProtocol(trained_length=16, target=64, block=2, windows=1, stride=4, texts=('a',), start_char=0, seed=0)"
    )
    key = hash_of(FORMAT, torch.__version__, "digest", words, windows.numpy().tobytes())
    assert fingerprint(SimpleNamespace(digest=lambda: "digest"), windows, protocol) == key
