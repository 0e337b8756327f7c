"""`TrainingTask`: what the training loop needs to know of what it trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from ropewalk.models.prompts import Tokenizer
from ropewalk.training.events import Housekeeping


@runtime_checkable
class LoopSettings(Protocol):
    """What the loop reads of any task's settings; see `TrainSettings` for what each means."""

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
        """All that decides what the run computes."""


@runtime_checkable
class TrainingTask(Protocol):
    """What is trained, on what, and how it is validated and stored. The loop and the run's folder are not its concern.

    Three tasks exist: a language model from scratch, tuning a checkpoint (`ropewalk.extend.tune`), and a classifier.
    The loop calls `read`, then `build`, then once for each update `loss`, and `validate` now and then.
    """

    @property
    def settings(self) -> LoopSettings:
        """Learning rate, clipping, device, and whatever else decides the numbers."""

    @property
    def housekeeping(self) -> Housekeeping:
        """How often to log, validate and checkpoint; read after `build`."""

    @property
    def files(self) -> Mapping[str, tuple[str, ...]]:
        """Paths of the files that the numbers depend on, as "text" and "validation"."""

    def read(self) -> None:
        """Read and check the files. Raises `RopeError` for what cannot be trained on."""

    def build(self, folder: Path, *, begun: bool) -> None:
        """Make the tokenizer, the model before its first update (by the seed, in float32) and the batches.

        `begun` says that `folder` holds a run to continue, with its tokenizer.
        """

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer; there after `build`."""

    @property
    def model(self) -> nn.Module:
        """The model in training mode; there after `build`. Parameters that require gradients are trained."""

    @property
    def steps(self) -> int:
        """Updates at most."""

    @property
    def accumulation(self) -> int:
        """Batches of one update."""

    @property
    def validates(self) -> bool:
        """Whether there is anything to validate on."""

    @property
    def ended(self) -> bool:
        """Whether training ends before its last step: validation has stopped improving."""

    def run_facts(self) -> dict[str, Any]:
        """Sizes for run.json and for the "start" event: JSON values."""

    def rotations(self) -> list[str]:
        """What each layer makes of positions, in words: no tensor of a checkpoint holds it, so checkpoints name it."""

    def loss(self, step: int, part: int) -> Tensor:
        """The mean loss of batch `part` of update `step` (from 0), nats: a float32 scalar to call `backward` on."""

    def progress(self, step: int) -> dict[str, Any]:
        """How far a run has come after `step` updates, for its log: tokens, or epochs."""

    def speed(self, updates: int, seconds: float) -> dict[str, float]:
        """How fast it trains, for its log; {} where the task has no unit for it."""

    def validate(self, step: int) -> dict[str, Any]:
        """Validate after `step` updates; the scores, for the log."""

    def carried(self) -> dict[str, Any]:
        """What a checkpoint carries besides tensors and the loop's own state: JSON values."""

    def restore(self, carried: Mapping[str, Any]) -> None:
        """Take back what `carried` gave."""

    def write_weights(self, folder: Path) -> None:
        """Write the model's weights, and other tensors to carry, into a checkpoint's folder."""

    def read_weights(self, folder: Path) -> None:
        """Restore what `write_weights` wrote."""

    def write_model(self, folder: Path) -> None:
        """Write the finished model as a folder of its own; `folder` does not exist yet."""

    def outcome(self, step: int) -> dict[str, Any]:
        """What run.json says of the run that finished after `step` updates: JSON values."""
