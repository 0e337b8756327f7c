"""Runs of a tiny model on random tokens, their ledger, and a progress that keeps what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from ropewalk.ledger import Ledger
from ropewalk.measure.engine import NOTHING, Job, Workload
from ropewalk.measure.losses import Measurement, gather, run
from ropewalk.measure.plan import KIND, LossProtocol, Plan, plan, take_windows
from ropewalk.methods import METHODS
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.reader import Reader
from tests.diagnosis.models import random_ids

EXTENSIONS = [name for name, method in METHODS.items() if method.scales_frequencies and not method.on_request]
IN_ATTENTION = [name for name, method in METHODS.items() if method.in_attention]


class Recorder:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.tokens: list[int] = []
        self.expected = 0

    def begin(self, description: str, tokens: int) -> None:
        """Keep the step."""
        self.begun.append(description)
        self.expected += tokens

    def advance(self, tokens: int) -> None:
        """Keep the tokens."""
        self.tokens.append(tokens)


def ledger_at(folder: Path | None, key: str = "key", *, resume: bool = True) -> Ledger:
    """A ledger of losses, ready to be added to."""
    ledger = Ledger(folder, kind=KIND, key=key)
    _ = ledger.resume() if resume else ledger.begin()
    return ledger


def loss_job(method: str, window: int, tokens: int, work: Workload = NOTHING) -> Job:
    """A job of a loss run that nobody measures."""
    return Job(method=method, window=window, key=f"{method}/{window}", description=method, tokens=tokens, work=work)


def planned(model: Any, of: LossProtocol, methods: list[str] | None = None) -> Any:
    """The plan of a run of this model."""
    return plan(reader_of(model), of, methods)


def protocol(**changes: int) -> LossProtocol:
    """16 trained tokens, 64 wanted, two windows."""
    return LossProtocol.choose(**{"trained_length": 16, "windows": 2, **changes}, text="random")  # type: ignore[arg-type]


def measure(
    model: Any, of: LossProtocol, methods: list[str] | None = None, ledger: Ledger | None = None
) -> Measurement:
    """A whole run on random tokens."""
    windows = take_windows(random_ids(200).tolist(), of)
    return ran(reader_of(model), windows, planned(model, of, methods), ledger_at(None) if ledger is None else ledger)


def ran(reader: Reader, windows: Tensor, work: Plan, ledger: Ledger, **options: Any) -> Measurement:
    """What a run of a plan measured."""
    run(reader, windows, work, ledger, **options)
    return gather(work, ledger)
