"""Several jobs at a time share the cores, and the last one has all of them."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from ropewalk.diagnosis.ledger import Ledger
from ropewalk.diagnosis.workers import WorkersProgress, complete


def test_the_last_job_has_every_core(tmp_path: Path) -> None:
    """Two workers on four cores have two each; once one has no job left, the other takes all at its next step."""
    ledger = Ledger(tmp_path / "ledger", kind="test", key="none")
    ledger.begin()
    progress = WorkersProgress(None, threading.Event(), pieces=2)
    both, one_left = threading.Barrier(2, timeout=20), threading.Event()
    threads: dict[str, list[int]] = {"short": [], "long": []}

    def measure(job: str) -> dict[str, int]:
        both.wait()
        progress.advance(1)
        threads[job].append(torch.get_num_threads())
        both.wait()
        if job == "long":
            for _ in range(2000):  # until the other worker has ended its job
                progress.advance(1)
                if torch.get_num_threads() == 4:
                    break
                one_left.wait(0.01)
            threads[job].append(torch.get_num_threads())
        return {}

    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        complete(ledger, ["short", "long"], str, measure, workers=2)
        assert torch.get_num_threads() == 4
    finally:
        torch.set_num_threads(before)
    assert threads == {"short": [2], "long": [2, 4]}


def test_one_worker_keeps_every_core(tmp_path: Path) -> None:
    """Jobs one after the other compute with what torch is set to."""
    ledger = Ledger(tmp_path / "ledger", kind="test", key="none")
    ledger.begin()
    seen = []
    complete(ledger, ["one", "two"], str, lambda job: seen.append(torch.get_num_threads()) or {}, workers=1)
    assert seen == [torch.get_num_threads()] * 2
