"""What plain has read of each window, for the methods that read on from there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ropewalk.diagnosis.plan import Job
from ropewalk.readers.beginning import Beginning
from ropewalk.readers.reader import Advance, Losses, ReadingOn

KEPT_BYTES = 2**30  # of all beginnings that wait at one time; what does not fit is read again


class Beginnings:
    """Plain's beginnings of windows, kept from when plain has read them until no job that is due wants them.

    A method that equals plain in a window's first tokens takes these from plain in any case, from here or by reading
    them again: so its numbers do not depend on what was kept, nor on what a run was resumed from.

    - `plain`: the reader under plain. `shared`: for each method how many tokens it takes over; 0 for most.
    - `due`: the jobs of the run. `chunk`: tokens of one forward.
    """

    def __init__(self, plain: ReadingOn, shared: Mapping[str, int], due: Sequence[Job], *, chunk: int) -> None:
        self.plain, self.shared, self.chunk = plain, shared, chunk
        self._wanted: dict[int, list[int]] = {}
        for job in due:
            if shared[job.method]:
                self._wanted.setdefault(job.window, []).append(shared[job.method])
        self._kept: dict[int, Beginning] = {}
        self._lock = threading.Lock()

    def read_plain(self, ids: Tensor, window: int, *, advance: Advance) -> Losses:
        """Plain's losses of a window, its beginning kept where others want it and there is room."""
        keep = max(self._wanted.get(window, ()), default=0)
        if not keep or self.plain.cache_bytes(keep) > KEPT_BYTES:
            return self.plain.window_losses(ids, chunk=self.chunk, advance=advance)

        def add(beginning: Beginning) -> None:
            with self._lock:
                if not self._wanted[window]:
                    return  # they came before it and have read for themselves
                self._kept[window] = beginning
                while sum(kept.nbytes for kept in self._kept.values()) > KEPT_BYTES:
                    self._kept.pop(next(iter(self._kept)))  # the oldest: jobs go window by window

        return self.plain.reading_on(ids, keep=keep, kept=add, chunk=self.chunk, advance=advance)

    def read(
        self, variant: ReadingOn, method: str, ids: Tensor, window: int, *, advance: Advance
    ) -> tuple[Losses, float]:
        """A method's losses of a window, and the seconds that others spent on what it took over."""
        tokens = self.shared[method]
        with self._lock:
            beginning = self._kept.get(window)
            waiting = self._wanted[window]
            waiting.remove(tokens)
            if not waiting:
                self._kept.pop(window, None)
        spent = 0.0
        if beginning is None:
            beginning = self._again(ids, tokens, advance)
        else:
            spent = beginning.seconds * tokens / beginning.tokens
            advance(tokens)
        losses = variant.reading_on(ids, after=(beginning, tokens), chunk=self.chunk, advance=advance)
        return losses, spent

    def _again(self, ids: Tensor, tokens: int, advance: Advance) -> Beginning:
        found: list[Beginning] = []
        append: Callable[[Beginning], None] = found.append
        self.plain.reading_on(ids[: tokens + 1], keep=tokens, kept=append, chunk=self.chunk, advance=advance)
        return found[0]
