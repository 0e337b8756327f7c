"""A comparison from beginning to end: trains and measures in processes of one thread each, and goes on after a stop."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ropewalk.bench.record import append, environment
from ropewalk.comparison.measure import folder_of, held_out, measure
from ropewalk.comparison.settings import CompareSettings
from ropewalk.context.output import write_whole
from ropewalk.errors import RopeError
from ropewalk.models.checkpoint import load
from ropewalk.models.decoder import Decoder
from ropewalk.models.tokenizer import TextTokenizer
from ropewalk.training import Event, train
from ropewalk.training.data import read_text, split_text
from ropewalk.training.interrupt import polite_interrupt
from ropewalk.training.resume import sha256

RECORD = "results.jsonl"
GRACE = 20.0  # seconds for the checkpoints of runs whose pool is broken or whose parent has gone
LOOK = 0.2  # seconds between two looks of a worker at the stop flag and at its parent
GO, STOP, END = 0, 1, 2  # the flag: go on; checkpoint and end; end at once
Tell = Callable[[str, int, int, int, dict[str, Any]], None]
"""Told of (encoding, seed, step, steps, facts) as runs go on; facts hold "done" at the end of each."""


def compare(
    settings: CompareSettings, out: str | Path, *, workers: int | None = None, report: Tell | None = None
) -> Path:
    """Train and measure all that is not in `out` yet; returns the record, `out`/results.jsonl.

    - `out`: a folder; the same settings in it are gone on with, others are refused. Its first line holds the settings
      and the machine, then each run adds its lines at once: `kind` "run" (its convergence, seconds, parameters) and
      "loss" for each length (see `measure`).
    - `workers`: processes, each of one thread (None: one for each core).

    Ctrl-C and SIGTERM let each run write a checkpoint, begin no other, and raise KeyboardInterrupt; a second one ends
    the runs at once. Should this process be killed, its workers checkpoint and end too. Raises `RopeError` for texts
    and settings that cannot be used, and for a folder with another comparison.
    """
    out = Path(out)
    record = out / RECORD
    finished = _begin(settings, out, record)
    waiting = [job for job in settings.jobs if job not in finished]
    if not waiting:
        return record
    tokenizer = _tokenizer(settings, out)
    held_out(settings, TextTokenizer.from_folder(tokenizer.parent))  # what cannot be measured is not trained
    tell = report or (lambda *_: None)
    context = multiprocessing.get_context("spawn")
    events, flag = context.SimpleQueue(), context.RawValue("b", GO)
    workers = min(workers or os.cpu_count() or 1, len(waiting))
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_be_worker, initargs=(events, flag))
    running: dict[Future[list[dict[str, Any]]], tuple[str, int]] = {}
    with polite_interrupt() as interrupted:
        try:
            with _sigint_blocked():  # workers inherit it: a terminal's Ctrl-C is this process's to pass on
                for job in waiting:
                    running[pool.submit(_job, settings, str(out), str(tokenizer), *job)] = job
            while running:
                done, _ = wait(running, timeout=LOOK, return_when=FIRST_COMPLETED)
                _pass_on(events, tell)
                for future in done:
                    encoding, seed = running.pop(future)
                    for line in future.result():
                        append(record, line)
                    tell(encoding, seed, settings.steps, settings.steps, {"done": True})
                if running and interrupted():
                    raise KeyboardInterrupt
        except BrokenProcessPool as error:
            _end_broken(pool, flag)
            if interrupted():  # a SIGTERM that went to all of them
                raise KeyboardInterrupt from None
            raise RopeError(
                "compare: a run's process was killed.",
                facts={"out": str(out)},
                cure="The system may have been short of memory: the same command with --workers 1 goes on.",
            ) from error
        except BaseException:
            _stop(pool, running, events, flag)
            raise
        pool.shutdown()
    return record


def read_record(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The first line of a comparison's record, and the others. Raises `RopeError` for another file."""
    path = Path(path)
    path = path / RECORD if path.is_dir() else path
    try:
        first, *lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if first["kind"] != "comparison" or any(line["kind"] not in ("run", "loss") for line in lines):
            raise _no_record(path, "its lines are of another kind")
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, RopeError):
            raise
        raise _no_record(path, str(error)) from error
    return first, lines


def _no_record(path: Path, error: str) -> RopeError:
    return RopeError(
        "compare: there is no comparison to read.",
        facts={"file": str(path), "error": error},
        cure="Name the --out folder of `ropewalk compare`, or its results.jsonl.",
    )


def _begin(settings: CompareSettings, out: Path, record: Path) -> set[tuple[str, int]]:
    """Write the first line, or read which runs are done; a line cut short by a crash is taken off."""
    for path in (*settings.text, *settings.validation):
        read_text(path)  # raises for what is no text
    digests = [sha256(path) for path in (*settings.text, *settings.validation)]
    asked = {"settings": settings.to_json(), "sha256": digests}
    if not record.exists():
        append(record, {"kind": "comparison", **asked, **environment()})
        return set()
    text = record.read_text(encoding="utf-8")
    if not text.endswith("\n"):
        write_whole(record, text[: text.rfind("\n") + 1])
    first, lines = read_record(record)
    if {name: first.get(name) for name in asked} != asked:
        raise RopeError(
            "compare: the folder holds another comparison.",
            facts={"out": str(out), "its settings": first.get("settings"), "asked": asked["settings"]},
            cure="Name another --out, or ask for the same settings.",
        )
    ends = {(line["encoding"], line["seed"]) for line in lines if line["kind"] == "run"}
    whole = [line for line in lines if (line["encoding"], line["seed"]) in ends]
    if len(whole) < len(lines):  # "run" is a run's last line: without it the others are of a stopped one
        write_whole(record, "".join(json.dumps(line) + "\n" for line in (first, *whole)))
    return ends


def _tokenizer(settings: CompareSettings, out: Path) -> Path:
    """One tokenizer for all runs, trained on the training part of the text."""
    folder = out / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        texts = [read_text(path) for path in settings.text]
        if not settings.validation:
            texts = [split_text(text, 0.1)[0] for text in texts]
        folder.mkdir(parents=True, exist_ok=True)
        TextTokenizer.train(texts, settings.vocab_size).save(folder)
    return folder / "tokenizer.json"


def _stop(pool: ProcessPoolExecutor, running: dict[Future[Any], tuple[str, int]], events: Any, flag: Any) -> None:
    """Let runs in hand checkpoint and end, and no other begin; a second Ctrl-C while it waits ends them at once."""
    flag.value = STOP
    try:
        for future in running:
            future.cancel()
        while wait(running, timeout=LOOK).not_done:
            _pass_on(events, lambda *_: None)  # a full pipe would hold a run up
        pool.shutdown()
    except BaseException:
        flag.value = END
        pool.shutdown()  # a worker that is still being started needs this process's locks
        raise


def _end_broken(pool: ProcessPoolExecutor, flag: Any) -> None:
    """The pool has sent SIGTERM to the other runs: they checkpoint and end; what has not ended in time is ended."""
    late = threading.Timer(GRACE, lambda: setattr(flag, "value", END))
    late.start()
    pool.shutdown()
    late.cancel()


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Hold SIGINT back in this thread and in processes started meanwhile; where there are no signal masks, do nothing.

    Python's own start and imports, in a new process, would end in a traceback. Here it arrives afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Worker:
    """A worker's side: whether it has a run in hand, whether that is in its training loop, whether it must stop."""

    def __init__(self, events: Any, flag: Any) -> None:
        self.events, self.flag = events, flag
        self.busy = self.looping = self.asked = False

    def handle(self, number: int, frame: object) -> None:
        """SIGTERM outside of the training loop's own care for it: leave the run in hand, or end where there is none.

        In the loop it is a second one, and the checkpoint is being written.
        """
        if self.looping:
            return
        if self.busy:
            raise KeyboardInterrupt
        if not self.asked:
            raise SystemExit(130)

    def watch(self) -> None:
        """Until told to stop, or left alone by the parent: then the run in hand gets SIGTERM, and checkpoints."""
        parent = multiprocessing.parent_process()
        pause = threading.Event()
        left = GRACE
        while self.flag.value != END and left > 0:
            orphan = parent is not None and not parent.is_alive()
            cared_for = self.looping and signal.getsignal(signal.SIGTERM) == self.handle  # the loop has had its signal
            if (self.flag.value == STOP or orphan) and self.busy and not self.asked and not cared_for:
                self.asked = True
                signal.raise_signal(signal.SIGTERM)
            if orphan:
                left = left - LOOK if self.busy else 0
            pause.wait(LOOK)
        os._exit(130)


_worker: _Worker


def _be_worker(events: Any, flag: Any) -> None:
    """Make this process a worker: Ctrl-C, blocked since its start, is the parent's; it ends with the parent."""
    global _worker
    _worker = _Worker(events, flag)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _worker.handle)
    threading.Thread(target=_worker.watch, daemon=True).start()


def _job(settings: CompareSettings, out: str, tokenizer: str, encoding: str, seed: int) -> list[dict[str, Any]]:
    """One run in a worker, unless it is to stop; SIGTERM by somebody else ends the worker after the checkpoint."""
    _worker.busy = True
    try:
        if _worker.flag.value != GO:
            raise KeyboardInterrupt
        return _run(settings, out, tokenizer, encoding, seed)
    except KeyboardInterrupt:
        if _worker.flag.value == GO:
            os._exit(130)
        raise
    finally:
        _worker.busy = _worker.looping = False


def _run(settings: CompareSettings, out: str, tokenizer: str, encoding: str, seed: int) -> list[dict[str, Any]]:
    """Train, or go on, then measure: the lines of the record."""
    torch.set_num_threads(1)
    events = _worker.events

    def tell(event: Event) -> None:
        _worker.looping = _worker.looping or event.kind == "start"
        if event.kind in ("start", "log"):
            events.put((encoding, seed, event.step, event.steps, event.facts))

    folder = folder_of(Path(out), encoding, seed)
    train(settings.training(encoding, seed, tokenizer), folder, dtype="float32", report=tell)
    _worker.looping = False
    if _worker.flag.value != GO:  # told at the last update, after which training ends whole
        raise KeyboardInterrupt
    model = load(folder)
    assert isinstance(model, Decoder)
    assert isinstance(model.tokenizer, TextTokenizer)
    log = [json.loads(line) for line in (folder / "training-log.jsonl").read_text().splitlines()]
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


def _pass_on(events: Any, tell: Tell) -> None:
    while not events.empty():
        tell(*events.get())
