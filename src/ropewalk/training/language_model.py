"""Train language models on windows of tokens; `train` trains a decoder from scratch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load, save
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.models.config import Positions
from ropewalk.models.decoder import Decoder
from ropewalk.models.precision import dtype_named
from ropewalk.models.prompts import Tokenizer
from ropewalk.training.data import (
    Batch,
    CopyWarmup,
    RepeatSampler,
    TokenStream,
    Windows,
    WindowSampler,
    split_text,
    validation_batches,
    word_tokens,
)
from ropewalk.training.loop import LoopSettings, Run
from ropewalk.training.objective import loss_by_position, next_token_loss
from ropewalk.training.run_folder import RunFolder
from ropewalk.training.settings import DTYPES, Event, Housekeeping, Report, TrainSettings


@runtime_checkable
class TokenizerSettings(Protocol):
    """The settings of the tokenizer."""

    @property
    def tokenizer(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...


def make_tokenizer(settings: TokenizerSettings, texts: Sequence[str]) -> TextTokenizer:
    """Return the tokenizer of the settings: trained on the texts, bytes, or a tokenizer.json."""
    if settings.tokenizer == "bpe":
        return TextTokenizer.train(texts, settings.vocab_size)
    if settings.tokenizer == "bytes":
        return TextTokenizer.bytes()
    path = Path(settings.tokenizer)
    if path.name == "tokenizer.json" and path.is_file():
        return TextTokenizer.from_folder(path.parent)
    if path.is_dir():
        return TextTokenizer.from_folder(path)
    raise RopeError(
        "train: unknown tokenizer.",
        facts={"tokenizer": settings.tokenizer},
        cure='Pass "bpe", "bytes", or the path of a tokenizer.json.',
    )


@runtime_checkable
class WindowSettings(LoopSettings, Protocol):
    """The settings of a language model's task; see `TrainSettings`."""

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
    """The training of a decoder on windows of text; subclasses provide the tokenizer, the model and the weights' form.

    See `TrainingTask` for the methods.
    """

    tokenizer: Tokenizer
    model: Decoder

    def __init__(self, settings: WindowSettings, housekeeping: Housekeeping | None = None) -> None:
        self.settings, self.housekeeping = settings, housekeeping or Housekeeping()
        self.validation: list[Batch] = []
        self.steps = 0

    @abstractmethod
    def make_tokenizer(self, texts: Sequence[str], folder: Path, *, begun: bool) -> Tokenizer:
        """Return the tokenizer; `begun` is True if `folder` contains a run to resume."""

    @abstractmethod
    def make_model(self, vocab_size: int) -> Decoder:
        """Return the model before its first update, in float32; training updates parameters that require gradients."""

    def make_windows(self, stream: TokenStream, texts: Sequence[str]) -> Windows:
        """Return the windows of `stream`, the tokens of `texts`, in the order of training."""
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
        """Return each layer's rope and extension."""
        return self.model.config.positions

    def rotations(self) -> list[str]:
        layers = zip(self.positions.ropes, self.positions.extensions, strict=True)
        return [repr(rope) if extension is None else f"{rope!r}, {extension!r}" for rope, extension in layers]

    def loss(self, step: int, part: int) -> Tensor:
        settings = self.settings
        number = (step * settings.accumulation + part) * settings.batch_size
        return self.batch_loss(self.sampler.batch(number, settings.batch_size).to(settings.device))

    def batch_loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of a batch in nats per token: a float32 scalar to call `backward` on."""
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


MODEL = "model"
"""The folder of the weights in a checkpoint."""


def train(
    settings: TrainSettings,
    out: str | Path,
    *,
    resume: bool = False,
    restart: bool = False,
    dtype: str = "bfloat16",
    housekeeping: Housekeeping | None = None,
    report: Report | None = None,
) -> Path:
    """Train a decoder from scratch, or resume the run in `out`.

    **Arguments:**
    - `settings`: see `TrainSettings`.
    - `out`: the run's folder. A run with equal settings in it is resumed from its last checkpoint, to the same bits as
      one that was never stopped (same machine, same number of threads).
    - `resume`: raise `RopeError` if there is no run to resume. `restart`: discard the run in `out` first.
    - `dtype`: of the finished model's weights: "bfloat16", "float32" or "float16". Training weights are float32.
    - `housekeeping`: how often to log, validate and write checkpoints. `report`: called with each `Event`.

    **Returns:** `out`, which is a Hugging Face folder.
    **Raises:** `RopeError` for invalid texts or settings, for a run with other settings in `out`, and if the loss or a
    gradient is not finite. Ctrl-C writes a checkpoint and raises KeyboardInterrupt.
    """
    if dtype not in DTYPES:
        raise RopeError("train: unknown `dtype`.", facts={"dtype": dtype, "known": DTYPES}, cure="Pass one of these.")
    folder, here = RunFolder(out), settings.on_this_machine()
    with folder.locked(), torch.random.fork_rng():
        run = Run(FromScratch(here, housekeeping, dtype=dtype_named(dtype)), folder, report)
        unfinished = run.prepare(resume=resume, restart=restart)
        if unfinished:
            run.train()
            run.finish()
        if report is not None:
            steps = int(run.record["steps"])
            report(Event("done", steps, steps, {"out": str(folder.path), "already": not unfinished}))
    return folder.path


class FromScratch(LanguageModelTask):
    """A decoder with random weights, and the tokenizer of the settings."""

    def __init__(
        self,
        settings: TrainSettings,
        housekeeping: Housekeeping | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(settings, housekeeping)
        self.train_settings, self.dtype = settings, dtype

    def make_tokenizer(self, texts: Sequence[str], folder: Path, *, begun: bool) -> TextTokenizer:
        """Return the tokenizer of the resumed run, or a new one."""
        return TextTokenizer.from_folder(folder) if begun else make_tokenizer(self.train_settings, texts)

    def make_model(self, vocab_size: int) -> Decoder:
        """Return a model with random weights, drawn by torch's generator."""
        return Decoder(self.train_settings.decoder_config(vocab_size))

    def make_windows(self, stream: TokenStream, texts: Sequence[str]) -> Windows:
        """Return windows of text, some with repeated blocks (`repeat_share`), after periodic ones (`copy_warmup`)."""
        settings = self.train_settings
        plain = WindowSampler(stream, seq_len=settings.seq_len, seed=settings.seed)
        windows: Windows = plain
        if settings.repeat_share:
            words = word_tokens(texts, self.tokenizer.encode)
            windows = RepeatSampler(plain, words, share=settings.repeat_share, seed=settings.seed)
        if settings.copy_warmup:
            count = settings.copy_warmup * self._windows_per_update
            windows = CopyWarmup(windows, vocab_size=self.tokenizer.vocab_size, count=count, seed=settings.seed)
        return windows

    def loss(self, step: int, part: int) -> Tensor:
        """Return the base's loss, without dropout during `copy_warmup`, which needs every layer."""
        self.model.train(step >= self.train_settings.copy_warmup)
        return super().loss(step, part)

    def write_weights(self, folder: Path) -> None:
        """Write the whole model as a Hugging Face folder in float32."""
        save(self.model, folder / MODEL)

    def read_weights(self, folder: Path) -> None:
        self.model.load_state_dict(load(folder / MODEL, dtype=torch.float32).state_dict())

    def write_model(self, folder: Path) -> None:
        """Write the model in its final dtype, with its tokenizer."""
        cast = Decoder(self.model.config)
        cast.load_state_dict(self.model.state_dict())
        assert isinstance(self.tokenizer, TextTokenizer)
        save(cast.to(self.dtype), folder, tokenizer=self.tokenizer)
