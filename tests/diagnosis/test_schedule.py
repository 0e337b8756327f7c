"""How one window is measured, with a reader that computes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints.opening import reader_of
from ropewalk.checkpoints.texts import novel
from ropewalk.diagnosis.facts import WORDS, Layout, Teller
from ropewalk.diagnosis.prepare import _conclusion, settle_reading
from ropewalk.diagnosis.schedule import BROKEN, Design, Job, _read, _read_cropped, control_facts
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError
from ropewalk.methods import trained_length_of, unsettled
from ropewalk.progress import SilentProgress
from ropewalk.rope.scaling import YaRN
from tests.diagnosis.test_facts import STORY, decode, encode

TRAINED, TARGET = 2200, 5200
DESIGN = Design(trained_length=TRAINED, target=TARGET, windows=1)
TELLER = Teller(WORDS, encode, decode)
LAYOUT: Layout = TELLER.layout(TRAINED, TARGET)
TOLD = TELLER.fill(LAYOUT, encode(STORY), seed=(0,))


class StandIn:
    """Losses from a function of the position; every question is answered with its first choice."""

    def __init__(self, loss: Any, chunk: int = 200) -> None:
        self.loss, self.chunk, self.asked, self.windows = loss, chunk, list[tuple[int, int]](), list[Any]()

    def window_losses(
        self, input_ids: Any, *, first: int = 1, advance: Any, asking: Any = None, until: Any = None
    ) -> Any:
        self.windows.append(input_ids)
        losses = np.array([self.loss(position) for position in range(first, len(input_ids))])
        for stop in sorted(asking or ()):
            asking[stop](SimpleNamespace(ask=lambda questions, stop=stop: self.answer(stop, questions)))
        for end in range(self.chunk, len(losses), self.chunk):
            if until is not None and until(losses[:end]):
                return losses[:end]
        return losses

    def answer(self, stop: int, questions: Sequence[Any]) -> list[list[float]]:
        self.asked.append((stop, len(questions)))
        return [[0.0, -1.0, -1.0, -1.0] for _ in questions]


def measured(
    loss: Any, method: str = "plain", level: float | None = None, trained: int = TRAINED
) -> tuple[Any, StandIn]:
    """What `_read` makes of a stand-in."""
    reader: Any = StandIn(loss)
    design, levels = dataclasses.replace(DESIGN, trained_length=trained), {} if level is None else {0: level}
    return _read(reader, TOLD, design, Job.of(method, 0, "key", TARGET), levels, lambda tokens: None), reader


def test_blocks_are_means_of_the_counted_tokens() -> None:
    found, reader = measured(lambda position: 3.0 + position / TARGET)
    assert found.stopped is None
    assert len(found.answers) == len(TOLD.facts)
    for (start, end), loss in zip(DESIGN.blocks, found.loss, strict=True):
        at = [position for position in range(start, end) if TOLD.counted[position]]
        assert loss is None if not at else loss == pytest.approx(3.0 + np.mean(at) / TARGET, abs=1e-4)
    early = TRAINED - (LAYOUT.target - LAYOUT.asked_at)
    assert [stop for stop, _ in reader.asked] == [early, LAYOUT.asked_at]
    assert set(found.control) == set(control_facts(TOLD, early))
    assert all(TOLD.facts[number].end <= early for number in found.control)
    found, reader = measured(lambda position: 3.0, "yarn")  # only plain is asked at the trained length
    assert (found.control, len(reader.asked)) == ({}, 1)


def test_a_reading_whose_loss_breaks_down_is_given_up() -> None:
    """After the trained length the loss rises: the rest is not computed, and no answer counts."""
    found, _ = measured(lambda position: 3.0 if position < 3000 else 3.2 + BROKEN)
    assert found.stopped == 3601  # after the first 200 tokens of which the last 512 are worse by a nat
    assert found.answers == ()
    assert found.loss[-1] is None
    kept, _ = measured(lambda position: 3.0 if position < 3000 else 2.8 + BROKEN)
    assert kept.stopped is None
    for trained, rise, stopped in ((1023, 3000, None), (1024, 3000, 3201), (2345, 2345, 2601)):
        found, _ = measured(lambda position, rise=rise: 3.0 if position < rise else 9.0, trained=trained)
        assert found.stopped == stopped  # few tokens vary by a nat by themselves: 1,024 within and 256 beyond do not
    with pytest.raises(RopeError, match="not a finite number"):
        measured(lambda position: float("nan") if position == 700 else 3.0)


def test_a_text_that_varies_by_itself_is_no_breakdown() -> None:
    """Code: a part of it has a loss that is higher by more than a nat, within the trained length and beyond."""

    def varied(position: int, worse: float = 0.0) -> float:
        return 3.5 + worse * (position > TRAINED) if 512 <= position % 2600 < 1024 else 1.5

    assert measured(varied)[0].stopped is None
    assert measured(lambda position: varied(position, 0.2 + BROKEN))[0].stopped is not None


def test_a_method_that_is_worse_from_the_start_is_given_up() -> None:
    """Compared with plain's level within the trained length of the same window, if that is known."""
    found, _ = measured(lambda position: 3.2 + BROKEN, "pi", 3.0)
    assert found.stopped is not None
    assert found.stopped < TRAINED + 400
    alone, _ = measured(lambda position: 3.2 + BROKEN, "pi")
    assert alone.stopped is None


def test_crop_processes_the_last_tokens_only() -> None:
    """Each sampled block has its own window of the trained length, and the window's end is scored."""
    reader = StandIn(lambda position: float(position))
    found = _read_cropped(reader, TOLD, DESIGN, 0, lambda tokens: None)  # type: ignore[arg-type]
    steps = DESIGN.crop_steps(0)
    assert [ids.tolist() for ids in reader.windows] == [TOLD.ids[end - TRAINED : end].tolist() for _, end in steps]
    scored = {position for first, end in steps for position in range(first, end)}
    for (start, stop), loss in zip(DESIGN.blocks, found.loss, strict=True):
        counted = {position for position in range(start, stop) if TOLD.counted[position]}
        assert (loss is not None) == (bool(counted) and counted <= scored)
    assert sum(end - first for first, end in steps) >= 512


def test_a_scaling_of_unknown_training_is_measured(tmp_path: Path) -> None:
    """`tiny` with a scaling that it was not trained with, or with a length that only the scaling explains."""
    model = rw.load("tiny", dtype=torch.float32)
    scaled = dataclasses.replace(model.config.rope, scaling=YaRN(4.0, 256), max_position_embeddings=1024)
    reader = reader_of(model.with_positions(rope=scaled))
    tokens = model.tokenizer.encode(novel(40_000, 9_000))

    def settle(tokens: list[int], trained_length: int | None = None) -> Any:
        settings = DoctorSettings(trained_length=trained_length, state=tmp_path)
        return settle_reading(reader, [tokens], settings, SilentProgress())

    assert unsettled(reader.positions) is not None
    found, measured = settle(tokens)
    assert (measured["with_scaling"], trained_length_of(found.positions)) == (False, 256)
    assert measured["difference"] > 0
    said = "The weights were trained without the yarn scaling to 256 tokens: scaled minus unscaled is +"
    assert measured["sentence"].startswith(said)
    for unscaled, said in (([2.0, 2.1], "The weights were trained with the yarn scaling to 1,024 tokens: "),
                           ([1.0, 1.3], "It is open whether the weights were trained with the yarn ")):  # fmt: skip
        assert _conclusion(scaled, 256, [1.0, 1.1], unscaled)["sentence"].startswith(said)
    assert (measured["length"], len(measured["scaled"])) == (256, 8)
    assert settle(tokens)[1] == measured  # from its ledger
    stated, nothing = settle(tokens, 1024)
    assert (nothing, trained_length_of(stated.positions)) == (None, 1024)
    with pytest.raises(RopeError, match="the text is too short"):
        settle(tokens[:31])
    assert settle(tokens[:32])[1]["length"] == 16
