"""The copy test: readers that copy exactly within a known reach, and the windows themselves."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.measure import copy_test as gather
from ropewalk.measure import copy_windows as blocks
from ropewalk.measure.copy_test import UseMeasurement
from ropewalk.measure.copy_windows import (
    CUE,
    HALVES,
    CopyDesign,
    RandomWords,
    Reading,
    UseProtocol,
    arrange,
    copy_windows,
)
from ropewalk.readers.decoder import DecoderReader
from tests.diagnosis.models import ROPE, tiny_decoder
from tests.measure.copy_readers import (
    TRAINED,
    WORDS,
    CopyReader,
    byte_tokenizer,
    measured,
    prepared,
    text_of,
    word_tokenizer,
)

TOKENIZER = word_tokenizer()
BLOCK = 16  # of windows with this trained length
BY_LENGTH = 4.0 + np.mean(np.arange(CUE, BLOCK))
"""The mean gain of a block from a reader that gains 4 nats and one more for each token that agrees before."""


def growing(same: int) -> float:
    """A gain that tells each token of a block from the others."""
    return 4.0 + same


def check_known(reach: int) -> UseMeasurement:
    """The gains, distances and reach of a reader that copies within `reach` and not beyond."""
    found = measured(CopyReader(reach, gain=growing))
    rows = found.of("plain", "copy")
    assert [row.distance for row in rows] == [128, 176, 464, 880]
    for row in rows:
        expected = BY_LENGTH if row.distance <= reach else 0.0
        assert row.gain == pytest.approx(expected, abs=2e-5)
        assert row.interval == pytest.approx((expected, expected), abs=2e-5)
    assert found.controls["copy"].gain == pytest.approx(BY_LENGTH, abs=2e-5)
    return found


@pytest.mark.parametrize(
    ("reach", "reached", "uses"), [(2000, 880, True), (464, 464, True), (463, 176, False), (200, 176, False)]
)
def test_known_reach_is_found(reach: int, reached: int, uses: bool) -> None:
    """Gain and reach are those of the reader, to the token; use is what lies beyond the trained length."""
    found = check_known(reach)
    assert found.reach("plain") == reached
    assert found.shows_use("plain") is uses


@pytest.mark.parametrize("sabotage", ["swapped", "one fewer", "one more", "cue scored", "one block later"])
def test_sabotage_is_noticed(sabotage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves swapped, tokens shifted by one, the cue scored, blocks out of step: each fails the test above."""
    if sabotage == "swapped":
        monkeypatch.setattr(gather, "HALVES", HALVES[::-1])
        monkeypatch.setattr(gather, "copy_gains", _swapped(gather.copy_gains))
    elif sabotage == "one block later":
        monkeypatch.setattr(gather, "copy_gains", _rotated(gather.copy_gains))
    else:
        monkeypatch.setattr(gather, "CUE", {"one fewer": CUE - 1, "one more": CUE + 1, "cue scored": 0}[sabotage])
    with pytest.raises(AssertionError):
        check_known(2000)


def _swapped(gains: Any) -> Any:
    def of(design: CopyDesign, layout: Any, losses: dict[Any, Any]) -> Any:
        return gains(design, layout, {"odd": losses["even"], "even": losses["odd"]})

    return of


def _rotated(gains: Any) -> Any:
    return lambda design, layout, losses: gains(design, (*layout[1:], layout[0]), losses)


def test_crop_uses_what_it_sees() -> None:
    """The same reader under crop copies from within the trained length and from nowhere beyond it."""
    found = measured(CopyReader(2000, gain=growing), stride=TRAINED // 4)
    gains = {row.distance: row.gain for row in found.of("crop", "copy")}
    assert gains[128] == pytest.approx(BY_LENGTH, abs=2e-5)
    assert gains[176] == pytest.approx(BY_LENGTH, abs=2e-5)  # it sees at least 192 tokens
    assert gains[464] == gains[880] == 0.0
    assert found.shows_use("plain") is True
    assert found.shows_use("crop") is False


def test_a_trend_by_position_is_no_gain() -> None:
    """Of a reader that cannot copy, but whose loss falls by position, the paired gain is 0, the unpaired is not."""
    reader = CopyReader(0, trend=0.002)
    found = measured(reader)
    assert all(row.gain == pytest.approx(0.0, abs=2e-6) for row in found.rows)
    run = prepared(reader)
    unpaired = []
    for block in run.inputs.blocks("far", 0):
        ids = run.inputs.ids(Reading("far", block.half), 0)
        losses = np.concatenate([[0.0], reader.window_losses(ids)])
        first, again = (losses[at + CUE : at + BLOCK].mean() for at in (block.source, block.start))
        assert ids[block.source : block.source + BLOCK].tolist() == ids[block.start : block.start + BLOCK].tolist()
        unpaired.append(first - again)
    assert np.mean(unpaired) > 0.5  # second reading against first: nearly a nat of nothing


def test_what_one_reading_has_in_all_cancels() -> None:
    """A loss that is higher everywhere in one of the two readings leaves every distance's gain as it is."""
    design = CopyDesign(window=512, block=8, per_distance=4, distances=(64, 128, 256))
    layout = arrange(design, Random(1))
    rng = np.random.default_rng(0)
    losses = {half: rng.normal(size=design.closing) for half in HALVES}
    shifted = {"odd": losses["odd"] + 0.7, "even": losses["even"]}
    before, after = (gather.copy_gains(design, layout, one) for one in (losses, shifted))
    assert before == pytest.approx(after)


def test_gains_are_those_of_a_loop() -> None:
    """Each token's loss where its block is absent minus where it is present, in a plain loop."""
    design = CopyDesign(window=256, block=8, per_distance=2, distances=(48, 96))
    layout = arrange(design, Random(3))
    rng = np.random.default_rng(0)
    losses = {half: rng.normal(size=design.closing) for half in HALVES}
    for distance, gain in gather.copy_gains(design, layout, losses).items():
        apart = [
            losses["even" if block.half == "odd" else "odd"][at] - losses[block.half][at]
            for block in layout
            if block.distance == distance
            for at in range(block.start - design.first + 4, block.start - design.first + 8)
        ]
        assert gain == pytest.approx(sum(apart) / len(apart))


@settings(max_examples=25)
@given(st.integers(128, 2048), st.floats(1.1, 20.0), st.integers(0, 3))
def test_windows_hold_what_they_should(trained: int, times: float, seed: int) -> None:
    """Both readings: the same closing blocks; each block at its distance in its half alone; all else is real text."""
    target = int(trained * times)
    protocol = UseProtocol.choose(trained_length=trained, target=target, texts=("t",), windows=1)
    assert protocol.copy_control is not None
    for design in (protocol.copy, protocol.copy_control):
        if design is None:
            assert target < 1.5 * trained
            continue
        assert design.distances[0] >= design.closing
        assert design.distances[-1] <= design.first - design.block
        layout, size = arrange(design, Random(seed)), design.block
        for distance in design.distances:
            halves = [block.half for block in layout if block.distance == distance]
            assert halves.count("odd") == halves.count("even") == design.per_distance // 2
        real = torch.full((design.window,), -1)
        words = RandomWords(TOKENIZER, " ".join(WORDS))
        odd, even = copy_windows(real, design, words, Random(seed)).values()
        assert torch.equal(odd[design.first :], even[design.first :])
        assert bool((odd[design.first :] >= 0).all())
        untouched = torch.ones(design.window, dtype=torch.bool)
        untouched[design.first :] = False
        for block in layout:
            place = slice(block.source, block.source + size)
            assert bool(untouched[place].all())  # no two overlap
            untouched[place] = False
            present, absent = (odd, even) if block.half == "odd" else (even, odd)
            assert torch.equal(present[place], present[block.start : block.start + size])
            assert block.start - block.source == block.distance
            own = set(present[place].tolist())
            assert len(own) == size
            if 2 * design.closing < len(WORDS):
                assert not own & set(absent[place].tolist())
        assert torch.equal(odd[untouched], real[untouched])
        assert torch.equal(even[untouched], real[untouched])


def test_far_distances_lie_on_both_sides_of_the_trained_length() -> None:
    """From half the trained length to near the target, by one factor; none where crop sees a part of the tokens."""
    found = UseProtocol.choose(trained_length=8192, target=32768, texts=("t",), windows=1).copy
    assert found is not None
    assert found.distances == (4096, 6112, 9216, 13856, 20800, 31200)
    evenly = [4096 * (31200 / 4096) ** (number / 5) for number in range(6)]
    for number, (distance, ideal) in enumerate(zip(found.distances, evenly, strict=True)):
        assert abs(distance - ideal) <= 16 or (number, distance + 4 <= 8192 * 3 / 4 < ideal) == (1, True)


def test_halves_are_placed_at_random() -> None:
    """Which distance a closing block has differs from window to window, and follows from the seed."""
    design = CopyDesign(window=4096, block=32, per_distance=4, distances=(1024, 2048, 3072))
    assert arrange(design, Random(1)) == arrange(design, Random(1)) != arrange(design, Random(2))


def test_distances_that_always_meet_fall_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no random order is found the blocks stand with falling distances, which cannot overlap."""
    monkeypatch.setattr(blocks, "_TRIES", 0)
    design = CopyDesign(window=400, block=8, per_distance=4, distances=(128, 136, 144))
    sources = [block.source for block in arrange(design, Random(0))]
    assert sources == sorted(set(sources))


def test_blocks_of_bytes_are_random_words() -> None:
    """A block of a byte tokenizer is cut from words of the text with spaces between them; none comes twice at first."""
    tokenizer = byte_tokenizer()
    words = RandomWords(tokenizer, text_of(4000))
    drawn = words.blocks(24, Random(0))
    some = [tokenizer.decode(next(drawn).tolist()) for _ in range(10)]
    assert all(len(one) == 24 and one.startswith(" ") for one in some)
    whole = [word for one in some for word in one.split()[:-1]]
    assert set(whole) <= set(WORDS)
    assert len(set(whole)) == len(whole)


def test_a_text_without_spaces_has_pieces() -> None:
    """Chinese has no words between spaces: blocks are made of its pieces of a few characters."""
    rng = Random(0)
    text = "".join(chr(0x4E00 + rng.randrange(3000)) for _ in range(2000))
    words = RandomWords(byte_tokenizer(), text)
    assert words.enough
    block = next(words.blocks(24, Random(1)))
    assert byte_tokenizer().decode(block.tolist()) in "".join(words.words) or len(block) == 24


def test_random_weights_are_not_measured() -> None:
    """A model that cannot copy: a gain of about nothing, and no word on whether it uses anything."""
    decoder = tiny_decoder(ROPE, vocab_size=257, initializer_range=0.1)
    decoder.tokenizer = byte_tokenizer()
    found = measured(DecoderReader(decoder), windows=3, trained=128, target=256)
    rows = found.of("plain", "copy")
    assert rows
    assert all(abs(row.gain) < 0.05 for row in rows)
    assert not found.can_copy
    assert found.shows_use("plain") is None
    assert found.reach("plain") is None
