"""Further training of a model under an extension method, by the loop of `ropewalk train`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.extend.settings import TrainingSettings, check_at_least, setting
from ropewalk.methods import METHODS, Reach
from ropewalk.models.config import Positions
from ropewalk.models.prompts import Tokenizer
from ropewalk.readers.reader import TunableReader
from ropewalk.training.data import Batch, RepeatSampler, SkipSampler, TokenStream, Windows, WindowSampler, word_tokens
from ropewalk.training.language_model import LanguageModelTask, WindowSettings
from ropewalk.training.loop import Run
from ropewalk.training.run_folder import RunFolder, read_trained, write_trained
from ropewalk.training.settings import Housekeeping, Report, on_machine


@dataclass(frozen=True, kw_only=True)
class TuningRecipe(TrainingSettings):
    """Settings that determine a tuning run; equal recipes on equal texts and threads give the same bits.

    - `source`: the digest of the model that is tuned, under its method; `tune_reader` sets it.
    - `method`, `reach`: the method that was applied, and its lengths. `validation`: files for the validation loss.

    >>> recipe = TuningRecipe(text=("a.txt",), source="", method="yarn", reach=Reach(512, 2048), steps=4,
    ...                       tokens_per_step=5000)
    >>> recipe.seq_len, recipe.accumulation
    (2048, 3)
    """

    source: str = setting("Digest of the model.")
    method: str = setting("Extension method.")
    reach: Reach = field(metadata={"help": "Lengths in tokens."})
    validation: tuple[str, ...] = setting("Texts to validate on while training.", default=())
    validation_windows: int = setting("Windows of them, at most.", default=4)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least({"target": self.reach.target}, least=2)
        check_at_least({"validation_windows": self.validation_windows}, least=1)
        method = METHODS.get(self.method)
        skips = self.window is not None
        if skips and method is not None and (method.in_attention or method.tuned_at_trained_length):
            raise RopeError(
                "extend: `window` makes positions skip, but this method counts the tokens of each row.",
                facts={"method": self.method, "window": self.window},
                cure="Choose a method that scales frequencies, or leave out `window`.",
            )
        if self.window is not None and not 2 <= self.window <= self.skip_to:
            raise RopeError(
                "extend: `window` must be at least 2 tokens and at most the length that positions skip to.",
                facts={"window": self.window, "skip_to": self.skip_to},
                cure="Set `window` to the trained length or less.",
            )

    @property
    def skip_to(self) -> int:
        """Return the length in tokens that positions skip to: `skip_target`, or the target."""
        return self.reach.target if self.skip_target is None else self.skip_target

    @property
    def seq_len(self) -> int:
        """Return a window's tokens: `window`, the target, or the trained length for a method tuned there (DroPE)."""
        if self.window is not None:
            return self.window
        method = METHODS.get(self.method)
        return self.reach.trained if method is not None and method.tuned_at_trained_length else self.reach.target

    @property
    def accumulation(self) -> int:
        """Return the number of batches for one update."""
        batch = self.batch_size * self.seq_len
        return -(-(self.tokens_per_step or batch) // batch)

    @property
    def epochs(self) -> float | None:
        """Return None: the run ends after `steps` updates."""
        return None

    @property
    def validation_fraction(self) -> float:
        """Return 0: no part of the text is held out."""
        return 0.0

    @property
    def validation_length(self) -> int | None:
        """Return None: the length of a window."""
        return None

    def on_this_machine(self) -> TuningRecipe:
        """Return this recipe with "auto" resolved in `device` and `precision`."""
        device, precision = on_machine(self.device, self.precision)
        return replace(self, device=device, precision=precision)

    def to_json(self) -> dict[str, Any]:
        """Return plain data with absolute paths, so that the run is the same from another folder."""
        plain = asdict(self)
        for name in ("text", "validation"):
            plain[name] = [str(Path(path).resolve()) for path in plain[name]]
        reach = plain.pop("reach")
        lengths = {"trained_length": reach["trained"], "target": reach["target"], "seq_len": self.seq_len}
        return {**plain, **lengths, "unscaled_tokens": reach["unscaled_tokens"]}


class TuningTask(LanguageModelTask):
    """The training of a copy of a model on windows of text; checkpoints contain only the trained tensors."""

    def __init__(self, source: TunableReader, recipe: TuningRecipe, housekeeping: Housekeeping | None = None) -> None:
        super().__init__(cast(WindowSettings, recipe), housekeeping)
        self.source, self.recipe = source, recipe
        self.copy = source
        check_tunable(source, recipe)

    def make_tokenizer(self, texts: Sequence[str], folder: Path, *, begun: bool) -> Tokenizer:
        """Return the model's own tokenizer."""
        if self.source.tokenizer is None:
            raise RopeError(
                "extend: the checkpoint has no tokenizer, so no text can be tuned on.",
                facts={"tokenizer": None},
                cure="Put its tokenizer.json into the folder of the weights.",
            )
        return self.source.tokenizer

    def make_model(self, vocab_size: int) -> Any:
        """Return the copy to train."""
        self.copy = self.source.trainable_copy(self.recipe.train, rank=self.recipe.rank or 1)
        return self.copy.module

    def make_windows(self, stream: TokenStream, texts: Sequence[str]) -> Windows:
        """Return windows of the text, with repeated blocks and skipping positions if the recipe has them."""
        windows = WindowSampler(stream, seq_len=self.recipe.seq_len, seed=self.recipe.seed)
        made: Windows = windows
        if self.recipe.repeat_share:
            words = word_tokens(texts, self.tokenizer.encode)
            made = RepeatSampler(windows, words, share=self.recipe.repeat_share, seed=self.recipe.seed)
        if self.recipe.window is not None:
            made = SkipSampler(made, seq_len=self.recipe.skip_to, seed=self.recipe.seed)
        return made

    @property
    def positions(self) -> Positions:
        """Return the reader's positions."""
        return self.copy.positions

    def batch_loss(self, batch: Batch) -> Tensor:
        """Return the reader's loss of a batch."""
        return self.copy.next_token_loss(
            batch.inputs,
            batch.targets,
            batch.document_ids,
            precision=self.settings.precision,
            position_ids=batch.position_ids,
            seq_len=batch.seq_len,
        )

    def write_weights(self, folder: Path) -> None:
        """Write the trained tensors; the others come from the checkpoint."""
        write_trained(folder, self.copy.module)

    def read_weights(self, folder: Path) -> None:
        """Read what `write_weights` wrote."""
        read_trained(folder, self.copy.module)

    def write_model(self, folder: Path) -> None:
        """Do nothing: the tuned model is exported, not kept in the run's folder."""


def check_tunable(source: TunableReader, recipe: TuningRecipe) -> None:
    """Raise `RopeError` if positions must skip and those of the model cannot."""
    positions = source.positions
    if recipe.window is not None and any(extension is not None for extension in positions.extensions):
        raise RopeError(
            "extend: `window` makes positions skip, but this model counts the tokens of each row.",
            facts={"method": recipe.method, "extensions": positions.extensions},
            cure="Choose a method that scales frequencies, or leave out `window`.",
        )


def tuning_positions(positions: Positions, method: str) -> Positions:
    """Return the positions for tuning: those of `method`, except that DroPE has no scale of its logits.

    DroPE is tuned at the trained length, where that scale is 1 (Gelberg et al. 2025, arXiv:2512.12167).
    """
    if method in METHODS and METHODS[method].tuned_at_trained_length:
        return replace(positions, extensions=(None,) * len(positions.extensions))
    return positions


def tune_reader(
    source: TunableReader,
    recipe: TuningRecipe,
    folder: str | Path,
    *,
    restart: bool = False,
    housekeeping: Housekeeping | None = None,
    report: Report | None = None,
) -> TunableReader:
    """Train a copy of a model. Ctrl-C writes a checkpoint and raises KeyboardInterrupt.

    **Arguments:**
    - `source`: the model with its tokenizer, under the positions for tuning; it does not change.
    - `folder`: of the run: its log, and checkpoints of the trained tensors. A run with an equal recipe resumes from its
      last checkpoint, to the same bits as one that was never stopped; `restart` discards it.
    - `report`: called with each `training.Event`.

    **Returns:** the trained model in eval mode, in float32, with its adapters merged.
    **Raises:** `RopeError` for invalid texts or settings, for a run with other settings in the folder, and if the loss
    or a gradient is not finite.
    """
    kept = RunFolder(folder)
    with kept.locked(), torch.random.fork_rng():
        here = replace(recipe.on_this_machine(), source=source.digest())
        task = TuningTask(source, here, housekeeping)
        run = Run(task, kept, report)
        run.prepare(resume=False, restart=restart)
        with task.copy.activation_checkpointing(here.activation_checkpointing):
            run.train()
    return task.copy.merged().to(device=source.device)
