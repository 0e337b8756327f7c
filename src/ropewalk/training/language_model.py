"""Language models as tasks of the training loop: windows of tokens, the next-token loss, validation by position."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ropewalk.builtin.texts import read_text
from ropewalk.distributed.mesh import ALONE, Mesh
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.models.positions import Positions
from ropewalk.models.tokens import Tokenizer
from ropewalk.training.data import Batch, TokenStream, Windows, WindowSampler, split_text, validation_batches
from ropewalk.training.events import Housekeeping
from ropewalk.training.objective import loss_by_position, next_token_loss
from ropewalk.training.task import LoopSettings


@runtime_checkable
class WindowSettings(LoopSettings, Protocol):
    """What a language model's task reads of its settings; see `TrainSettings` for what each means."""

    @property
    def text(self) -> tuple[str, ...]: ...
    @property
    def validation(self) -> tuple[str, ...]: ...
    @property
    def validation_fraction(self) -> float: ...
    @property
    def validation_windows(self) -> int: ...
    @property
    def validation_length(self) -> int | None: ...
    @property
    def seq_len(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def accumulation(self) -> int: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def epochs(self) -> float | None: ...
    @property
    def seed(self) -> int: ...


class LanguageModelTask(ABC):
    """A decoder on windows of text: all but where tokenizer and model come from, and how weights are stored.

    See `TrainingTask` for what each method gives.
    """

    tokenizer: Tokenizer
    model: Decoder

    def __init__(self, settings: WindowSettings, housekeeping: Housekeeping | None = None, mesh: Mesh = ALONE) -> None:
        self.settings, self.housekeeping, self.mesh = settings, housekeeping or Housekeeping(), mesh
        check_windows(settings, mesh)
        self.validation: list[Batch] = []
        self.steps, self._checked = 0, False

    @abstractmethod
    def make_tokenizer(self, texts: Sequence[str], folder: Path, *, begun: bool) -> Tokenizer:
        """The tokenizer; `begun` says that `folder` holds a run to continue."""

    @abstractmethod
    def make_model(self, vocab_size: int) -> Decoder:
        """The model before its first update, in float32; what requires a gradient is trained."""

    def place_model(self, vocab_size: int) -> Decoder:
        """The same on its device; of several processes each has its part."""
        return self.make_model(vocab_size).to(self.settings.device)

    def make_windows(self, stream: TokenStream, texts: Sequence[str]) -> Windows:
        """The windows of `stream`, which holds the tokens of `texts`, in the order in which they are trained on."""
        return WindowSampler(stream, seq_len=self.settings.seq_len, seed=self.settings.seed)

    @abstractmethod
    def write_weights(self, folder: Path) -> None:
        """See `TrainingTask`."""

    @abstractmethod
    def read_weights(self, folder: Path) -> None:
        """See `TrainingTask`."""

    @property
    def files(self) -> Mapping[str, tuple[str, ...]]:
        return {"text": tuple(self.settings.text), "validation": tuple(self.settings.validation)}

    @property
    def accumulation(self) -> int:
        return self.settings.accumulation

    @property
    def validates(self) -> bool:
        return bool(self.validation)

    @property
    def ended(self) -> bool:
        return False

    def read(self) -> None:
        self._texts = [read_text(path)[1] for path in self.settings.text]
        self._held_out = [read_text(path)[1] for path in self.settings.validation]

    def build(self, folder: Path, *, begun: bool) -> None:
        settings, texts, held_out = self.settings, self._texts, self._held_out
        if not held_out and settings.validation_fraction > 0:
            parts = [split_text(text, settings.validation_fraction) for text in texts]
            texts, held_out = [part[0] for part in parts], [part[1] for part in parts]
        self.tokenizer = self.make_tokenizer(texts, folder, begun=begun)
        self._build_windows(texts, held_out)
        torch.manual_seed(settings.seed)
        self.model = self.place_model(self.tokenizer.vocab_size).train()
        if self.mesh.part:
            torch.manual_seed(settings.seed + self.mesh.part)  # dropout of its own for each part of a batch

    def _build_windows(self, texts: list[str], held_out: list[str]) -> None:
        settings, tokenizer = self.settings, self.tokenizer
        end = tokenizer.eos_ids[0] if tokenizer.eos_ids else None
        stream = TokenStream.pack(texts, tokenizer.encode, end)
        self.sampler = self.make_windows(stream, texts)
        if held_out:
            batches = validation_batches(
                TokenStream.pack(held_out, tokenizer.encode, end),
                seq_len=settings.validation_length or settings.seq_len,
                limit=settings.validation_windows,
                batch_size=settings.batch_size,
            )
            self.validation = [batch.to(settings.device) for batch in batches]
        whole = math.ceil((settings.epochs or 0) * self.sampler.windows_per_epoch / self._windows_per_update)
        self.steps = settings.steps or max(1, whole)

    @property
    def _windows_per_update(self) -> int:
        return self.settings.batch_size * self.settings.accumulation

    def run_facts(self) -> dict[str, Any]:
        return {
            "train_tokens": len(self.sampler.stream),
            "parameters": self.model.num_parameters(),
        }

    @property
    def positions(self) -> Positions:
        """Each layer's rope and extension."""
        return self.model.config.positions

    def rotations(self) -> list[str]:
        layers = zip(self.positions.ropes, self.positions.extensions, strict=True)
        return [repr(rope) if extension is None else f"{rope!r}, {extension!r}" for rope, extension in layers]

    def loss(self, step: int, part: int) -> Tensor:
        settings = self.settings
        number = (step * settings.accumulation + part) * settings.batch_size
        count = settings.batch_size // self.mesh.dp
        batch = self.sampler.batch(number + self.mesh.dp_rank * count, count).to(settings.device)
        shard = self.mesh.shard(settings.seq_len)
        if shard is not None:
            batch = batch.part(shard)
            if not self._checked:
                batch.check_targets()
                self._checked = True
        loss = self.batch_loss(batch)
        return loss * (batch.tokens / self.mesh.sum(batch.tokens)[0]) if self.mesh.several else loss

    def batch_loss(self, batch: Batch) -> Tensor:
        """The mean loss of a batch, nats per token: a float32 scalar to call `backward` on."""
        return next_token_loss(self.model, batch, precision=self.settings.precision)

    def progress(self, step: int) -> dict[str, Any]:
        return {"tokens": step * self._windows_per_update * self.settings.seq_len}

    def speed(self, updates: int, seconds: float) -> dict[str, float]:
        tokens = updates * self._windows_per_update * self.settings.seq_len
        return {"tokens_per_second": round(tokens / seconds, 1)}

    def validate(self, step: int) -> dict[str, Any]:
        by_position = loss_by_position(self.model, self.validation, precision=self.settings.precision, mesh=self.mesh)
        within = [nats for _, end, nats in by_position if end <= self.settings.seq_len] or [by_position[0][2]]
        return {
            "validation_by_position": [[a, b, round(nats, 4)] for a, b, nats in by_position],
            "validation_loss": round(sum(within) / len(within), 4),
        }

    def carried(self) -> dict[str, Any]:
        return {}

    def restore(self, carried: Mapping[str, Any]) -> None:
        return None

    def outcome(self, step: int) -> dict[str, Any]:
        return {}

    def gather(self) -> None:
        return None


def check_windows(settings: WindowSettings, mesh: Mesh) -> None:
    """Refuse windows and batches that cannot be dealt out to the processes of a mesh in equal parts."""
    if settings.batch_size % mesh.dp:
        raise RopeError(
            "train: each of the --dp processes has an equal part of a batch.",
            facts={"batch_size": settings.batch_size, "dp": mesh.dp},
            cure="Choose a --batch-size that is a multiple of --dp.",
        )
    parts = mesh.cp * (2 if mesh.settings.cp_layout == "head-tail" else 1)
    lengths = {"seq_len": settings.seq_len, "validation_length": settings.validation_length or settings.seq_len}
    if mesh.cp > 1 and any(length % parts for length in lengths.values()):
        raise RopeError(
            f"train: context parallelism deals out {parts} equal parts of a window.",
            facts={**lengths, "cp": mesh.cp, "cp_layout": mesh.settings.cp_layout},
            cure=f"Choose windows of a multiple of {parts} tokens.",
        )
