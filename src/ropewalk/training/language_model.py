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

    def __init__(self, settings: WindowSettings, housekeeping: Housekeeping | None = None) -> None:
        self.settings, self.housekeeping = settings, housekeeping or Housekeeping()
        self.validation: list[Batch] = []
        self.steps = 0

    @abstractmethod
    def make_tokenizer(self, texts: Sequence[str], folder: Path, *, begun: bool) -> Tokenizer:
        """The tokenizer; `begun` says that `folder` holds a run to continue."""

    @abstractmethod
    def make_model(self, vocab_size: int) -> Decoder:
        """The model before its first update, in float32; what requires a gradient is trained."""

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
        self.model = self.make_model(self.tokenizer.vocab_size).to(settings.device).train()

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
        return self.batch_loss(self.sampler.batch(number, settings.batch_size).to(settings.device))

    def batch_loss(self, batch: Batch) -> Tensor:
        """The mean loss of a batch, nats per token: a float32 scalar to call `backward` on."""
        return next_token_loss(self.model, batch, precision=self.settings.precision)

    def progress(self, step: int) -> dict[str, Any]:
        return {"tokens": step * self._windows_per_update * self.settings.seq_len}

    def speed(self, updates: int, seconds: float) -> dict[str, float]:
        tokens = updates * self._windows_per_update * self.settings.seq_len
        return {"tokens_per_second": round(tokens / seconds, 1)}

    def validate(self, step: int) -> dict[str, Any]:
        by_position = loss_by_position(self.model, self.validation, precision=self.settings.precision)
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
