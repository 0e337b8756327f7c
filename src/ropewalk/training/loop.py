"""The training loop of every task, and the interface of a task: updates, validation, log and checkpoints."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ropewalk.atomic_io import read_json, sha256
from ropewalk.errors import RopeError
from ropewalk.models.prompts import Tokenizer
from ropewalk.training.run_folder import STATE, RunFolder, check_rotations, read_training_state, write_training_state
from ropewalk.training.settings import Event, Housekeeping, Report


@runtime_checkable
class LoopSettings(Protocol):
    """The settings of a task that the loop uses; see `TrainSettings`."""

    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def final_lr(self) -> float: ...
    @property
    def warmup(self) -> int | None: ...
    @property
    def clip(self) -> float: ...
    @property
    def precision(self) -> str: ...
    @property
    def device(self) -> str: ...
    def to_json(self) -> dict[str, Any]:
        """Return all values that determine the run's results."""


@runtime_checkable
class TrainingTask(Protocol):
    """A model, its training data, its validation and its storage, for the loop.

    There are two tasks: a language model from scratch, and a classifier. The loop calls `read`, then `build`, then
    `loss` for each batch, and `validate` from time to time.
    """

    @property
    def settings(self) -> LoopSettings:
        """Return learning rate, clipping, device, and all other settings that determine the results."""

    @property
    def housekeeping(self) -> Housekeeping:
        """Return how often to log, validate and write checkpoints; the loop calls it after `build`."""

    @property
    def files(self) -> Mapping[str, tuple[str, ...]]:
        """Return the paths of the input files, as "text" and "validation"."""

    def read(self) -> None:
        """Load and check the files; raise `RopeError` if they cannot be used for training."""

    def build(self, folder: Path, *, begun: bool) -> None:
        """Create the tokenizer, the model before its first update (by the seed, in float32) and the batches.

        `begun` is True if `folder` contains a run to resume, with its tokenizer.
        """

    @property
    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, after `build`."""

    @property
    def model(self) -> nn.Module:
        """Return the model in training mode, after `build`. Training updates parameters that require gradients."""

    @property
    def steps(self) -> int:
        """Return the largest number of updates."""

    @property
    def accumulation(self) -> int:
        """Return the number of batches per update."""

    @property
    def validates(self) -> bool:
        """Return whether there are validation data."""

    @property
    def ended(self) -> bool:
        """Return whether training ends before its last step because validation has stopped improving."""

    def run_facts(self) -> dict[str, Any]:
        """Return sizes for run.json and for the "start" event: JSON values."""

    def rotations(self) -> list[str]:
        """Return a description of each layer's rotation, which checkpoints store because no tensor contains it."""

    def loss(self, step: int, part: int) -> Tensor:
        """Return the mean loss of batch `part` of update `step` (from 0) in nats: a float32 scalar for `backward`."""

    def progress(self, step: int) -> dict[str, Any]:
        """Return the progress of a run after `step` updates, for its log: tokens, or epochs."""

    def speed(self, updates: int, seconds: float) -> dict[str, float]:
        """Return the speed of the training, for its log; {} if the task has no unit for it."""

    def validate(self, step: int) -> dict[str, Any]:
        """Validate after `step` updates; return the scores, for the log."""

    def carried(self) -> dict[str, Any]:
        """Return the task's state for a checkpoint, except tensors and the loop's own state: JSON values."""

    def restore(self, carried: Mapping[str, Any]) -> None:
        """Restore what `carried` returned."""

    def write_weights(self, folder: Path) -> None:
        """Write the model's weights, and other tensors of the state, into a checkpoint's folder."""

    def read_weights(self, folder: Path) -> None:
        """Restore what `write_weights` wrote."""

    def write_model(self, folder: Path) -> None:
        """Write the finished model into a new folder; `folder` does not exist yet."""

    def outcome(self, step: int) -> dict[str, Any]:
        """Return facts for run.json about a run finished after `step` updates: JSON values."""


def learning_rate(step: int, *, peak: float, warmup: int, steps: int, final: float = 0.1) -> float:
    """Return the learning rate of update `step`, counted from 0.

    It rises linearly over `warmup` updates to `peak`, then falls along half a cosine to `final` * peak at the last of
    `steps` updates.

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts.

    >>> [round(learning_rate(step, peak=1.0, warmup=2, steps=6, final=0.0), 2) for step in range(6)]
    [0.5, 1.0, 0.85, 0.5, 0.15, 0.0]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup + 1) / max(1, steps - warmup)
    return peak * (final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))))


def make_optimizer(model: nn.Module, settings: LoopSettings) -> torch.optim.AdamW:
    """Return fused AdamW over the trained parameters, with weight decay on matrices only.

    Source: Loshchilov and Hutter 2019, arXiv:1711.05101.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices, others = ([each for each in trained if (each.ndim >= 2) == kind] for kind in (True, False))
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), fused=True)


@contextmanager
def polite_interrupt() -> Iterator[Callable[[], bool]]:
    """Make Ctrl-C and SIGTERM set a flag, so the current step can finish; a second one acts at once.

    Yields a function that returns the flag.
    """
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


class Clock:
    """Seconds of wall time and of processor time (all threads of this process, unaffected by other programs)."""

    def __init__(self, seconds: float = 0.0, cpu_seconds: float = 0.0) -> None:
        self._before = seconds, cpu_seconds
        self._started: tuple[float, float] | None = None

    def begin(self) -> None:
        """Start the clock."""
        self._started = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        """Return `seconds` and `cpu_seconds` so far, including earlier starts."""
        wall, cpu = self._before
        if self._started is not None:
            wall, cpu = wall + time.perf_counter() - self._started[0], cpu + time.process_time() - self._started[1]
        return {"seconds": round(wall, 2), "cpu_seconds": round(cpu, 2)}


class Run:
    """One run of a task, and its folder.

    Call `prepare`, then `train`, then `finish`. Omit `finish` if only this process uses the trained model. `report` is
    called with each `Event`. The caller must hold `folder.locked()`.
    """

    def __init__(self, task: TrainingTask, folder: RunFolder, report: Report | None = None) -> None:
        self.task, self.folder = task, folder
        self.report: Report = report if report is not None else (lambda event: None)
        self.step, self.loss_sum, self.loss_count = 0, 0.0, 0
        self.clock = Clock()
        self.record: dict[str, Any] = {}
        """The content of run.json."""

    def prepare(self, *, resume: bool, restart: bool) -> bool:
        """Load the files, find or begin the run, and build the model; return False if the run is already finished."""
        task, folder = self.task, self.folder
        task.read()
        asked = {
            "settings": task.settings.to_json(),
            "sha256": {kind: [sha256(path) for path in paths] for kind, paths in task.files.items()},
        }
        begun = folder.find(asked, resume=resume, restart=restart)
        if begun is not None and begun.get("finished"):
            self.record = begun
            return False
        folder.remove_leftovers()
        task.build(folder.path, begun=begun is not None)
        self.optimizer = make_optimizer(task.model, task.settings)
        warmup = task.settings.warmup
        self.warmup = min(200, task.steps // 20) if warmup is None else warmup
        if begun is None:
            self.record = self._record(asked)
            self._begin(restart=restart)
        else:
            self.record = {**self._record(asked), **{key: begun[key] for key in ("torch", "threads")}}
        checkpoints = folder.checkpoints()
        if checkpoints:
            self._restore(checkpoints[-1])
            folder.remove_checkpoints(keep=task.housekeeping.keep)  # a kill may have come before the last removal
        folder.cut_log(self.step if checkpoints else -1)
        return True

    def _begin(self, *, restart: bool) -> None:
        """Make the folder that of a new run, after all checks have passed."""
        if restart:
            self.folder.clear()
        self.folder.remove_checkpoints()  # of a run that was killed while it was discarded
        self.task.tokenizer.save(self.folder.path)
        self.folder.write_run(self.record)

    def _record(self, asked: dict[str, Any]) -> dict[str, Any]:
        return {
            **asked,
            "steps": self.task.steps,
            **self.task.run_facts(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "finished": False,
        }

    def train(self) -> None:
        """Update until the last step, or until the task ends."""
        task, keeping = self.task, self.task.housekeeping
        often = max(50, task.steps // 20)
        validate_every, checkpoint_every = keeping.validate_every or often, keeping.checkpoint_every or often
        self._report("start", self._start_facts())
        updates, seconds = 0, 0.0
        saved, patience = time.monotonic(), 60.0 * keeping.checkpoint_minutes
        self.clock.begin()
        with polite_interrupt() as interrupted:
            while self.step < task.steps and not task.ended:
                started = time.perf_counter()
                loss, rate = self._update()
                self.step += 1
                self.loss_sum, self.loss_count = self.loss_sum + loss, self.loss_count + 1
                updates, seconds = updates + 1, seconds + time.perf_counter() - started
                self._report("step", {"loss": loss})
                last = self.step == task.steps
                validate = task.validates and (last or self.step % validate_every == 0)
                if validate or last or self.step % keeping.log_every == 0:
                    self._log(rate, task.speed(updates, seconds), validate=validate)
                    updates, seconds = 0, 0.0
                done, stop = last or task.ended, interrupted()
                late = time.monotonic() - saved > patience
                if late or done or stop or self.step % checkpoint_every == 0:
                    self._checkpoint()
                    saved = time.monotonic()
                if stop and not done:
                    raise KeyboardInterrupt(f"stopped at step {self.step} of {task.steps}; the checkpoint is written")

    def _update(self) -> tuple[float, float]:
        """Make one optimizer update; return the mean loss of its batches, and the learning rate."""
        task, settings = self.task, self.task.settings
        rate = learning_rate(self.step, peak=settings.lr, warmup=self.warmup, steps=task.steps, final=settings.final_lr)
        loss = 0.0
        for part in range(task.accumulation):
            mean = task.loss(self.step, part) / task.accumulation
            loss += float(mean.detach())
            mean.backward()  # type: ignore[no-untyped-call]
        self._finite("loss", loss)
        norm = torch.nn.utils.clip_grad_norm_(task.model.parameters(), settings.clip)
        self._finite("gradient norm", float(norm))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, rate

    def _finite(self, name: str, value: float) -> None:
        if math.isfinite(value):
            return
        checkpoints = self.folder.checkpoints()
        raise RopeError(
            f"train: the {name} is not finite; the run stops before the weights are updated.",
            facts={
                name: value,
                "step": self.step + 1,
                "last good checkpoint": str(checkpoints[-1]) if checkpoints else None,
            },
            cure="Start over (--restart) with a smaller --lr, a longer --warmup, or --precision float32.",
        )

    def _log(self, rate: float, speed: dict[str, float], *, validate: bool) -> None:
        line: dict[str, Any] = {
            "step": self.step,
            **self.task.progress(self.step),
            "loss": self.loss_sum / self.loss_count,
            "lr": rate,
        }
        self.loss_sum, self.loss_count = 0.0, 0
        if validate:
            line |= self.task.validate(self.step)
        line |= {**speed, "seconds": self.clock.read()["seconds"]}
        self.folder.append_log(line)
        self._report("log", line)

    def _checkpoint(self) -> None:
        state = {
            "rotations": self.task.rotations(),
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            **self.clock.read(),
            **self.task.carried(),
        }

        def write(folder: Path) -> None:
            self.task.write_weights(folder)
            write_training_state(folder, self.task.model, self.optimizer)

        path = self.folder.write_checkpoint(self.step, write, state, keep=self.task.housekeeping.keep)
        self._report("checkpoint", {"path": str(path)})

    def _restore(self, checkpoint: Path) -> None:
        task, state = self.task, read_json(checkpoint / STATE)
        check_rotations(checkpoint, state.get("rotations"), task.rotations())
        if (checkpoint / "shards").is_dir():
            raise RopeError(
                "train: the checkpoint was written by several processes, which this version does not support.",
                facts={"checkpoint": str(checkpoint)},
                cure="Start over (--restart), or finish the run with the version that began it (commit d970beb).",
            )
        task.read_weights(checkpoint)
        read_training_state(checkpoint, task.model, self.optimizer)
        self.task.restore(state)
        self.step, self.loss_sum, self.loss_count = state["step"], state["loss_sum"], state["loss_count"]
        self.clock = Clock(state["seconds"], state.get("cpu_seconds", 0.0))

    def finish(self) -> None:
        """Write the model into the run's folder, and mark the run as finished."""
        self.record |= {"finished": True, **self.task.outcome(self.step), **self.clock.read()}
        self.folder.write_model(self.task.write_model)
        self.folder.write_run(self.record)

    def _start_facts(self) -> dict[str, Any]:
        return {
            "out": str(self.folder.path),
            **self.task.run_facts(),
            "vocab_size": self.task.tokenizer.vocab_size,
            "precision": self.task.settings.precision,
            "device": self.task.settings.device,
            "threads": torch.get_num_threads(),
            "began_with_threads": self.record["threads"],
        }

    def _report(self, kind: str, facts: dict[str, Any]) -> None:
        self.report(Event(kind, self.step, self.task.steps, facts))
