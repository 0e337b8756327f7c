"""A ledger's results and leases in the store of a launch, for processes that see no common folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

FREE = ""  # what a lease that nobody holds contains: what the store takes for a key that is not there, too
STALE_SECONDS = 120.0  # a writer whose pulse has stood still for so long is gone
PULSE_SECONDS = 20.0


class Exchange:
    """One ledger's part of a store: lines that any process adds and all read, and leases.

    - `store`: a `torch.distributed.Store`. `name`: the ledger's. `writer`: this process's, unlike every other's.

    A process shows that it lives by a number that it raises; one whose number has not changed for two minutes has lost
    its leases.
    """

    def __init__(self, store: Any, name: str, writer: str) -> None:
        self.store, self.name, self.writer = store, name, writer
        self._next, self._missing = 0, set[int]()
        self._pulses: dict[str, tuple[int, float]] = {}
        self._beating: threading.Thread | None = None

    def publish(self, line: str) -> None:
        """Add a line for all to read."""
        number = int(self.store.add(f"{self.name}/count", 1)) - 1
        self.store.set(f"{self.name}/line/{number}", line)

    def news(self) -> list[str]:
        """The lines that were added since the last call, this process's own among them.

        A line whose number was taken and that is not written yet is looked for again: its writer may be gone.
        """
        count = int(self.store.add(f"{self.name}/count", 0))
        self._missing |= set(range(self._next, count))
        self._next = count
        there = sorted(number for number in self._missing if self.store.check([f"{self.name}/line/{number}"]))
        self._missing -= set(there)
        return [self.store.get(f"{self.name}/line/{number}").decode() for number in there]

    @contextmanager
    def lease(self, job: str) -> Iterator[bool]:
        """Claim a job for the time of the block: True if it is this process's, False if another one has it."""
        if self._beating is None:
            self._beat()
            self._beating = threading.Thread(target=self._keep_beating, daemon=True)
            self._beating.start()
        key = f"{self.name}/lease/{job}"
        holder = self.store.compare_set(key, FREE, self.writer).decode()
        if holder != self.writer and self._is_gone(holder):
            holder = self.store.compare_set(key, holder, self.writer).decode()
        if holder != self.writer:
            yield False
            return
        try:
            yield True
        finally:
            self.store.compare_set(key, self.writer, FREE)

    def _is_gone(self, writer: str) -> bool:
        """Whether another process's pulse has stood still, by this process's own clock."""
        pulse, now = int(self.store.add(f"pulse/{writer}", 0)), time.monotonic()
        seen = self._pulses.get(writer)
        if seen is None or seen[0] != pulse:
            self._pulses[writer] = pulse, now
            return False
        return now - seen[1] > STALE_SECONDS

    def _beat(self) -> None:
        self.store.add(f"pulse/{self.writer}", 1)

    def _keep_beating(self) -> None:
        while True:
            time.sleep(PULSE_SECONDS)
            try:
                self._beat()
            except RuntimeError:
                return  # the store has ended, and with it the launch
