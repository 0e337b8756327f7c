"""A worker process of a comparison: one run at a time, which it checkpoints when it must stop or its parent is gone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import torch

from ropewalk.checkpoints.load import load_decoder
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.comparison.measure import folder_of, held_out, measure
from ropewalk.comparison.record import job_name, open_ledger
from ropewalk.comparison.settings import CompareSettings
from ropewalk.training import Event, train
from ropewalk.training.run_folder import RunFolder

GRACE = 20.0  # seconds for the checkpoints of runs whose pool is broken or whose parent has gone
PAUSE = 0.2  # seconds between two looks of a worker at the stop flag and at its parent
CONTINUE, STOP, END = 0, 1, 2  # the stop flag: continue; checkpoint and end; end at once
STOPPED = 130


class _Worker:
    """A worker's state: whether it has a run in hand, whether that is in its training loop, whether it must stop."""

    def __init__(self, events: Any, flag: Any) -> None:
        self.events, self.flag = events, flag
        self.busy = self.training = self.signalled = False

    def handle(self, number: int, frame: object) -> None:
        """SIGTERM outside of the training loop's own care for it: leave the run in hand, or end where there is none.

        In the loop it is a second one, and the checkpoint is being written.
        """
        if self.busy and not self.training:
            raise KeyboardInterrupt
        if not self.busy:
            raise SystemExit(STOPPED)

    def watch(self) -> None:
        """Wait for the stop flag or the parent's end: then the run in hand gets SIGTERM, and checkpoints."""
        parent = multiprocessing.parent_process()
        pause = threading.Event()
        left = GRACE
        while self.flag.value != END and left > 0:
            orphan = parent is not None and not parent.is_alive()
            has_signal = self.training and signal.getsignal(signal.SIGTERM) == self.handle  # the loop has had it
            if (self.flag.value == STOP or orphan) and self.busy and not self.signalled and not has_signal:
                self.signalled = True
                signal.raise_signal(signal.SIGTERM)
            if orphan:
                left = left - PAUSE if self.busy else 0
            pause.wait(PAUSE)
        os._exit(STOPPED)


_worker: _Worker


def start_worker(events: Any, flag: Any) -> None:
    """Make this process a worker: Ctrl-C, blocked since its start, is the parent's; it ends with the parent."""
    global _worker
    _worker = _Worker(events, flag)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _worker.handle)
    threading.Thread(target=_worker.watch, daemon=True).start()


def run_job(settings: CompareSettings, out: str, key: str, tokenizer: str, encoding: str, seed: int) -> bool:
    """One run in a worker, put into the ledger; False where another process has it.

    Told to stop, it checkpoints and raises KeyboardInterrupt; SIGTERM by somebody else ends the worker after that.
    """
    _worker.busy = True
    try:
        if _worker.flag.value != CONTINUE:
            raise KeyboardInterrupt
        ledger, job = open_ledger(Path(out), key), job_name(encoding, seed)
        with ledger.lease(job) as leased:
            ledger.refresh()  # it may have been finished elsewhere, just before it was free
            if leased and job not in ledger:
                ledger.add(job, {"lines": _train_and_measure(settings, out, tokenizer, encoding, seed)})
        return leased
    except KeyboardInterrupt:
        if _worker.flag.value == CONTINUE:
            os._exit(STOPPED)
        raise
    finally:
        _worker.busy = _worker.training = False


def _train_and_measure(
    settings: CompareSettings, out: str, tokenizer: str, encoding: str, seed: int
) -> list[dict[str, Any]]:
    """Train, or continue, then measure: the lines of the record."""
    torch.set_num_threads(1)
    events = _worker.events

    def report(event: Event) -> None:
        _worker.training = _worker.training or event.kind == "start"
        if event.kind in ("start", "log"):
            events.put((encoding, seed, event.step, event.steps, event.facts))

    folder = folder_of(Path(out), encoding, seed)
    train(settings.training(encoding, seed, tokenizer), folder, dtype="float32", report=report)
    _worker.training = False
    if _worker.flag.value != CONTINUE:  # it came at the last update, after which training ends whole
        raise KeyboardInterrupt
    model = load_decoder(folder)
    assert isinstance(model.tokenizer, TextTokenizer)
    log = RunFolder(folder).read_log()
    events.put((encoding, seed, settings.steps, settings.steps, {"measuring": True}))
    lines = measure(model, held_out(settings, model.tokenizer), settings)
    lines.append(
        {
            "kind": "run",
            "parameters": model.num_parameters(),
            "seconds": log[-1]["seconds"],
            "curve": [[line["tokens"], line["validation_loss"]] for line in log if "validation_loss" in line],
        }
    )
    return [{"encoding": encoding, "seed": seed, **line} for line in lines]
