"""A decoder from scratch, from texts to a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ropewalk.checkpoints.load import load, save
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.models.precision import dtype_named
from ropewalk.training.data import TokenStream, Windows, WindowSampler
from ropewalk.training.events import Event, Housekeeping, Report
from ropewalk.training.language_model import LanguageModelTask
from ropewalk.training.loop import Run
from ropewalk.training.repeats import CopyWarmup, RepeatSampler, word_tokens
from ropewalk.training.run_folder import RunFolder
from ropewalk.training.settings import DTYPES, TrainSettings
from ropewalk.training.tokenizers import make_tokenizer

MODEL = "model"
"""The folder of the weights, within a checkpoint."""


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
    """Train a decoder from scratch, or continue the run that `out` holds; returns `out`, a Hugging Face folder.

    - `settings`: what to compute. `out`: the run's folder; a run with equal settings in it is continued from its last
      checkpoint, to the same bits as one that was never stopped (same machine, same number of threads).
    - `resume`: insist that there is a run to continue. `restart`: throw the run in `out` away first.
    - `dtype`: of the finished model's weights, "bfloat16", "float32" or "float16"; training weights are float32.
    - `report`: called with each `Event`.

    Ctrl-C writes a checkpoint and raises KeyboardInterrupt. Raises `RopeError` for bad texts or settings, for a run
    with other settings in `out`, and where the loss or a gradient is not finite.
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
    """A decoder with random weights, and the tokenizer that the settings ask for."""

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
        """The tokenizer of the run that continues, or a new one."""
        return TextTokenizer.from_folder(folder) if begun else make_tokenizer(self.train_settings, texts)

    def make_model(self, vocab_size: int) -> Decoder:
        """Random weights, by torch's generator."""
        return Decoder(self.train_settings.decoder_config(vocab_size))

    def make_windows(self, stream: TokenStream, texts: Sequence[str]) -> Windows:
        """Windows of the text, some with repeated blocks if `repeat_share`, after periodic ones if `copy_warmup`."""
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
        """The base's; without dropout while the model learns to copy, which needs every layer at once."""
        self.model.train(step >= self.train_settings.copy_warmup)
        return super().loss(step, part)

    def write_weights(self, folder: Path) -> None:
        """The whole model, as a Hugging Face folder in float32."""
        save(self.model, folder / MODEL)

    def read_weights(self, folder: Path) -> None:
        self.model.load_state_dict(load(folder / MODEL, dtype=torch.float32).state_dict())

    def write_model(self, folder: Path) -> None:
        """The model in the dtype asked for, with its tokenizer."""
        cast = Decoder(self.model.config)
        cast.load_state_dict(self.model.state_dict())
        assert isinstance(self.tokenizer, TextTokenizer)
        save(cast.to(self.dtype), folder, tokenizer=self.tokenizer)
