"""What a run takes, and what fits into some minutes: by a clock that is wound by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.diagnosis.prepare import prepare
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.errors import RopeError
from ropewalk.measure.engine import Workload
from ropewalk.measure.estimate import (
    Pace,
    job_seconds,
    seconds_at_once,
)
from ropewalk.measure.plan import LossProtocol, workload_of
from ropewalk.models.decoder import Decoder
from ropewalk.progress import SilentProgress
from ropewalk.readers.loading import as_transformers
from ropewalk.readers.transformers import TransformersReader
from tests.diagnosis.models import settings_of
from tests.diagnosis.small_runs import loss_job
from tests.diagnosis.test_diagnosis import TEXT, model

SETTINGS: dict[str, Any] = {"target": 64, "text": TEXT, "methods": "pi,ntk,yarn,dca,crop", "windows": 8}


class Clockwork(TransformersReader):
    """A real reader that takes a second for each token, on a clock of its own."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__(*as_transformers(decoder), "clockwork")
        self.now = [0.0]

    def clock(self) -> float:
        return self.now[0]

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
    run = prepared(tmp_path, reader, methods="pi,ntk,crop", windows=3, measure="loss", minutes=1000)
    jobs = run.due(3, run.plan.methods)
    trial = run.outlook.try_out(run.windows[0], jobs, reader.clock)
    said, began = run.outlook.seconds(jobs, trial), reader.clock()
    run._read(3, run.plan.methods, SilentProgress())
    taken = reader.clock() - began
    assert taken == 3 * (3 * 64 + 4 * 32)
    assert said == pytest.approx(taken, rel=0.05)
    assert not run.due(3, run.plan.methods)
    pace, protocol = Pace(0.0, 1.0, 0.0, 0.0), run.plan.protocol
    whole = {name: workload_of(name, protocol, chunk=16, reuse=False) for name in ("dca", "crop")}
    assert job_seconds(loss_job("dca", 0, 64, whole["dca"]), pace) == pytest.approx(1.2 * 64)
    assert job_seconds(loss_job("crop", 0, 64, whole["crop"]), pace) == 32 + 4 * 32


def test_crop_reads_its_steps() -> None:
    """Fresh windows of the trained length, of which the last stride is scored."""
    protocol = LossProtocol.choose(trained_length=32, target=64, text="t", windows=1)
    step = Workload.of(32, chunk=16, first=24)
    assert workload_of("crop", protocol, chunk=16) == step.times(4)
    assert workload_of("crop", protocol, chunk=16, reuse=False) == step.times(4) + Workload.of(32, chunk=16)
    assert workload_of("yarn", protocol, chunk=16) == Workload(4, 64, 64 * 65 / 2, 63)


def test_workers_share_the_jobs() -> None:
    """In order, each to the first that is free."""
    assert seconds_at_once([1.0] * 5, 2) == 3.0
    assert seconds_at_once([1.0, 9.0, 1.0, 1.0], 2) == 9.0
    assert seconds_at_once([], 4) == 0.0


@pytest.mark.parametrize("minutes", [0, -1, float("nan")])
def test_minutes_are_a_time(minutes: float) -> None:
    """Above zero."""
    with pytest.raises(RopeError, match="must be a finite number above 0"):
        DoctorSettings(minutes=minutes)
