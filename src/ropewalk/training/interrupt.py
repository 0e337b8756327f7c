"""Ctrl-C that lets the step in hand end whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def polite_interrupt() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM set a flag, so that the step in hand ends whole; a second one acts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        received.append(number)
        restore()

    for number in before:
        signal.signal(number, handle)
    try:
        yield lambda: bool(received)
    finally:
        restore()
