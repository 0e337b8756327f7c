"""Training a checkpoint further, at the length that it shall reach, with the method's ropes: by the loop of `train`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ropewalk.context.state import model_digest
from ropewalk.errors import RopeError
from ropewalk.extend.trainable import merge_adapters, parts_of, recomputed, trainable_copy
from ropewalk.models.decoder import Decoder
from ropewalk.models.tokenizer import TextTokenizer
from ropewalk.training.events import Housekeeping, Report
from ropewalk.training.loop import Run
from ropewalk.training.resume import RunFolder
from ropewalk.training.settings import PRECISIONS, on_machine

DROPE = "drope"
_FLOATS = ("lr", "clip")
_SHARES = ("weight_decay", "final_lr", "beta1", "beta2")


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """What tuning computes; equal settings on equal texts and threads give the same bits.

    - `text`, `validation`: UTF-8 files, one document each. `validation_windows`: at most, while training.
    - `source`: which model is tuned, under its method (`model_digest`); `tune` fills it in. `method`: that one's name.
      `trained_length`, `target`: tokens; the latter are those of every window.
    - `steps`: updates, each of `tokens_per_step` tokens (None: `batch_size` windows), rounded up to whole batches.
    - `train`, `rank`: which weights; see `trainable_copy`. `recompute`: activations anew in the backward pass.
    - `lr`: peak (0: 2e-5, or 2e-4 where only adapters, norms or embeddings are trained), after `warmup` updates
      (None: a tenth of them, at most 20), then a cosine to `final_lr` * `lr`. YaRN's recipe is 400 steps at 2e-5.
    - `precision`, `device`: "auto" chooses; `seed`: of the order, of adapters and dropout.

    Raises `RopeError` naming what does not fit.

    >>> TuneSettings(text=("a.txt",), source="", method="yarn", trained_length=512, target=2048, steps=4,
    ...              tokens_per_step=5000).accumulation
    3
    """

    text: tuple[str, ...]
    source: str
    method: str
    trained_length: int
    target: int
    steps: int
    validation: tuple[str, ...] = ()
    validation_windows: int = 4
    train: str = "all"
    rank: int = 16
    batch_size: int = 1
    tokens_per_step: int | None = None
    recompute: bool = True
    lr: float = 0.0
    final_lr: float = 0.1
    warmup: int | None = None
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    precision: str = "auto"
    device: str = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        parts = parts_of(self.train)
        if self.lr == 0:
            object.__setattr__(self, "lr", 2e-5 if {"all", "attention"} & set(parts) else 2e-4)
        if self.warmup is None:
            object.__setattr__(self, "warmup", min(20, self.steps // 10))
        if not self.text:
            raise RopeError("extend: there is no text to tune on.", cure="Pass --text FILE, once for each file.")
        least = {"target": 2, "trained_length": 1, "steps": 1, "rank": 1, "batch_size": 1, "validation_windows": 1}
        for name, low in {**least, "tokens_per_step": 1, "warmup": 0, "seed": 0}.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise RopeError(
                    f"extend: `{name}` must be at least {low}.",
                    facts={name: value},
                    cure=f"Pass --{name.replace('_', '-')} {low} or more.",
                )
        for name in (*_FLOATS, *_SHARES):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0 and (name in _SHARES or value > 0)):
                raise RopeError(
                    f"extend: `{name}` must be a finite number, and not negative.",
                    facts={name: value},
                    cure="Leave it out for the default.",
                )
        if self.precision not in PRECISIONS:
            raise RopeError(
                "extend: unknown `precision`.",
                facts={"precision": self.precision, "known": PRECISIONS},
                cure="Pass one of these.",
            )

    @property
    def seq_len(self) -> int:
        """Tokens of a window: the target."""
        return self.target

    @property
    def accumulation(self) -> int:
        """Batches summed for one update."""
        batch = self.batch_size * self.target
        return -(-(self.tokens_per_step or batch) // batch)

    @property
    def epochs(self) -> float | None:
        """Updates are counted, not times over the text."""
        return None

    @property
    def validation_fraction(self) -> float:
        """Nothing is held out of the text."""
        return 0.0

    @property
    def validation_length(self) -> int | None:
        """That of a window."""
        return None

    def on_this_machine(self) -> TuneSettings:
        """These settings with `device` and `precision` chosen, where they say "auto"."""
        device, precision = on_machine(self.device, self.precision)
        return replace(self, device=device, precision=precision)

    def to_json(self) -> dict[str, Any]:
        """These settings as JSON holds them; paths absolute, so that another folder means the same run."""
        plain = asdict(self)
        for name in ("text", "validation"):
            plain[name] = [str(Path(path).resolve()) for path in plain[name]]
        return plain


class FromCheckpoint:
    """A model with its tokenizer, to be trained further."""

    def __init__(self, model: Decoder, settings: TuneSettings) -> None:
        self.source, self.settings = model, settings

    def tokenizer(self, texts: Sequence[str], *, begun: bool) -> TextTokenizer:
        """The model's own."""
        if self.source.tokenizer is None:
            raise RopeError(
                "extend: the checkpoint has no tokenizer, so no text can be tuned on.",
                facts={"tokenizer": None},
                cure="Put its tokenizer.json beside the weights.",
            )
        return self.source.tokenizer

    def model(self, vocab_size: int) -> Decoder:
        """The copy that is trained."""
        return trainable_copy(self.source, self.settings.train, rank=self.settings.rank)


def tuning_form(model: Decoder, method: str) -> Decoder:
    """The model as it is tuned, under `method`: itself, but for DroPE without the scale of its logits.

    DroPE is tuned at the length that the model was trained to, where that scale is 1; it belongs to longer texts alone
    (Gelberg et al. 2025, arXiv:2512.12167).
    """
    return model.with_extension(None) if method == DROPE else model


def tuning_length(method: str, *, trained_length: int, target: int) -> int:
    """Tokens of a window in tuning: the target, but for DroPE the trained length.

    >>> tuning_length("yarn", trained_length=256, target=1024), tuning_length("drope", trained_length=256, target=1024)
    (1024, 256)
    """
    return trained_length if method == DROPE else target


def tune(
    model: Decoder,
    settings: TuneSettings,
    folder: str | Path,
    *,
    restart: bool = False,
    housekeeping: Housekeeping | None = None,
    report: Report | None = None,
) -> Decoder:
    """Train a copy of `model` at the target length; returns it in eval mode, adapters merged, in float32.

    **Arguments:**
    - `model`: with the method's ropes applied, and its tokenizer; left as it is.
    - `folder`: keeps the run: its log and checkpoints of what is trained. With equal settings in it the run goes on
      from the last one, to the same bits as one that was never stopped. `restart` throws it away first.
    - `report`: is told what happens; see `training.Event`.

    Ctrl-C writes a checkpoint and raises KeyboardInterrupt. **Raises:** `RopeError` for bad texts or settings, for a
    run with other settings in the folder, and where the loss or a gradient is not finite.
    """
    kept = RunFolder(folder, trained_only=True)
    with kept.locked(), torch.random.fork_rng():
        here = replace(settings.on_this_machine(), source=model_digest(model))
        run = Run(here, FromCheckpoint(model, here), kept, housekeeping, report)
        run.prepare(resume=False, restart=restart)
        with recomputed(run.model, here.recompute):
            run.go()
    tuned = merge_adapters(run.model).requires_grad_(False).eval().to(model.embed_tokens.weight.device)
    tuned.tokenizer = model.tokenizer
    return tuned
