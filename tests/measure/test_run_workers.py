"""Several workers: the same numbers, stopped together, and never more than fit."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.measure.engine import Job
from ropewalk.measure.losses import run
from ropewalk.measure.plan import take_windows
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.loading import as_transformers
from ropewalk.readers.transformers import TransformersReader
from ropewalk.readers.workers import fitting_workers
from tests.diagnosis.models import random_ids, tiny_decoder
from tests.diagnosis.small_runs import Recorder, ledger_at, planned, protocol, ran


@pytest.mark.parametrize("workers", [2, 5])
def test_several_workers_find_the_same_numbers(workers: int) -> None:
    """All cores at once change nothing, and every job is begun and every token told once."""
    model, of = tiny_decoder(), protocol(windows=3)
    windows = take_windows(random_ids(300).tolist(), of)
    shown, reader, work = Recorder(), reader_of(model), planned(model, of, ["all"])
    found = ran(reader, windows, work, ledger_at(None), workers=workers, progress=shown)
    alone = ran(reader, windows, work, ledger_at(None))
    assert found == dataclasses.replace(
        alone,
        results={
            name: tuple(
                dataclasses.replace(theirs, seconds=ours.seconds, peak_rss_bytes=ours.peak_rss_bytes)
                for theirs, ours in zip(alone.results[name], found.results[name], strict=True)
            )
            for name in found.results
        },
    )
    jobs: tuple[Job, ...] = work.due(ledger_at(None))
    steps = [f"{job.method}, window {job.window + 1}" for job in jobs]
    assert sorted(step.split("] ")[1] for step in shown.begun) == sorted(steps)
    assert sum(shown.tokens) >= sum(job.tokens for job in jobs) == shown.expected
    with pytest.raises(RopeError, match="workers"):
        run(reader, windows, planned(model, of, ["pi"]), ledger_at(None), workers=0)


class Interrupted(TransformersReader):
    """A reader on which Ctrl-C falls at the sixth window."""

    calls = itertools.count()

    def window_losses(self, *args: Any, **kwargs: Any) -> Any:
        """As ever, but for one."""
        if next(self.calls) == 5:
            raise KeyboardInterrupt
        return super().window_losses(*args, **kwargs)


def test_several_workers_stop_together(tmp_path: Path) -> None:
    """An interrupt ends all of them; what was ready is kept, and the rest is due."""
    model, of = tiny_decoder(), protocol(windows=3)
    windows, work = take_windows(random_ids(300).tolist(), of), planned(tiny_decoder(), of, ["pi,yarn,ntk"])
    ledger = ledger_at(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(Interrupted(*as_transformers(model)), windows, work, ledger, workers=2)
    assert 4 <= len(ledger) < 12
    assert len(work.due(ledger)) == 12 - len(ledger)


def test_workers_fit_cores_jobs_and_memory() -> None:
    """One core, one job, or a cache beyond two gigabytes leaves one worker."""
    model = tiny_decoder()
    assert fitting_workers(reader_of(model), 64, 100) == torch.get_num_threads()
    assert fitting_workers(reader_of(model), 64, 1) == 1
    assert fitting_workers(reader_of(model), 2**25, 100) == 1


def test_threads_are_as_before_after_several_workers() -> None:
    """Also those that begin later."""
    model, of = tiny_decoder(), protocol(windows=2)
    windows, before = take_windows(random_ids(200).tolist(), of), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        run(reader_of(model), windows, planned(model, of, ["pi"]), ledger_at(None), workers=3)
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (torch.get_num_threads(), later) == (3, [3])
    finally:
        torch.set_num_threads(before)
