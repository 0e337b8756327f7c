"""A comparison from beginning to end: trains and measures in processes of one thread each, and goes on after a stop."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from queue import Empty
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
from ropewalk.training.resume import sha256

RECORD = "results.jsonl"
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

    Ctrl-C lets each run write a checkpoint and raises KeyboardInterrupt. Raises `RopeError` for texts and settings that
    cannot be used, and for a folder with another comparison.
    """
    out = Path(out)
    record = out / RECORD
    finished = _begin(settings, out, record)
    waiting = [job for job in settings.jobs if job not in finished]
    if not waiting:
        return record
    tokenizer = _tokenizer(settings, out)
    held_out(settings, TextTokenizer.from_folder(tokenizer.parent))  # what cannot be measured is not trained
    context = multiprocessing.get_context("spawn")
    tell = report or (lambda *_: None)
    with context.Manager() as manager:
        events = manager.Queue()
        pool = ProcessPoolExecutor(min(workers or os.cpu_count() or 1, len(waiting)), mp_context=context)
        try:
            running = {pool.submit(_job, settings, str(out), str(tokenizer), *job, events): job for job in waiting}
            while running:
                done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                _pass_on(events, tell)
                for future in done:
                    encoding, seed = running.pop(future)
                    for line in future.result():
                        append(record, line)
                    tell(encoding, seed, settings.steps, settings.steps, {"done": True})
        except BrokenProcessPool as error:
            raise RopeError(
                "compare: a run's process was killed.",
                facts={"out": str(out)},
                cure="The system may have been short of memory: the same command with --workers 1 goes on.",
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
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


def _job(
    settings: CompareSettings, out: str, tokenizer: str, encoding: str, seed: int, events: Any
) -> list[dict[str, Any]]:
    """One run in a process of its own: train, or go on, then measure."""
    torch.set_num_threads(1)

    def tell(event: Event) -> None:
        if event.kind in ("start", "log"):
            events.put((encoding, seed, event.step, event.steps, event.facts))

    folder = folder_of(Path(out), encoding, seed)
    train(settings.training(encoding, seed, tokenizer), folder, dtype="float32", report=tell)
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
    while True:
        try:
            tell(*events.get_nowait())
        except Empty:
            return
