"""How long a run has taken, over all its starts."""

from __future__ import annotations

import time


class Clock:
    """Seconds on the wall, and of the processors (all threads of this process), which other work does not lengthen."""

    def __init__(self, seconds: float = 0.0, cpu_seconds: float = 0.0) -> None:
        self._before = seconds, cpu_seconds
        self._started: tuple[float, float] | None = None

    def begin(self) -> None:
        """Count from now on."""
        self._started = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """`seconds` and `cpu_seconds` until now, those of earlier starts included."""
        wall, cpu = self._before
        if self._started is not None:
            wall, cpu = wall + time.perf_counter() - self._started[0], cpu + time.process_time() - self._started[1]
        return {"seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}
