"""A worker process of a comparison: train one run, checkpoint it when asked to stop, and measure its loss by length."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load_decoder
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.comparison.record import job_name, open_ledger
from ropewalk.comparison.settings import CompareSettings, scaling_of
from ropewalk.encodings import LearnedAbsolute
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.training import Event, train
from ropewalk.training.data import TokenStream, cut_batch, split_text
from ropewalk.training.objective import token_losses
from ropewalk.training.run_folder import RunFolder

AT_ONCE = 4096  # tokens of one forward


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
