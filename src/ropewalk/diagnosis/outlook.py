"""How long a run of the doctor takes: its losses, then the use of far tokens, then retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ropewalk.diagnosis.estimate import Estimate, estimate_losses, estimate_memory, try_out
from ropewalk.diagnosis.plan import Job, Plan
from ropewalk.diagnosis.retrieval import asked_methods, retrieval_seconds
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.diagnosis.use import use_model, use_seconds
from ropewalk.readers.pace import Clock, Trial
from ropewalk.readers.reader import Reader
from ropewalk.readers.workers import fitting_workers
from ropewalk.retrieval.measure import RetrievalRun
from ropewalk.use.run import UseModel, UseRun


@dataclass(frozen=True)
class Outlook:
    """What the time of a run depends on: the model, the plan of its losses, and what else is measured."""

    reader: Reader
    plan: Plan
    settings: DoctorSettings
    use: UseRun | None = None
    retrieval: RetrievalRun | None = None

    def workers(self, jobs: int) -> int:
        """How many of so many jobs go on at one time."""
        if self.settings.workers is not None:
            return self.settings.workers
        return fitting_workers(self.reader, self.plan.protocol.target, jobs)

    def try_out(self, window: Tensor, jobs: Sequence[Job], clock: Clock) -> Trial:
        """The trial before these jobs, on a window of the text."""
        workers, chunk = self._busy(jobs), self.settings.chunk
        return try_out(self.reader, window, jobs, self.plan.protocol, workers=workers, chunk=chunk, clock=clock)

    def due_of(self, examined: Sequence[str]) -> bool:
        """Whether anything is due besides the losses; `examined`: the methods whose use of far tokens is measured."""
        of_use = self.use is not None and self.use.due(self._models(examined))
        return bool(of_use or (self.retrieval is not None and self.retrieval.due(self._asked(examined))))

    def seconds(
        self, jobs: Sequence[Job], examined: Sequence[str], trial: Trial, *, windows: int | None = None
    ) -> float:
        """Seconds of these jobs, and of all else that is due; `windows`: only so many in all."""
        workers, chunk, pace = self._busy(jobs), self.settings.chunk, trial.pace
        seconds = estimate_losses(jobs, self.plan.protocol, pace, workers=workers, chunk=chunk)
        if self.use is not None:
            models = self._models(examined)
            seconds += use_seconds(self.use, models, pace, workers=workers, windows=windows)
        if self.retrieval is not None:
            measured = {job.method for job in jobs}
            asked = [name for name in self._asked(examined) if windows is None or name in measured]
            seconds += retrieval_seconds(self.retrieval, asked, pace, workers=workers)
        return seconds

    def estimate(self, jobs: Sequence[Job], examined: Sequence[str], trial: Trial) -> Estimate:
        """Time and memory of these jobs, and of all else that is due."""
        workers, chunk = self._busy(jobs), self.settings.chunk
        memory = estimate_memory(self.reader, trial, self.plan.protocol, jobs, workers=workers, chunk=chunk)
        return Estimate(seconds=self.seconds(jobs, examined, trial), peak_bytes=memory)

    def _busy(self, jobs: Sequence[Job]) -> int:
        """How many workers there are for these jobs; for what follows them where none of them is due."""
        return self.workers(len(jobs) or self.plan.protocol.total_windows)

    def _models(self, examined: Sequence[str]) -> dict[str, UseModel]:
        return {name: use_model(name, self.reader, self.plan) for name in examined}

    def _asked(self, examined: Sequence[str]) -> Sequence[str]:
        return () if self.retrieval is None else asked_methods(self.retrieval, self.settings, self.plan, examined)
