"""Ledgers of searches, and single jobs of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ropewalk.ledger import Ledger, cache_folder
from ropewalk.readers.workers import complete


def open_ledger(folder: Path | None, *, kind: str, key: str, resume: bool) -> Ledger:
    """The ledger of this fingerprint in `folder`, with what it holds, or emptied; None keeps results in memory."""
    ledger = Ledger(None if folder is None else folder / key, kind=kind, key=key)
    ledger.resume() if resume else ledger.begin()
    return ledger


def search_folder() -> Path:
    """Where searches keep their ledgers when no folder is named: the user's cache."""
    return cache_folder("search", "")


def result_of(ledger: Ledger, job: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """A job's result: from the ledger, computed now, or waited for where another process has leased it."""
    complete(ledger, [job], str, lambda _: compute())
    return ledger[job]
