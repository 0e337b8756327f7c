"""What a run takes, and what fits into some minutes: by a clock that is wound by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.diagnosis.prepare import prepare
from ropewalk.diagnosis.run import examined_methods
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError
from ropewalk.measure.engine import Job, Workload
from ropewalk.measure.estimate import (
    Fitted,
    Pace,
    Trial,
    estimate_memory,
    fit,
    job_seconds,
    seconds_at_once,
)
from ropewalk.measure.plan import LossProtocol, workload_of
from ropewalk.models.decoder import Decoder
from ropewalk.progress import SilentProgress
from ropewalk.readers.decoder import DecoderReader
from tests.diagnosis.models import settings_of
from tests.diagnosis.small_runs import loss_job
from tests.diagnosis.test_diagnosis import TEXT, model
from tests.measure.copy_readers import text_of

SETTINGS: dict[str, Any] = {"target": 64, "text": TEXT, "methods": "pi,ntk,yarn,dca,crop", "windows": 8}
ORDER = ("plain", "pi", "ntk", "yarn", "dca", "crop")


class Clockwork(DecoderReader):
    """A real reader that takes a second for each token, on a clock of its own."""

    def __init__(self, decoder: Decoder, now: list[float] | None = None) -> None:
        super().__init__(decoder, "clockwork")
        self.now = [0.0] if now is None else now

    def clock(self) -> float:
        return self.now[0]

    def under(self, positions: Any) -> Clockwork:
        return Clockwork(super().under(positions).model, self.now)

    def prefix(self, ids: Sequence[int], **options: Any) -> Any:
        found: Any = super().prefix(ids, **options)
        self.now[0] += len(ids)
        ask = found.ask

        def timed(questions: Any) -> Any:
            self.now[0] += sum(len(words) + sum(map(len, candidates)) for words, candidates in questions)
            return ask(questions)

        found.ask = timed
        return found

    def window_losses(self, ids: torch.Tensor, **options: Any) -> Any:
        self.now[0] += len(ids)
        return super().window_losses(ids, **options)


def prepared(state: Path, reader: Clockwork, **changes: Any) -> Any:
    """A run of one worker on the reader's own clock."""
    settings = settings_of(**{**SETTINGS, "state": state, "workers": 1, **changes})
    return prepare(reader, settings, clock=reader.clock)


def test_the_estimate_is_what_it_takes(tmp_path: Path) -> None:
    """Every job, crop's steps among them: a second a token, methods in attention reckoned a fifth slower."""
    reader = Clockwork(model())
    run = prepared(tmp_path, reader, methods="pi,ntk,crop", windows=3, measure="loss")
    said = run.estimate(reader.clock)
    began = reader.clock()
    run.measure(False)
    taken = reader.clock() - began
    assert taken == 3 * (3 * 64 + 4 * 32)
    assert said.seconds == pytest.approx(taken, rel=0.05)
    assert run.estimate(reader.clock) is None  # nothing is due
    pace, protocol = Pace(0.0, 1.0, 0.0, 0.0), run.plan.protocol
    assert job_seconds(loss_job("dca", 0, 64, workload_of("dca", protocol, chunk=16)), pace) == pytest.approx(1.2 * 32)
    whole = {name: workload_of(name, protocol, chunk=16, reuse=False) for name in ("dca", "crop")}
    assert job_seconds(loss_job("dca", 0, 64, whole["dca"]), pace) == pytest.approx(1.2 * 64)
    assert job_seconds(loss_job("crop", 0, 64, whole["crop"]), pace) == 32 + 4 * 32


def test_use_is_reckoned_as_well(tmp_path: Path) -> None:
    """The copy test reads plain's and the best method's windows twice, and plain's control."""
    reader = Clockwork(model(128))
    text = [("words", text_of(400))]
    run = prepared(tmp_path, reader, methods="pi", target=256, text=text, windows=2, measure="loss,use")
    losses = run.measure_losses(SilentProgress())  # they tell which method is the best
    said = run.estimate(lambda: reader.clock() / 1000)  # so that the trial reads the whole window
    began = reader.clock()
    run.measure(False)
    taken = reader.clock() - began
    assert taken == 2 * 2 * (256 * len(examined_methods(losses)) + 128)
    assert 1000 * said.seconds == pytest.approx(taken, rel=0.05)


def test_retrieval_is_reckoned_as_well(tmp_path: Path) -> None:
    """Its texts and its questions, crop's shorter texts among them; nothing where all is done."""
    reader = Clockwork(model(512))
    options = {"target": 768, "text": [("story", TEXT[0][1] * 6)], "methods": "crop", "windows": 1}
    asked = {"measure": "loss,retrieval", "retrieval": "numbers", "retrieval_lengths": [768], "retrieval_samples": 2}

    def quick() -> float:
        return reader.clock() / 1000  # so that the trial reads the whole window

    without = prepared(tmp_path / "losses", reader, **options, measure="loss").estimate(quick)
    run = prepared(tmp_path / "all", reader, **options, **asked)
    said = run.estimate(quick)
    began = quick()
    run.measure(False)
    taken = quick() - began
    assert without.seconds == pytest.approx((768 + 2 * 512) / 1000, rel=0.05)
    assert taken > 2 * without.seconds
    assert said.seconds == pytest.approx(taken, rel=0.1)
    assert run.estimate(quick) is None


def test_crop_reads_its_steps() -> None:
    """Fresh windows of the trained length, of which the last stride is scored."""
    protocol = LossProtocol.choose(trained_length=32, target=64, text="t", windows=1)
    step = Workload.of(32, chunk=16, first=24)
    assert workload_of("crop", protocol, chunk=16) == step.times(4)
    assert workload_of("crop", protocol, chunk=16, reuse=False) == step.times(4) + Workload.of(32, chunk=16)
    assert workload_of("yarn", protocol, chunk=16) == Workload(4, 64, 64 * 65 / 2, 63)
    assert workload_of("dca", protocol, chunk=16) == Workload(2, 32, 64 * 65 / 2 - 32 * 33 / 2, 31)


def test_workers_share_the_jobs() -> None:
    """In order, each to the first that is free."""
    assert seconds_at_once([1.0] * 5, 2) == 3.0
    assert seconds_at_once([1.0, 9.0, 1.0, 1.0], 2) == 9.0
    assert seconds_at_once([], 4) == 0.0


def fitted(budget: float, windows: int = 8, methods: Sequence[str] = ORDER) -> Fitted:
    """What fits, where each method takes a second for a window."""
    return fit(budget, windows=windows, texts=1, methods=methods, seconds=lambda count, names: count * len(names))


@pytest.mark.parametrize(
    ("budget", "windows", "methods"),
    [
        (48, 8, "plain pi ntk yarn dca crop"),
        (47, 7, "plain pi ntk yarn dca crop"),
        (24, 4, "plain pi ntk yarn dca crop"),
        (23, 4, "plain ntk yarn dca crop"),
        (17, 4, "plain yarn dca crop"),
        (12, 4, "plain yarn crop"),
        (11, 3, "plain yarn crop"),
        (3, 1, "plain yarn crop"),
        (2.5, 1, "plain crop"),
    ],
)
def test_what_is_left_out_first(budget: float, windows: int, methods: str) -> None:
    """Windows down to four, methods down to one, windows down to one, the last method; plain and crop never."""
    found = fitted(budget)
    assert (found.windows, " ".join(found.methods)) == (windows, methods)
    gone = [name for name in ORDER if name not in found.methods]
    assert any(f"{8 - windows} of 8 windows" in line for line in found.left_out) == (windows < 8)
    assert any(", ".join(gone) in line for line in found.left_out if gone) == bool(gone)


def test_what_does_not_fit_at_all() -> None:
    """A message with what is needed."""
    with pytest.raises(RopeError, match="plain and crop on one window") as refused:
        fitted(1.9)
    assert "--minutes" in str(refused.value)
    assert fitted(1.0, windows=1, methods=("plain",)) == Fitted(1, ("plain",), ())


def test_minutes_plan_the_run(tmp_path: Path) -> None:
    """The run keeps to its time, says what it left out, and resumed it has the same plan without another trial."""
    reader = Clockwork(model())
    run = prepared(tmp_path, reader, minutes=40, text=[("story", TEXT[0][1] * 2)])
    assert run.plan.methods[0] == "plain"
    assert "crop" in run.plan.methods
    assert run.left_out
    run.measure(False)
    assert 0.5 * 40 * 60 < reader.clock() < 40 * 60
    again = prepared(tmp_path, reader, minutes=40, text=[("story", TEXT[0][1] * 2)], resume=True)
    assert (again.plan, again.left_out, again.trial) == (run.plan, run.left_out, None)
    assert not again.plan.due(again.ledger)
    whole = prepared(tmp_path / "whole", reader, minutes=1000, text=[("story", TEXT[0][1] * 2)])
    assert (whole.plan.protocol.windows, whole.left_out) == (8, ())
    with pytest.raises(RopeError, match="plain and crop on one window"):
        prepared(tmp_path / "none", reader, minutes=1)


@pytest.mark.parametrize("minutes", [0, -1, float("nan"), float("inf")])
def test_minutes_are_a_time(minutes: float) -> None:
    """Above zero."""
    with pytest.raises(RopeError, match="must be above 0"):
        DoctorSettings(minutes=minutes)


def test_a_plan_of_fewer_windows_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Its numbers are those of a run that was asked for so many windows and methods."""
    reader = Clockwork(model())
    text = [("story", TEXT[0][1] * 2)]
    run = prepared(tmp_path / "a", reader, minutes=30, text=text)
    kept = ",".join(run.plan.methods)
    asked = prepared(tmp_path / "b", reader, text=text, methods=kept, windows=run.plan.protocol.windows)
    one, other = run.measure(False).to_json(), asked.measure(False).to_json()
    for left, right in zip(one["methods"], other["methods"], strict=True):
        assert left["loss_by_window_and_block"] == right["loss_by_window_and_block"]
    assert dataclasses.asdict(run.plan.protocol) == dataclasses.asdict(asked.plan.protocol)


@pytest.mark.parametrize(("workers", "kept"), [(1, 1), (2, 2), (4, 3)])
def test_beginnings_that_are_kept_count_as_memory(workers: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each worker, but no more than there are windows in which a method reads on from plain's beginning."""
    monkeypatch.setattr("ropewalk.measure.estimate.resident_bytes", lambda: 1000)
    reader, trial = DecoderReader(model()), Trial(Pace(0.0, 1.0, 0.0, 0.0), 10)
    plain = [loss_job("plain", window, 64) for window in range(3)]
    sharing = [loss_job("dca", window, 64, part=24) for window in range(3)]

    def estimated(jobs: list[Job]) -> int | None:
        return estimate_memory(reader, trial, 64, jobs, workers=workers)

    without = 1000 + workers * (reader.cache_bytes(64) + 10)
    assert estimated(plain) == without
    assert estimated([*plain, *sharing]) == without + kept * reader.cache_bytes(24)
