"""The settings of a classifier's training: one frozen, checked record.

The module does not import torch, so the help is quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.training.settings import (
    DEVICE,
    PRECISION,
    PRECISIONS,
    TEXT_ENCODINGS,
    WARMUP,
    check_choice,
    check_numbers,
    in_file,
    on_machine,
    option,
)

if TYPE_CHECKING:
    from ropewalk.models.classifier import TextClassifierConfig

CLASS_WEIGHTS = ("none", "balanced")
SELECT = ("accuracy", "macro_f1", "loss")


@dataclass(frozen=True)
class ClassifySettings:
    """Settings that determine a run; runs with equal settings, files and numbers of threads give the same bits.

    Files
    - `data`: a UTF-8 CSV file with the columns `text_column` and `label_column`.
    - `validation`: a second such file. If None, the `validation_fraction` of each class of `data`, drawn by `seed`, is
      kept out of training (0: no validation, so no early stopping).
    - `tokenizer`: "bpe" (byte-level, trained on the texts, at most `vocab_size` tokens, in lower case if `lowercase`),
      "bytes", or a tokenizer.json. Texts longer than `max_length` tokens are cut.

    Shape
    - `layers`, `hidden_size`, `heads`, `intermediate_size`; `encoding`: a name of `ropewalk.encodings`; `pooling`.
    - `initializer_range`, `embedding_range`: standard deviations of matrices and embeddings before training.

    Optimisation (AdamW; decay on matrices only)
    - `batch_size`: texts of similar length. `epochs`: most passes over the texts, each followed by validation. Training
      ends when the validation score `select` has not improved for `patience` epochs. The best weights are kept.
    - `lr` peak, after `warmup` updates (None: a twentieth of them, at most 200), then a cosine to `final_lr` * `lr`.
    - `dropout`, `attention_dropout`, `token_dropout` (whole tokens left out), `label_smoothing`; `class_weights`:
      "balanced" gives each class the same weight in the loss.

    **Raises:** `RopeError` for an invalid value.

    >>> ClassifySettings("train.csv", heads=4).config(("no", "yes"), vocab_size=512).head_dim
    48
    """

    data: str = option("Texts", "CSV file (UTF-8, with a header) to train on.", metavar="FILE")
    _: KW_ONLY
    text_column: str = option("Texts", "Column of the texts.", "text")
    label_column: str = option("Texts", "Column of the labels.", "label")
    validation: str | None = option(
        "Texts", "CSV file to validate on [default: a part of each class].", None, metavar="FILE"
    )
    validation_fraction: float = in_file(
        "Without --validation: the fraction of each class to keep out of training; 0 for none.", 0.1
    )
    tokenizer: str = in_file('"bpe" (trained on the texts), "bytes", or the path of a tokenizer.json.', "bpe")
    vocab_size: int = in_file("Tokens of the trained tokenizer.", 4096)
    lowercase: bool = in_file("Whether the trained tokenizer folds case.", True)
    max_length: int = option("Model", "Tokens of a text; longer texts are cut.", 256, unit="tokens")
    layers: int = in_file("Layers.", 2)
    hidden_size: int = in_file("Features of a token.", 192)
    heads: int = in_file("Attention heads.", 3)
    intermediate_size: int = in_file("Features inside the feed-forward.", 512)
    encoding: str = option("Model", f"Position encoding: {', '.join(TEXT_ENCODINGS)}.", "rope")
    pooling: str = in_file('"mean" of the tokens, or the "first".', "mean")
    initializer_range: float = in_file("Standard deviation of the initial matrices.", 0.04)
    embedding_range: float = in_file("Standard deviation of the initial embeddings.", 0.3)
    dropout: float = in_file("Dropout of embeddings, residual branches and pooled vector.", 0.2)
    attention_dropout: float = in_file("Dropout of the attention weights.", 0.0)
    token_dropout: float = in_file("Probability of dropping a whole token in training.", 0.1)
    label_smoothing: float = in_file("Label smoothing.", 0.1)
    class_weights: str = in_file(f"Weights of the classes in the loss: {' or '.join(CLASS_WEIGHTS)}.", "none")
    batch_size: int = option("Training", "Texts of one batch.", 64)
    epochs: int = option("Training", "Passes over the texts, at most.", 16)
    patience: int = in_file("Training ends after this many epochs without a better validation score.", 8)
    select: str = in_file(f"Validation score that selects the best epoch: {', '.join(SELECT)}.", "accuracy")
    lr: float = option("Training", "Peak learning rate.", 2e-3)
    final_lr: float = in_file("Last learning rate, as a fraction of the peak.", 0.01)
    warmup: int | None = in_file(WARMUP, None)
    weight_decay: float = in_file("AdamW's weight decay, on matrices only.", 0.1)
    beta1: float = in_file("AdamW's beta1.", 0.9)
    beta2: float = in_file("AdamW's beta2.", 0.98)
    clip: float = in_file("Largest norm of the gradient.", 1.0)
    precision: str = in_file(PRECISION, "auto")
    device: str = option("Training", DEVICE, "auto")
    seed: int = option("Training", "Seed of split, weights, order and dropout.", 0)

    def __post_init__(self) -> None:
        from ropewalk.models.classifier import POOLINGS

        object.__setattr__(self, "data", str(self.data))
        if self.validation is not None:
            object.__setattr__(self, "validation", str(self.validation))
        choices = {"pooling": POOLINGS, "class_weights": CLASS_WEIGHTS, "select": SELECT, "precision": PRECISIONS}
        for name, known in choices.items():
            check_choice("classify", name, getattr(self, name), known)
        shape = ("max_length", "layers", "hidden_size", "heads", "intermediate_size")
        check_numbers(
            "classify",
            self,
            least=dict.fromkeys((*shape, "batch_size", "epochs", "patience"), 1)
            | {"vocab_size": 257, "warmup": 0, "seed": 0},
            positive=("lr", "clip", "initializer_range", "embedding_range"),
            fractions=(
                *("validation_fraction", "dropout", "attention_dropout", "token_dropout", "label_smoothing"),
                *("beta1", "beta2"),
            ),
            ratios=("final_lr", "weight_decay"),
        )

    def config(self, labels: Sequence[str], vocab_size: int) -> TextClassifierConfig:
        """Return the model's shape."""
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
        """Return these settings with `device` and `precision` chosen if they are "auto"."""
        device, precision = on_machine(self.device, self.precision)
        return replace(self, device=device, precision=precision)

    def to_json(self) -> dict[str, Any]:
        """Return these settings as JSON values, with absolute paths."""
        plain = asdict(self)
        for name in ("data", "validation"):
            plain[name] = None if plain[name] is None else str(Path(plain[name]).resolve())
        if Path(self.tokenizer).suffix == ".json":
            plain["tokenizer"] = str(Path(self.tokenizer).resolve())
        return plain
