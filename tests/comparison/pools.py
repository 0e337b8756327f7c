"""Comparisons without processes."""

from __future__ import annotations

from concurrent.futures import Future
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from ropewalk.comparison import run


class Refused:
    """A pool that only reports what it was given."""

    def __init__(self, *_, **__):
        pass

    def submit(self, function, settings, out, key, tokenizer, encoding, seed):
        raise RuntimeError(encoding)

    def shutdown(self, **_):
        pass


class _InProcess(Refused):
    """A pool whose worker is this process."""

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


@pytest.fixture
def in_process(monkeypatch):
    """Compare without processes: tests/cli/test_compare.py has one test with them."""
    state = SimpleNamespace(events=SimpleQueue(), flag=SimpleNamespace(value=run.CONTINUE), busy=False, training=False)
    monkeypatch.setattr(run, "_worker", state, raising=False)
    monkeypatch.setattr(run.torch, "set_num_threads", lambda number: None)
    monkeypatch.setattr(run, "ProcessPoolExecutor", _InProcess)
