"""Train and measure for a comparison in processes of one thread, which resume after a stop."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import sha256, write_whole
from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load_decoder
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.comparison.record import (
    RECORD,
    CompareSettings,
    begin_record,
    job_name,
    open_ledger,
    scaling_of,
    write_record,
)
from ropewalk.encodings import LearnedAbsolute
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.models.decoder import Decoder
from ropewalk.processes import current
from ropewalk.training import Event, train
from ropewalk.training.data import TokenStream, cut_batch, split_text
from ropewalk.training.loop import polite_interrupt
from ropewalk.training.objective import token_losses
from ropewalk.training.run_folder import RunFolder

AT_ONCE = 4096  # tokens of one forward
GRACE = 20.0  # seconds for the last checkpoints after the pool is broken or the parent has ended
PAUSE = 0.2  # seconds between two checks of the stop flag and the parent by a worker
CONTINUE, STOP, END = 0, 1, 2  # the stop flag: continue; checkpoint and end; end at once
STOPPED = 130
RETRY = 5.0  # seconds until a run that another process has leased is tried again
Job = tuple[str, int]
RunReport = Callable[[str, int, int, int, dict[str, Any]], None]
"""Called with (encoding, seed, step, steps, facts) while runs train; facts contain "done" at the end of each."""


def compare(
    settings: CompareSettings, out: str | Path, *, workers: int | None = None, report: RunReport | None = None
) -> Path:
    """Train and measure every encoding and seed that `out` does not contain yet.

    **Arguments:**
    - `out`: a folder. A comparison with the same settings in it is resumed. Each finished run is saved in its ledger,
      so several processes may work on one comparison, also on several machines that share the folder.
    - `workers`: processes of one thread each (None: one for each core; under a launcher, of this process's share).
    - `report`: a `RunReport`.

    **Returns:** the record, `out`/results.jsonl. Its first line contains the settings and the machine. The lines of
    each finished run follow: `kind` "loss" for each length (see `measure`), and "run" (convergence, seconds,
    parameters).
    **Raises:** `RopeError` for invalid texts and settings, and for a folder with a different comparison.

    After Ctrl-C or SIGTERM, each run writes a checkpoint, no other begins, and KeyboardInterrupt is raised. A second
    one ends the runs at once. If this process is killed, its workers write checkpoints and end, too.
    """
    out = Path(out)
    comparison = _Comparison(settings, out)
    waiting = comparison.publish()
    if waiting:
        tokenizer = _tokenizer(settings, out)
        held_out(settings, TextTokenizer.from_folder(tokenizer.parent))  # raises before the training
        _Pool(comparison, tokenizer, report or (lambda *_: None)).run(waiting, workers)
    return comparison.record


class _Comparison:
    """The finished runs of a comparison, and its record."""

    def __init__(self, settings: CompareSettings, out: Path) -> None:
        texts = (*settings.text, *settings.validation)
        for path in texts:
            read_text(path)  # raises if it is no text
        asked = {"settings": settings.to_json(), "sha256": [sha256(path) for path in texts]}
        self.settings, self.out, self.record = settings, out, out / RECORD
        self.first_line = begin_record(self.record, asked)
        self.key = fingerprint(json.dumps(asked, sort_keys=True))
        self.ledger: Ledger = open_ledger(out, self.key)

    def publish(self) -> list[Job]:
        """Write the record of all finished runs, in the settings' order; return the jobs that are left."""
        self.ledger.resume()
        finished = [job for job in self.settings.jobs if job_name(*job) in self.ledger]
        if current().is_first:
            write_record(self.record, self.first_line, [self.ledger[job_name(*job)]["lines"] for job in finished])
        return [job for job in self.settings.jobs if job not in finished]


class _Pool:
    """The processes that work on a comparison's runs."""

    def __init__(self, comparison: _Comparison, tokenizer: Path, report: RunReport) -> None:
        self.comparison, self.tokenizer, self.report = comparison, tokenizer, report
        context = multiprocessing.get_context("spawn")
        self.context, self.events, self.flag = context, context.SimpleQueue(), context.RawValue("b", CONTINUE)
        self.running: dict[Future[bool], Job] = {}
        self.elsewhere: list[Job] = []
        """Runs that another process has leased."""

    def run(self, waiting: list[Job], workers: int | None) -> None:
        """Run the jobs to their end; see `compare` for interruptions."""
        workers = min(workers or os.cpu_count() or 1, len(waiting))
        self.pool = ProcessPoolExecutor(
            workers, mp_context=self.context, initializer=start_worker, initargs=(self.events, self.flag)
        )
        with polite_interrupt() as interrupted:
            try:
                with _sigint_blocked():  # workers inherit it: only this process handles a terminal's Ctrl-C
                    self._submit(waiting)
                retried = time.monotonic()
                while self.running or self.elsewhere:
                    self._collect()
                    if interrupted() and (self.running or self.elsewhere):
                        raise KeyboardInterrupt
                    if self.elsewhere and time.monotonic() - retried > RETRY:
                        self._retry()
                        retried = time.monotonic()
            except BrokenProcessPool as error:
                self._end_broken()
                if interrupted():  # a SIGTERM that went to all of them
                    raise KeyboardInterrupt from None
                raise RopeError(
                    "compare: a run's process was killed.",
                    facts={"out": str(self.comparison.out)},
                    cure="The system may be short of memory. To resume, rerun the command with --workers 1.",
                ) from error
            except BaseException:
                self._stop()
                raise
            self.pool.shutdown()

    def _submit(self, jobs: list[Job]) -> None:
        comparison = self.comparison
        given = comparison.settings, str(comparison.out), comparison.key, str(self.tokenizer)
        for job in jobs:
            self.running[self.pool.submit(run_job, *given, *job)] = job

    def _collect(self) -> None:
        """Wait a moment for runs to end; forward their reports, and publish those that have ended."""
        if not self.running:
            time.sleep(PAUSE)
        done, _ = wait(self.running, timeout=PAUSE, return_when=FIRST_COMPLETED)
        self._forward(self.report)
        for future in done:
            job = self.running.pop(future)
            if future.result():
                self._publish(job)
            else:
                self.elsewhere.append(job)

    def _retry(self) -> None:
        """Publish the runs that another process has finished, and submit the others again."""
        left = self.comparison.publish()
        jobs, self.elsewhere = self.elsewhere, []
        for job in jobs:
            if job not in left:
                self._publish(job)
        self._submit([job for job in jobs if job in left])

    def _publish(self, job: Job) -> None:
        self.comparison.publish()
        steps = self.comparison.settings.steps
        self.report(*job, steps, steps, {"done": True})

    def _forward(self, report: RunReport) -> None:
        while not self.events.empty():
            report(*self.events.get())

    def _stop(self) -> None:
        """Let current runs write checkpoints and end, and begin no other; a second Ctrl-C ends them at once."""
        self.flag.value = STOP
        try:
            for future in self.running:
                future.cancel()
            while wait(self.running, timeout=PAUSE).not_done:
                self._forward(lambda *_: None)  # a full pipe would block a run
            self.pool.shutdown()
        except BaseException:
            self.flag.value = END
            self.pool.shutdown()  # a worker that is still being started needs this process's locks
            raise

    def _end_broken(self) -> None:
        """Wait for the runs, to which the broken pool has sent SIGTERM; end those that take longer than `GRACE`."""
        late = threading.Timer(GRACE, lambda: setattr(self.flag, "value", END))
        late.start()
        self.pool.shutdown()
        late.cancel()


def packaged_text(out: Path) -> Path:
    """Write the packaged Moby-Dick into a comparison's folder, if it is not there, and return its path."""
    path = out / "moby_dick.txt"
    if not path.exists():
        write_whole(path, read_text(None)[1])
    return path


def _tokenizer(settings: CompareSettings, out: Path) -> Path:
    """Train one tokenizer for all runs on the training part of the text, if there is none; return its path."""
    folder = out / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        texts = [read_text(path)[1] for path in settings.text]
        if not settings.validation:
            texts = [split_text(text, 0.1)[0] for text in texts]
        folder.mkdir(parents=True, exist_ok=True)
        TextTokenizer.train(texts, settings.vocab_size).save(folder)
    return folder / "tokenizer.json"


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """Block SIGINT in this thread and in processes that it starts; do nothing on systems without signal masks.

    SIGINT during the start and the imports of a new process would print a traceback. Blocked, it arrives afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Measuring


def held_out(settings: CompareSettings, tokenizer: TextTokenizer) -> TokenStream:
    """Return the tokens to measure on: evenly spread windows of the longest length, each within one document.

    Raises `RopeError` if every text is shorter.
    """
    if settings.validation:
        texts = [read_text(path)[1] for path in settings.validation]
    else:
        texts = [split_text(read_text(path)[1], 0.1)[1] for path in settings.text]
    longest = settings.lengths[-1]
    windows = []
    for text in texts:
        ids = torch.tensor(tokenizer.encode(text), dtype=torch.int64)
        windows += [ids[start : start + longest + 1] for start in range(0, len(ids) - longest, longest)]
    if not windows:
        raise RopeError(
            "compare: no text to measure on is as long as the longest window.",
            facts={"longest + 1": longest + 1, "texts": len(texts)},
            cure="Pass longer --validation texts, or smaller --multiples.",
        )
    count = min(len(windows), settings.tokens // longest)
    chosen = [windows[i * len(windows) // count] for i in range(count)]
    return TokenStream(torch.cat(chosen), torch.arange(count) * (longest + 1))


def losses_at(model: Decoder, stream: TokenStream, length: int, longest: int) -> list[float]:
    """Return the mean loss (nats per token) at each position of windows of `length`, over all tokens of the stream.

    All lengths have the same targets, because windows of the longest length are cut into shorter ones.
    """
    starts = [int(begin) + cut for begin in stream.starts for cut in range(0, longest, length)]
    total = torch.zeros(length, dtype=torch.float64)
    rows = max(1, AT_ONCE // length)
    for first in range(0, len(starts), rows):
        chosen = torch.tensor(starts[first : first + rows])
        batch = cut_batch(stream, chosen[:, None] + torch.arange(length + 1))
        batch = replace(batch, document_ids=None)  # windows lie within one document each
        total += token_losses(model, batch).cpu().double().sum(0)
    return (total / len(starts)).tolist()


def measure(model: Decoder, stream: TokenStream, settings: CompareSettings) -> list[dict[str, Any]]:
    """Return one record for each length, and for each scaling of a rope beyond the trained length.

    `loss` is the mean over all positions, `blocks` the mean of each block of `seq_len` positions, in nats per token;
    both are null if the encoding has no value.
    """
    model.eval()
    records = []
    for scaling in (None, *(settings.scalings if model.config.rope is not None else ())):
        for length in settings.lengths:
            if scaling is not None and length <= settings.seq_len:
                continue
            by_position = None if _has_no_value(model, length) else _curve(model, stream, settings, scaling, length)
            blocks = None if by_position is None else _blocks(by_position, settings.seq_len)
            loss = None if by_position is None else sum(by_position) / len(by_position)
            records.append({"kind": "loss", "scaling": scaling, "length": length, "loss": loss, "blocks": blocks})
    return records


def _curve(
    model: Decoder, stream: TokenStream, settings: CompareSettings, scaling: str | None, length: int
) -> list[float]:
    if scaling is not None:
        rope = model.config.ropes[0]
        assert rope is not None
        rule = scaling_of(scaling, length / settings.seq_len, settings.seq_len)
        model = model.with_positions(rope=replace(rope, scaling=rule))
    return losses_at(model, stream, length, settings.lengths[-1])


def _has_no_value(model: Decoder, length: int) -> bool:
    """Return whether the length is beyond the end of a learned table."""
    encoding = model.config.encoding
    return isinstance(encoding, LearnedAbsolute) and length > encoding.max_position_embeddings


def _blocks(by_position: Sequence[float], size: int) -> list[float]:
    pieces = [by_position[start : start + size] for start in range(0, len(by_position), size)]
    return [sum(piece) / len(piece) for piece in pieces]


def folder_of(out: Path, encoding: str, seed: int) -> Path:
    """Return the folder of one encoding's run of one seed."""
    return out / "runs" / f"{encoding}-{seed}"


# A worker process


class _Worker:
    """The state of a worker: whether it has a run, and whether the run is in its training loop or interrupted."""

    def __init__(self, events: Any, flag: Any) -> None:
        self.events, self.flag = events, flag
        self.busy = self.training = self.signalled = False

    def handle(self, number: int, frame: object) -> None:
        """Handle SIGTERM outside the training loop: interrupt the current run, or end the process if there is none.

        In the loop it is the second signal, and the checkpoint is being written.
        """
        if self.busy and not self.training:
            raise KeyboardInterrupt
        if not self.busy:
            raise SystemExit(STOPPED)

    def watch(self) -> None:
        """Wait for the stop flag or the parent's end, then interrupt the current run, which writes a checkpoint."""
        parent = multiprocessing.parent_process()
        pause = threading.Event()
        left = GRACE
        while self.flag.value != END and left > 0:
            orphan = parent is not None and not parent.is_alive()
            has_signal = self.training and signal.getsignal(signal.SIGTERM) == self.handle  # the loop has received it
            if (self.flag.value == STOP or orphan) and self.busy and not self.signalled and not has_signal:
                self.signalled = True
                signal.raise_signal(signal.SIGTERM)
            if orphan:
                left = left - PAUSE if self.busy else 0
            pause.wait(PAUSE)
        os._exit(STOPPED)


_worker: _Worker


def start_worker(events: Any, flag: Any) -> None:
    """Make this process a worker that ignores Ctrl-C and ends with its parent."""
    global _worker
    _worker = _Worker(events, flag)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _worker.handle)
    threading.Thread(target=_worker.watch, daemon=True).start()


def run_job(settings: CompareSettings, out: str, key: str, tokenizer: str, encoding: str, seed: int) -> bool:
    """Make one run in a worker and add it to the ledger; return False if another process has leased it.

    If the stop flag is set, the run writes a checkpoint and raises KeyboardInterrupt; after any other SIGTERM the
    worker ends.
    """
    _worker.busy = True
    try:
        if _worker.flag.value != CONTINUE:
            raise KeyboardInterrupt
        ledger, job = open_ledger(Path(out), key), job_name(encoding, seed)
        if job not in ledger:
            ledger.add(job, {"lines": _train_and_measure(settings, out, tokenizer, encoding, seed)})
        return True
    except KeyboardInterrupt:
        if _worker.flag.value == CONTINUE:
            os._exit(STOPPED)
        raise
    finally:
        _worker.busy = _worker.training = False


def _train_and_measure(
    settings: CompareSettings, out: str, tokenizer: str, encoding: str, seed: int
) -> list[dict[str, Any]]:
    """Train, or resume, then measure; return the lines of the record."""
    torch.set_num_threads(1)
    events = _worker.events

    def report(event: Event) -> None:
        _worker.training = _worker.training or event.kind == "start"
        if event.kind in ("start", "log"):
            events.put((encoding, seed, event.step, event.steps, event.facts))

    folder = folder_of(Path(out), encoding, seed)
    train(settings.training(encoding, seed, tokenizer), folder, dtype="float32", report=report)
    _worker.training = False
    if _worker.flag.value != CONTINUE:  # the stop came at the last update
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
