"""The settings of a training run: frozen, checked records, and the events of a run.

The module does not import torch, so the help is quick.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import KW_ONLY, MISSING, asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from ropewalk.encodings import EncodingConfig
    from ropewalk.models.config import DecoderConfig
    from ropewalk.rope.config import RopeConfig

# layers, hidden_size, heads, kv_heads, intermediate_size; parameters with 4,096 tokens
SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "nano": (4, 128, 4, 2, 352),  # 1.3 M
    "tiny": (6, 192, 3, 3, 512),  # 3.4 M: the built-in model
    "small": (8, 384, 6, 2, 1024),  # 14 M
    "base": (12, 768, 12, 4, 2048),  # 79 M
}
_SHAPE = ("layers", "hidden_size", "heads", "kv_heads", "intermediate_size")
TEXT_ENCODINGS = (
    "rope", "none", "sinusoidal", "learned", "relative", "t5", "transformer_xl", "alibi", "kerple", "fire", "xpos",
)  # fmt: skip
"""The encodings for training on text: rope, and every name of `ropewalk.encodings.ENCODINGS`."""
PRECISIONS = ("auto", "float32", "bfloat16")
DTYPES = ("float32", "bfloat16", "float16")
WARMUP = "Updates until the peak (none: a twentieth of all, at most 200)."
PRECISION = f"Precision of matrix products: {', '.join(PRECISIONS)}."
DEVICE = "Device: auto, cpu, cuda."


def option(group: str, description: str, default: Any = MISSING, **metadata: Any) -> Any:
    """Return a field with an option, listed under the heading `group`; without a default it is required."""
    return field(default=default, metadata={"help": description, "group": group, **metadata})


def in_file(description: str, default: Any, **metadata: Any) -> Any:
    """Return a field that is set in the file of --settings."""
    return field(default=default, metadata={"help": description, "file": True, **metadata})


def check_numbers(
    command: str,
    settings: Any,
    *,
    least: Mapping[str, int],
    positive: Collection[str],
    fractions: Collection[str],
    ratios: Collection[str],
) -> None:
    """Raise `RopeError` for a number out of range; None passes.

    **Arguments:**
    - `command`: the command's name in the message.
    - `least`: names of whole numbers and their least values.
    - `positive`: names of finite numbers above 0.
    - `fractions`: names of numbers at least 0 and less than 1.
    - `ratios`: names of numbers from 0 to 1.
    """
    above, below = math.nextafter(0.0, 1.0), math.nextafter(1.0, 0.0)
    ranges: dict[str, tuple[str, float, float]] = {
        **{name: (f"at least {low}", low, math.inf) for name, low in least.items()},
        **dict.fromkeys(positive, ("a finite number above 0", above, sys.float_info.max)),
        **dict.fromkeys(fractions, ("at least 0 and less than 1", 0.0, below)),
        **dict.fromkeys(ratios, ("from 0 to 1", 0.0, 1.0)),
    }
    for name, (rule, low, high) in ranges.items():
        value = getattr(settings, name)
        if value is not None and not low <= value <= high:
            raise RopeError(
                f"{command}: `{name}` must be {rule}.",
                facts={name: value},
                cure=f"Change `{name}`, or leave it out for the default.",
            )


def check_choice(command: str, name: str, value: str, known: Collection[str]) -> None:
    """Raise `RopeError` for an unknown value."""
    if value not in known:
        raise RopeError(f"{command}: unknown `{name}`.", facts={name: value, "known": known}, cure="Pass one of these.")


@dataclass(frozen=True)
class Event:
    """An event of a run; `kind` is "start", "step", "log", "checkpoint", "score" or "done"."""

    kind: str
    step: int
    steps: int
    facts: dict[str, Any] = field(default_factory=dict)


Report = Callable[[Event], None]


@dataclass(frozen=True)
class Housekeeping:
    """Intervals of logs, validations and checkpoints, in updates; they do not change the result.

    None means a twentieth of the run, but at least 50 updates. A run also writes a checkpoint when `checkpoint_minutes`
    have passed since the last one. It keeps the newest `keep` checkpoints.
    """

    log_every: int = in_file("Updates between lines of the log.", 10)
    validate_every: int | None = in_file("Updates between validations (none: a twentieth of the run).", None)
    checkpoint_every: int | None = in_file("Updates between checkpoints (none: a twentieth of the run).", None)
    checkpoint_minutes: float = in_file("Most minutes between checkpoints.", 5.0)
    keep: int = in_file("Number of checkpoints to keep.", 2)

    def __post_init__(self) -> None:
        names = ("log_every", "validate_every", "checkpoint_every", "keep")
        check_numbers("train", self, least=dict.fromkeys(names, 1), positive=(), fractions=(), ratios=())


@dataclass(frozen=True)
class TrainSettings:
    """Settings that determine a run; runs with equal settings, texts and numbers of threads give the same bits.

    Texts and tokenizer
    - `text`: UTF-8 files, one document each.
    - `validation`: files to validate on. By default, the run validates on the last `validation_fraction` of each text
      and does not train on it (0: no validation). There are at most `validation_windows` windows of
      `validation_length` tokens each (None: `seq_len`).
    - `tokenizer`: "bpe" (byte-level, trained on the text, at most `vocab_size` tokens), "bytes", or a tokenizer.json.

    Shape
    - `size` names a row of `SIZES`; `layers`, `hidden_size`, `heads`, `kv_heads`, `intermediate_size` override it.
    - `encoding`: a name of `ropewalk.encodings` ("rope", "alibi", "none", ...); "learned" has `seq_len` positions.
      `theta`: the base of rope, xpos, sinusoidal and transformer_xl.
    - `seq_len`: tokens of a window, the trained length. `dropout`: of residual branches.
    - `repeat_share`: the share of windows with repeated blocks of random words and of text, at different distances.
      They teach a small model to copy from its context. Validation windows are plain text.
    - `copy_warmup`: number of first updates on windows of one repeated block of random tokens instead of text, without
      dropout. They teach copying when repeats in text do not.

    Optimisation (AdamW; decay on matrices only)
    - `batch_size`: windows in a batch. `accumulation`: batches per update. `steps`: updates, or `epochs` over the text.
    - `lr`: peak, after `warmup` updates (None: a twentieth of them, at most 200), then a cosine to `final_lr` * `lr`.
    - `clip`: largest gradient norm. `precision`: of matrix products; weights, sums and norms stay float32.

    **Raises:** `RopeError` for an invalid value.

    >>> TrainSettings(text=("novel.txt",), size="nano", heads=8).decoder_config(vocab_size=512).head_dim
    16
    """

    text: tuple[str, ...] = option(
        "Texts",
        "UTF-8 text files to train on, plain or gzipped; each file is one document.",
        metavar="FILE",
        rest="Further texts, as in --text A B C.",
    )
    _: KW_ONLY
    validation: tuple[str, ...] = option(
        "Texts", "Text files to validate on [default: the last part of each text].", (), metavar="FILE"
    )
    validation_fraction: float = in_file(
        "Without --validation: the fraction of each text to keep out of training; 0 for none.", 0.05
    )
    validation_windows: int = in_file("Most validation windows.", 64)
    validation_length: int | None = in_file("Tokens of a validation window (none: --seq-len).", None, unit="tokens")
    tokenizer: str = in_file('"bpe" (trained on the text), "bytes", or the path of a tokenizer.json.', "bpe")
    vocab_size: int = option("Model", "Tokens of the trained tokenizer.", 4096)
    size: str = option("Model", f"Preset: {', '.join(SIZES)}.", "tiny")
    layers: int | None = in_file("Layers, in place of the preset's.", None)
    hidden_size: int | None = in_file("Features of a token, in place of the preset's.", None)
    heads: int | None = in_file("Query heads, in place of the preset's.", None)
    kv_heads: int | None = in_file("Key and value heads (none: the preset's, or `heads`).", None)
    intermediate_size: int | None = in_file("Features inside the feed-forward, in place of the preset's.", None)
    encoding: str = option("Model", f"Position encoding: {', '.join(TEXT_ENCODINGS)}.", "rope")
    theta: float = in_file("Base of the frequencies of rope, xpos, sinusoidal and transformer_xl.", 10_000.0)
    seq_len: int = option("Model", "Tokens of a training window: the trained length.", 256, unit="tokens")
    repeat_share: float = in_file("Share of windows with repeated blocks of words, to teach copying.", 0.0)
    copy_warmup: int = in_file("Number of first updates on repeated random tokens, to teach copying.", 0)
    dropout: float = in_file("Dropout of the residual branches.", 0.0)
    batch_size: int = option("Training", "Windows of one batch.", 16)
    accumulation: int = in_file("Batches of one update.", 1)
    steps: int | None = option("Training", "Updates.", None)
    epochs: float | None = option("Training", "Passes over the text, instead of --steps [default: 4].", None)
    lr: float = option("Training", "Peak learning rate.", 3e-3)
    final_lr: float = in_file("Last learning rate, as a fraction of the peak.", 0.1)
    warmup: int | None = in_file(WARMUP, None)
    weight_decay: float = in_file("AdamW's weight decay, on matrices only.", 0.1)
    beta1: float = in_file("AdamW's beta1.", 0.9)
    beta2: float = in_file("AdamW's beta2.", 0.95)
    clip: float = in_file("Largest norm of the gradient.", 1.0)
    precision: str = in_file(PRECISION, "auto")
    device: str = option("Training", DEVICE, "auto")
    seed: int = option("Training", "Seed of weights, order and dropout.", 0)

    def __post_init__(self) -> None:
        for name in ("text", "validation"):
            object.__setattr__(self, name, tuple(str(path) for path in getattr(self, name)))
        if not self.text:
            raise RopeError("train: `text` is empty.", cure="Pass --text FILE, once for each file.")
        if self.steps is not None and self.epochs is not None:
            raise RopeError(
                "train: `steps` and `epochs` are mutually exclusive.",
                facts={"steps": self.steps, "epochs": self.epochs},
                cure="Pass one of them.",
            )
        ones = (*_SHAPE, "batch_size", "accumulation", "validation_windows", "steps")
        zeros = ("warmup", "seed", "copy_warmup")
        check_numbers(
            "train",
            self,
            least=dict.fromkeys(("seq_len", "vocab_size", "validation_length"), 2)
            | dict.fromkeys(ones, 1)
            | dict.fromkeys(zeros, 0),
            positive=("lr", "clip", "epochs", "theta"),
            fractions=("validation_fraction", "dropout", "beta1", "beta2"),
            ratios=("repeat_share", "final_lr", "weight_decay"),
        )
        check_choice("train", "size", self.size, SIZES)
        check_choice("train", "encoding", self.encoding, TEXT_ENCODINGS)
        check_choice("train", "precision", self.precision, PRECISIONS)
        check_choice("train", "device", self.device.partition(":")[0], ("auto", "cpu", "cuda"))
        layers, hidden, heads, kv_heads, inner = SIZES[self.size]
        if self.heads is not None and self.kv_heads is None:
            kv_heads = self.heads
        if self.hidden_size is not None and self.intermediate_size is None:
            inner = max(32, -(-self.hidden_size * 8 // 3 // 32) * 32)
        resolved = (layers, hidden, heads, kv_heads, inner)
        for name, value in zip(_SHAPE, resolved, strict=True):
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", 4.0)

    def decoder_config(self, vocab_size: int) -> DecoderConfig:
        """Return the model's shape: Llama's (RMSNorm, SwiGLU, tied head), by default with half-split rotary pairs."""
        from ropewalk.models.config import DecoderConfig
        from ropewalk.rope.config import RopeConfig

        hidden, heads = int(self.hidden_size or 0), int(self.heads or 0)
        if hidden % heads or (hidden // heads) % 2 or heads % int(self.kv_heads or 1):
            raise RopeError(
                "train: `hidden_size` / `heads` must be a whole even number, and `heads` a multiple of `kv_heads`.",
                facts={"hidden_size": hidden, "heads": heads, "kv_heads": self.kv_heads},
                cure="For example hidden_size = 192, heads = 3, kv_heads = 1.",
            )
        rope = RopeConfig(
            head_dim=hidden // heads, interleaved=False, theta=self.theta, max_position_embeddings=self.seq_len
        )
        return DecoderConfig(
            vocab_size=vocab_size,
            hidden_size=hidden,
            intermediate_size=int(self.intermediate_size or 0),
            num_hidden_layers=int(self.layers or 0),
            num_attention_heads=heads,
            num_key_value_heads=self.kv_heads,
            rope=rope if self.encoding == "rope" else None,
            encoding=None if self.encoding == "rope" else self._encoding(rope),
            residual_dropout=self.dropout,
        )

    def _encoding(self, rope: RopeConfig) -> EncodingConfig:
        """Return the encoding's config, with the trained length and the base if it has them."""
        from ropewalk.encodings import ENCODINGS, LearnedAbsolute, Sinusoidal, TransformerXL, XPos

        if self.encoding == "learned":
            return LearnedAbsolute(self.seq_len)
        if self.encoding == "sinusoidal":
            return Sinusoidal(self.theta)
        if self.encoding == "transformer_xl":
            return TransformerXL(self.theta)
        return XPos(rope) if self.encoding == "xpos" else ENCODINGS[self.encoding]()

    def on_this_machine(self) -> TrainSettings:
        """Return these settings with `device` and `precision` chosen if they are "auto"."""
        device, precision = on_machine(self.device, self.precision)
        return replace(self, device=device, precision=precision)

    def to_json(self) -> dict[str, Any]:
        """Return these settings as JSON values, with absolute paths."""
        plain = asdict(self)
        for name in ("text", "validation"):
            plain[name] = [str(Path(path).resolve()) for path in plain[name]]
        if Path(self.tokenizer).suffix == ".json":
            plain["tokenizer"] = str(Path(self.tokenizer).resolve())
        return plain


def on_machine(device: str, precision: str) -> tuple[str, str]:
    """Return device and precision, chosen if they are "auto"; raise `RopeError` for CUDA on a machine without it."""
    import torch

    from ropewalk.backends.widened import fast_bfloat16

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise RopeError(
            "train: this machine has no CUDA device that torch can use.",
            facts={"device": device},
            cure="Pass --device cpu, or install a torch with CUDA.",
        )
    if precision == "auto":
        precision = "bfloat16" if fast_bfloat16(device) else "float32"
    return device, precision
