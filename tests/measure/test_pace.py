"""A model's pace from a short trial: by a clock that is wound by hand, and by the real one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.measure.engine import Workload
from ropewalk.measure.estimate import BOUNDS, Pace, pace_of, pair_over_token, resident_bytes, time_trial
from ropewalk.models.config import Positions
from ropewalk.readers.adapters import reader_of
from tests.diagnosis.models import ROPE, tiny_decoder


@dataclass
class Clockwork:
    """A reader whose readings take what a pace says, on a clock of its own; `drift` is a relative error of each."""

    pace: Pace
    now: float = 0.0
    layers: int = 12
    parameters: int = 12 * 12 * 512**2
    drift: tuple[float, ...] = (0.0,)
    lengths: list[int] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    @property
    def positions(self) -> Positions:
        return Positions((ROPE,) * self.layers, (None,) * self.layers, (None,) * self.layers)

    def cache_bytes(self, tokens: int) -> int:
        return 1000 * tokens

    def window_losses(self, ids: torch.Tensor, *, first: int = 1, chunk: int = 1024, **_: Any) -> Any:
        error = self.drift[len(self.lengths) % len(self.drift)]
        self.lengths.append(len(ids))
        self.now += self.pace.seconds(Workload.of(len(ids), chunk=chunk, first=first)) * (1 + error)
        return np.zeros(len(ids) - first)


def trial(reader: Clockwork, tokens: int = 4096, *, ahead: int = 10**6) -> Pace:
    """The pace that a trial of one worker finds."""
    ids, work = torch.zeros(tokens, dtype=torch.int64), Workload.of(ahead)
    return time_trial(reader, ids, ahead=work, clock=reader.clock).pace  # type: ignore[arg-type]


PACES = {
    "attention takes most": Pace(2e-3, 1e-4, 4e-7, 2e-5),
    "a large vocabulary": Pace(1e-3, 1e-4, 3e-8, 2e-4),
    "a narrow window": Pace(5e-3, 1e-3, 1e-8, 1e-4),
}


@pytest.mark.parametrize("name", PACES)
def test_what_lies_ahead_is_foreseen(name: str) -> None:
    """Many times the trial's length, within a factor of 1.5, and crop's short readings, where each reading errs."""
    reader = Clockwork(PACES[name], drift=(0.04, -0.03, 0.02, -0.04, 0.01))
    found = trial(reader)
    for work in (Workload.of(32_768), Workload.of(8192), Workload.of(1024, first=768).times(12)):
        assert 1 / 1.5 < found.seconds(work) / PACES[name].seconds(work) < 1.5
    assert min(found.per_call, found.per_token, found.per_pair, found.per_score) >= 0


def test_a_trial_is_short() -> None:
    """On a slow model it ends after a few readings, whose growth is then arithmetic's."""
    slow = Clockwork(Pace(0.01, 0.05, 0.05 * 1.3 / (6 * 512), 0.005))
    found = trial(slow)
    assert slow.now < BOUNDS[1] + 3 * 0.06 * 64 * 2  # and the reading that is not counted
    assert max(slow.lengths) <= 128
    assert 1 / 1.5 < found.seconds(Workload.of(32_768)) / slow.pace.seconds(Workload.of(32_768)) < 1.5
    quick = Clockwork(Pace(1e-4, 1e-6, 0.0, 1e-6))
    trial(quick)
    assert max(quick.lengths) == 4096


def test_readings_that_contradict_each_other_give_no_negative_rate() -> None:
    """A longer reading may seem the quicker one on a busy machine."""
    timed = [(Workload.of(256), 1.0), (Workload.of(512), 0.5), (Workload.of(512, first=511), 0.9)]
    found = pace_of(timed, pair_over_token=1e-4, per_call=1e-3)
    assert min(found.per_call, found.per_token, found.per_pair, found.per_score) >= 0
    assert found.seconds(Workload.of(512)) > 0


def test_the_share_of_attention_by_arithmetic() -> None:
    """12 layers of width 512: 4 * 12 * 512 operations a pair, 24 * 12 * 512^2 a token, those of attention slower."""
    reader: Any = Clockwork(PACES["a narrow window"])
    assert pair_over_token(reader) == pytest.approx(1.3 * (4 * 12 * 512) / (24 * 12 * 512**2))


def test_a_real_trial() -> None:
    """Several workers, by the real clock: rates, memory, and the threads as they were."""
    reader = reader_of(tiny_decoder())
    threads = torch.get_num_threads()
    found = time_trial(reader, torch.arange(40) % 50, ahead=Workload.of(1000), workers=2, chunk=16)
    assert found.pace.seconds(Workload.of(40, chunk=16)) > 0
    assert 0 <= found.workspace < 500e6
    assert torch.get_num_threads() == threads


def test_memory_is_read_on_every_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files of /proc cannot be read as text, too."""
    monkeypatch.delattr("pathlib.Path.read_text")
    assert resident_bytes() > 50e6
