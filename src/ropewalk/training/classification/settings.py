"""Everything that decides what the training of a classifier computes: one frozen, checked record.

The module imports no torch, so that the help can be shown without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import RopeError
from ropewalk.training.settings import PRECISIONS, TEXT_ENCODINGS, on_machine

if TYPE_CHECKING:
    from ropewalk.models.classifier import TextClassifierConfig

CLASS_WEIGHTS = ("none", "balanced")
SELECT = ("accuracy", "macro_f1", "loss")


@dataclass(frozen=True)
class ClassifySettings:
    """What a run computes; two runs with equal settings on equal files and threads give the same bits.

    Files
    - `data`: a UTF-8 CSV file with the columns `text_column` and `label_column`. `validation`: another; None: the
      `validation_fraction` of each class of `data`, drawn by `seed`, is kept out of training (0: no validation, so no
      early stopping).
    - `tokenizer`: "bpe" (byte-level, trained on the texts, at most `vocab_size` tokens, in lower case if `lowercase`),
      "bytes", or a tokenizer.json. Texts beyond `max_length` tokens are cut.

    Shape
    - `layers`, `hidden_size`, `heads`, `intermediate_size`; `encoding`: a name of `ropewalk.encodings`; `pooling`.
    - `initializer_range`, `embedding_range`: standard deviations of matrices and embeddings before training.

    Optimisation (AdamW; decay on matrices only)
    - `batch_size` texts of like length; at most `epochs` over them. After each, validation; where `select` (of
      validation) has not improved for `patience` epochs, training ends. The best epoch's weights are kept.
    - `lr` peak, after `warmup` updates (None: a twentieth of them, at most 200), then a cosine to `final_lr` * `lr`.
    - `dropout`, `attention_dropout`, `token_dropout` (whole tokens left out), `label_smoothing`; `class_weights`:
      "balanced" gives each class the same part in the loss.

    Raises `RopeError` naming what does not fit.

    >>> ClassifySettings("train.csv", heads=4).config(("no", "yes"), vocab_size=512).head_dim
    48
    """

    data: str = field(metadata={"help": "CSV file (UTF-8, with a header) to train on.", "metavar": "FILE"})
    _: KW_ONLY
    text_column: str = field(default="text", metadata={"help": "Column of the texts."})
    label_column: str = field(default="label", metadata={"help": "Column of the labels."})
    validation: str | None = field(default=None, metadata={"help": "CSV file to validate on.", "metavar": "FILE"})
    validation_fraction: float = field(
        default=0.1,
        metadata={"help": "Without --validation: this fraction of each class is kept out of training; 0 for none."},
    )
    tokenizer: str = field(
        default="bpe", metadata={"help": '"bpe" (trained on the texts), "bytes", or the path of a tokenizer.json.'}
    )
    vocab_size: int = field(default=4096, metadata={"help": "Tokens of the trained tokenizer."})
    lowercase: bool = field(default=True, metadata={"help": "The trained tokenizer folds case."})
    max_length: int = field(default=256, metadata={"help": "Tokens of a text; longer texts are cut.", "unit": "tokens"})
    layers: int = field(default=2, metadata={"help": "Layers."})
    hidden_size: int = field(default=192, metadata={"help": "Features of a token."})
    heads: int = field(default=3, metadata={"help": "Attention heads."})
    intermediate_size: int = field(default=512, metadata={"help": "Features inside the feed-forward."})
    encoding: str = field(default="rope", metadata={"help": f"Position encoding: {', '.join(TEXT_ENCODINGS)}."})
    pooling: str = field(default="mean", metadata={"help": '"mean" of the tokens, or the "first".'})
    initializer_range: float = field(default=0.04, metadata={"help": "Standard deviation of the initial matrices."})
    embedding_range: float = field(default=0.3, metadata={"help": "Standard deviation of the initial embeddings."})
    dropout: float = field(
        default=0.2, metadata={"help": "Dropout of embeddings, residual branches and pooled vector."}
    )
    attention_dropout: float = field(default=0.0, metadata={"help": "Dropout of attention's weights."})
    token_dropout: float = field(
        default=0.1, metadata={"help": "Probability that a whole token is left out in training."}
    )
    label_smoothing: float = field(default=0.1, metadata={"help": "Label smoothing."})
    class_weights: str = field(
        default="none", metadata={"help": f"Weights of the classes in the loss: {' or '.join(CLASS_WEIGHTS)}."}
    )
    batch_size: int = field(default=64, metadata={"help": "Texts of one batch."})
    epochs: int = field(default=16, metadata={"help": "Passes over the texts, at most."})
    patience: int = field(
        default=8, metadata={"help": "Training ends after this many epochs without a better validation score."}
    )
    select: str = field(
        default="accuracy", metadata={"help": f"The validation score that selects the best epoch: {', '.join(SELECT)}."}
    )
    lr: float = field(default=2e-3, metadata={"help": "Peak learning rate."})
    final_lr: float = field(default=0.01, metadata={"help": "Last learning rate, as a fraction of the peak."})
    warmup: int | None = field(
        default=None, metadata={"help": "Updates until the peak [default: a twentieth of all, at most 200]."}
    )
    weight_decay: float = field(default=0.1, metadata={"help": "AdamW's weight decay, on matrices only."})
    beta1: float = field(default=0.9, metadata={"help": "AdamW's beta1."})
    beta2: float = field(default=0.98, metadata={"help": "AdamW's beta2."})
    clip: float = field(default=1.0, metadata={"help": "Largest norm of the gradient."})
    precision: str = field(default="auto", metadata={"help": "Precision of matrix products: auto, float32, bfloat16."})
    device: str = field(default="auto", metadata={"help": "Device: auto, cpu, cuda."})
    seed: int = field(default=0, metadata={"help": "Seed of split, weights, order and dropout."})

    def __post_init__(self) -> None:
        from ropewalk.models.classifier import POOLINGS

        object.__setattr__(self, "data", str(self.data))
        if self.validation is not None:
            object.__setattr__(self, "validation", str(self.validation))
        choices = {"pooling": POOLINGS, "class_weights": CLASS_WEIGHTS, "select": SELECT, "precision": PRECISIONS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise RopeError(
                    f"classify: unknown `{name}`.",
                    facts={name: getattr(self, name), "known": known},
                    cure="Pass one of these.",
                )
        self._check_numbers()

    def _check_numbers(self) -> None:
        whole = (
            "max_length",
            "layers",
            "hidden_size",
            "heads",
            "intermediate_size",
            "batch_size",
            "epochs",
            "patience",
        )
        for name, low in (dict.fromkeys(whole, 1) | {"vocab_size": 257, "warmup": 0, "seed": 0}).items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise RopeError(
                    f"classify: `{name}` must be at least {low}.",
                    facts={name: value},
                    cure=f"Pass --{name.replace('_', '-')} {low} or more.",
                )
        below = ("validation_fraction", "dropout", "attention_dropout", "token_dropout", "label_smoothing", "beta1")
        tops = dict.fromkeys((*below, "beta2"), False) | {"final_lr": True, "weight_decay": True}
        for name, reached in tops.items():
            value = getattr(self, name)
            if not (0.0 <= value < 1.0 or (reached and value == 1.0)):
                raise RopeError(
                    f"classify: `{name}` must be from 0 to {'1' if reached else 'below 1'}.",
                    facts={name: value},
                    cure="Leave it out for the default.",
                )
        for name in ("lr", "clip", "initializer_range", "embedding_range"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise RopeError(
                    f"classify: `{name}` must be a finite number above 0.",
                    facts={name: value},
                    cure="Leave it out for the default.",
                )

    def config(self, labels: Sequence[str], vocab_size: int) -> TextClassifierConfig:
        """The model's shape."""
        from ropewalk.models.classifier import TextClassifierConfig

        return TextClassifierConfig(
            vocab_size=vocab_size,
            labels=labels,
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            encoding=self.encoding,
            pooling=self.pooling,
            max_length=self.max_length,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            initializer_range=self.initializer_range,
            embedding_range=self.embedding_range,
        )

    def on_this_machine(self) -> ClassifySettings:
        """These settings with `device` and `precision` chosen, where they say "auto"."""
        device, precision = on_machine(self.device, self.precision)
        return replace(self, device=device, precision=precision)

    def to_json(self) -> dict[str, Any]:
        """These settings as JSON holds them; paths absolute, so that another folder means the same run."""
        plain = asdict(self)
        for name in ("data", "validation"):
            plain[name] = None if plain[name] is None else str(Path(plain[name]).resolve())
        if Path(self.tokenizer).suffix == ".json":
            plain["tokenizer"] = str(Path(self.tokenizer).resolve())
        return plain

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The settings' names, in order."""
        return tuple(each.name for each in fields(cls) if each.name != "_")
