"""A comparison from beginning to end: trains and measures in processes of one thread, and resumes after a stop."""

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
GRACE = 20.0  # seconds for the checkpoints of runs whose pool is broken or whose parent has gone
PAUSE = 0.2  # seconds between two looks of a worker at the stop flag and at its parent
CONTINUE, STOP, END = 0, 1, 2  # the stop flag: continue; checkpoint and end; end at once
STOPPED = 130
RETRY = 5.0  # seconds until a run that another process has is tried again
Job = tuple[str, int]
RunReport = Callable[[str, int, int, int, dict[str, Any]], None]
"""Called with (encoding, seed, step, steps, facts) while runs train; facts hold "done" at the end of each."""


def compare(
    settings: CompareSettings, out: str | Path, *, workers: int | None = None, report: RunReport | None = None
) -> Path:
    """Train and measure all that is not in `out` yet; returns the record, `out`/results.jsonl.

    - `out`: a folder; a comparison with the same settings in it is continued, another is refused. Each finished run is
      kept in its ledger, so several processes, on several machines that share the folder, may work on one comparison.
      The record's first line holds the settings and the machine; then come the lines of each finished run: `kind`
      "loss" for each length (see `measure`), and "run" (its convergence, seconds, parameters).
    - `workers`: processes, each of one thread (None: one for each core; under a launcher, of this process's share).

    Ctrl-C and SIGTERM let each run write a checkpoint, begin no other, and raise KeyboardInterrupt; a second one ends
    the runs at once. Should this process be killed, its workers checkpoint and end too. Raises `RopeError` for texts
    and settings that cannot be used, and for a folder with another comparison.
    """
    out = Path(out)
    comparison = _Comparison(settings, out)
    waiting = comparison.publish()
    if waiting:
        tokenizer = Path(current().first(f"compare/{comparison.key}/tokenizer", lambda: str(_tokenizer(settings, out))))
        held_out(settings, TextTokenizer.from_folder(tokenizer.parent))  # what cannot be measured is not trained
        _Pool(comparison, tokenizer, report or (lambda *_: None)).run(waiting, workers)
    return comparison.record


class _Comparison:
    """What is finished of a comparison, and its record."""

    def __init__(self, settings: CompareSettings, out: Path) -> None:
        texts = (*settings.text, *settings.validation)
        for path in texts:
            read_text(path)  # raises for what is no text
        asked = {"settings": settings.to_json(), "sha256": [sha256(path) for path in texts]}
        self.settings, self.out, self.record = settings, out, out / RECORD
        self.first_line = begin_record(self.record, asked)
        self.key = fingerprint(json.dumps(asked, sort_keys=True))
        self.ledger: Ledger = open_ledger(out, self.key)
        if not self.ledger.is_shared:
            raise RopeError(
                "compare: the processes do not see one folder.",
                facts={"out": str(out), "processes": current().ranks},
                cure="Name an --out on a file system that all machines share: runs are continued from its checkpoints.",
            )

    def publish(self) -> list[Job]:
        """Write the record of all finished runs, in the settings' order; returns the jobs that are left."""
        self.ledger.refresh()
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
        """Run the jobs to their end; see `compare` for what ends them early."""
        workers = min(workers or current().cores(), len(waiting))
        self.pool = ProcessPoolExecutor(
            workers, mp_context=self.context, initializer=start_worker, initargs=(self.events, self.flag)
        )
        with polite_interrupt() as interrupted:
            try:
                with _sigint_blocked():  # workers inherit it: a terminal's Ctrl-C is this process's to pass on
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
                    cure="The system may have been short of memory: continue by the same command with --workers 1.",
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
        """Wait a moment for runs to end; pass on what they report, and publish those that have ended."""
        if not self.running:
            time.sleep(PAUSE)
        done, _ = wait(self.running, timeout=PAUSE, return_when=FIRST_COMPLETED)
        self._pass_on(self.report)
        for future in done:
            job = self.running.pop(future)
            if future.result():
                self._publish(job)
            else:
                self.elsewhere.append(job)

    def _retry(self) -> None:
        """Publish what another process has finished meanwhile, and try the others again: it may have stopped."""
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

    def _pass_on(self, report: RunReport) -> None:
        while not self.events.empty():
            report(*self.events.get())

    def _stop(self) -> None:
        """Let runs in hand checkpoint and end, and no other begin; a second Ctrl-C meanwhile ends them at once."""
        self.flag.value = STOP
        try:
            for future in self.running:
                future.cancel()
            while wait(self.running, timeout=PAUSE).not_done:
                self._pass_on(lambda *_: None)  # a full pipe would hold a run up
            self.pool.shutdown()
        except BaseException:
            self.flag.value = END
            self.pool.shutdown()  # a worker that is still being started needs this process's locks
            raise

    def _end_broken(self) -> None:
        """The pool has sent SIGTERM to the other runs: they checkpoint and end; what has not ended in time is ended."""
        late = threading.Timer(GRACE, lambda: setattr(self.flag, "value", END))
        late.start()
        self.pool.shutdown()
        late.cancel()


def packaged_text(out: Path) -> Path:
    """The packaged Moby Dick, as a file of a comparison's folder."""
    path = out / "moby_dick.txt"
    if not path.exists():
        write_whole(path, read_text(None)[1])
    return path


def _tokenizer(settings: CompareSettings, out: Path) -> Path:
    """One tokenizer for all runs, trained on the training part of the text."""
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


# Measuring


def held_out(settings: CompareSettings, tokenizer: TextTokenizer) -> TokenStream:
    """The tokens to measure on: whole windows of the longest length, each within one document, evenly spread.

    Raises `RopeError` where no text holds one.
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
    """Mean loss (nats per token) at each position of fresh windows of `length`, over all tokens of the stream.

    Every length reads the same targets: windows of the longest length are cut into fresh ones.
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
    """One record for each length, and for each scaling of a rope beyond the trained length.

    `loss` is the mean over all positions, `blocks` that of each stretch of `seq_len` positions, nats per token; both
    null where the encoding has no value.
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
    """A learned table ends at the trained length."""
    encoding = model.config.encoding
    return isinstance(encoding, LearnedAbsolute) and length > encoding.max_position_embeddings


def _blocks(by_position: Sequence[float], size: int) -> list[float]:
    pieces = [by_position[start : start + size] for start in range(0, len(by_position), size)]
    return [sum(piece) / len(piece) for piece in pieces]


def folder_of(out: Path, encoding: str, seed: int) -> Path:
    """Where one encoding's run of one seed lies."""
    return out / "runs" / f"{encoding}-{seed}"


# A worker process


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
