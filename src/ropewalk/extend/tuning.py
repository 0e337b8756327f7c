"""Train a model further under an extension method, by the loop of `ropewalk train`."""

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

    - `source`: the digest of the model that is tuned, under its method; `tune_reader` fills it in.
    - `method`, `reach`: what was applied. `validation`: files for the log's validation loss.

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
                "extend: positions skip under --window, and this method counts each row's tokens itself.",
                facts={"method": self.method, "window": self.window},
                cure="Choose a method that scales frequencies, or leave out --window.",
            )
        if self.window is not None and not 2 <= self.window <= self.skip_to:
            raise RopeError(
                "extend: a window whose positions skip is at least 2 tokens, and no longer than what they skip to.",
                facts={"window": self.window, "skip_to": self.skip_to},
                cure="Pass --window with the trained length or less.",
            )

    @property
    def skip_to(self) -> int:
        """Return the length in tokens that positions skip to: `skip_target`, or the target."""
        return self.reach.target if self.skip_target is None else self.skip_target

    @property
    def seq_len(self) -> int:
        """Return a window's tokens: the target, or `window`, or the trained length for a method tuned there (DroPE)."""
        if self.window is not None:
            return self.window
        method = METHODS.get(self.method)
        return self.reach.trained if method is not None and method.tuned_at_trained_length else self.reach.target

    @property
    def accumulation(self) -> int:
        """Return the batches summed for one update."""
        batch = self.batch_size * self.seq_len
        return -(-(self.tokens_per_step or batch) // batch)

    @property
    def epochs(self) -> float | None:
        """None: the run ends after `steps` updates."""
        return None

    @property
    def validation_fraction(self) -> float:
        """0: nothing is held out of the text."""
        return 0.0

    @property
    def validation_length(self) -> int | None:
        """None: that of a window."""
        return None

    def on_this_machine(self) -> TuningRecipe:
        """Return this recipe with "auto" resolved in `device` and `precision`."""
        device, precision = on_machine(self.device, self.precision)
        return replace(self, device=device, precision=precision)

    def to_json(self) -> dict[str, Any]:
        """Return plain data with absolute paths, so that it is the same run from another folder."""
        plain = asdict(self)
        for name in ("text", "validation"):
            plain[name] = [str(Path(path).resolve()) for path in plain[name]]
        reach = plain.pop("reach")
        lengths = {"trained_length": reach["trained"], "target": reach["target"], "seq_len": self.seq_len}
        return {**plain, **lengths, "unscaled_tokens": reach["unscaled_tokens"]}


class TuningTask(LanguageModelTask):
    """A copy of a model, trained on windows of text; its checkpoints hold what is trained, and nothing else."""

    def __init__(
        self,
        source: TunableReader,
        recipe: TuningRecipe,
        housekeeping: Housekeeping | None = None,
    ) -> None:
        super().__init__(cast(WindowSettings, recipe), housekeeping)
        self.source, self.recipe = source, recipe
        self.copy = source
        check_tunable(source, recipe)

    def make_tokenizer(self, texts: Sequence[str], folder: Path, *, begun: bool) -> Tokenizer:
        """The model's own."""
        if self.source.tokenizer is None:
            raise RopeError(
                "extend: the checkpoint has no tokenizer, so no text can be tuned on.",
                facts={"tokenizer": None},
                cure="Put its tokenizer.json beside the weights.",
            )
        return self.source.tokenizer

    def make_model(self, vocab_size: int) -> Any:
        """The copy that is trained."""
        self.copy = self.source.trainable_copy(self.recipe.train, rank=self.recipe.rank or 1)
        return self.copy.module

    def make_windows(self, stream: TokenStream, texts: Sequence[str]) -> Windows:
        """Return windows of the text, with repeated blocks and skipping positions if the recipe has them."""
        windows = WindowSampler(stream, seq_len=self.recipe.seq_len, seed=self.recipe.seed)
        found: Windows = windows
        if self.recipe.repeat_share:
            words = word_tokens(texts, self.tokenizer.encode)
            found = RepeatSampler(windows, words, share=self.recipe.repeat_share, seed=self.recipe.seed)
        if self.recipe.window is not None:
            found = SkipSampler(found, seq_len=self.recipe.skip_to, seed=self.recipe.seed)
        return found

    @property
    def positions(self) -> Positions:
        """Those of the reader: the model need not be a decoder of ours."""
        return self.copy.positions

    def batch_loss(self, batch: Batch) -> Tensor:
        """The reader's own: the model need not be a decoder of ours."""
        return self.copy.next_token_loss(
            batch.inputs,
            batch.targets,
            batch.document_ids,
            precision=self.settings.precision,
            position_ids=batch.position_ids,
            seq_len=batch.seq_len,
        )

    def write_weights(self, folder: Path) -> None:
        """The tensors that are trained: the rest comes from the checkpoint."""
        write_trained(folder, self.copy.module)

    def read_weights(self, folder: Path) -> None:
        """The reverse of `write_weights`."""
        read_trained(folder, self.copy.module)

    def write_model(self, folder: Path) -> None:
        """Nothing: what was tuned is exported, not kept in the run's folder."""


def check_tunable(source: TunableReader, recipe: TuningRecipe) -> None:
    """Refuse models whose positions cannot skip."""
    positions = source.positions
    if recipe.window is not None and any(extension is not None for extension in positions.extensions):
        raise RopeError(
            "extend: positions skip under --window, and this model counts each row's tokens itself.",
            facts={"method": recipe.method, "extensions": positions.extensions},
            cure="Choose a method that scales frequencies, or leave out --window.",
        )


def tuning_positions(positions: Positions, method: str) -> Positions:
    """Return the positions for tuning: those of `method`, but for DroPE without the scale of its logits.

    DroPE is tuned at the trained length, where that scale is 1; it belongs to longer texts alone (Gelberg et al. 2025,
    arXiv:2512.12167).
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
    """Train a copy of a model; returns it in eval mode, adapters merged, in float32.

    **Arguments:**
    - `source`: under the positions that it is tuned with, and with its tokenizer; left as it is.
    - `folder`: keeps the run: its log, and checkpoints of what is trained. With an equal recipe in it the run continues
      from the last checkpoint, to the same bits as one that was never stopped. `restart` throws it away first.
    - `report`: called with each `training.Event`.

    Ctrl-C writes a checkpoint and raises KeyboardInterrupt. **Raises:** `RopeError` for bad texts or settings, for a
    run with other settings in the folder, and where the loss or a gradient is not finite.
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
