"""A comparison from beginning to end: trains and measures in processes of one thread, and continues after a stop."""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import sha256, write_whole
from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.comparison.record import RECORD, begin_record, job_name, open_ledger, write_record
from ropewalk.comparison.settings import CompareSettings
from ropewalk.comparison.worker import CONTINUE, END, GRACE, PAUSE, STOP, held_out, run_job, start_worker
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.processes import current
from ropewalk.training.data import split_text
from ropewalk.training.loop import polite_interrupt

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
