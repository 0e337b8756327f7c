"""Everything that decides what a training run computes: one frozen, checked record.

The module imports no torch, so that the help can be shown without it.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, asdict, dataclass, field, fields, replace
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
"""The encodings that a text can be trained with: rope, and every name of `ropewalk.encodings.ENCODINGS`."""
PRECISIONS = ("auto", "float32", "bfloat16")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class TrainSettings:
    """What a run computes; two runs with equal settings on equal texts and threads give the same bits.

    Texts and tokenizer
    - `text`: UTF-8 files, one document each. `validation`: files to validate on; none: the last `validation_fraction`
      of each text, which is then not trained on (0: no validation). `validation_windows` windows at most, each of
      `validation_length` tokens (None: `seq_len`).
    - `tokenizer`: "bpe" (byte-level, trained on the text, at most `vocab_size` tokens), "bytes", or a tokenizer.json.

    Shape
    - `size` names a row of `SIZES`; `layers`, `hidden_size`, `heads`, `kv_heads`, `intermediate_size` override it.
    - `encoding`: how positions are known, a name of `ropewalk.encodings` ("rope", "alibi", "none", ...); "learned" has
      `seq_len` positions. `theta`: the base of rope, xpos, sinusoidal and transformer_xl.
    - `seq_len`: tokens of a window, the trained length. `dropout`: of residual branches.
    - `repeat_share`: the share of the windows in which blocks of random words and of text occur twice, at varied
      distances, from which a small model learns to copy from its context. Validation windows are plain text.
    - `copy_warmup`: this many updates, the first of the run, see no text but blocks of random tokens, each repeated
      until its window is full, without dropout: where repeats in text do not teach a model to copy, these do.

    Optimisation (AdamW; decay on matrices only)
    - `batch_size` windows at a time, `accumulation` batches per update; `steps` updates, or `epochs` over the text.
    - `lr` peak, after `warmup` updates (None: a twentieth of them, at most 200), then a cosine to `final_lr` * `lr`.
    - `clip`: largest gradient norm. `precision`: of matrix products; weights, sums and norms stay float32.

    Raises `RopeError` naming what does not fit.

    >>> TrainSettings(text=("novel.txt",), size="nano", heads=8).decoder_config(vocab_size=512).head_dim
    16
    """

    text: tuple[str, ...] = field(
        metadata={
            "help": "UTF-8 text files to train on, plain or gzipped; each file is one document.",
            "metavar": "FILE",
            "rest": "Further texts, as in --text A B C.",
        }
    )
    _: KW_ONLY
    validation: tuple[str, ...] = field(default=(), metadata={"help": "Text files to validate on.", "metavar": "FILE"})
    validation_fraction: float = field(
        default=0.05,
        metadata={"help": "Without --validation: this last part of each text is kept out of training; 0 for none."},
    )
    validation_windows: int = field(default=64, metadata={"help": "Validation windows at most."})
    validation_length: int | None = field(
        default=None, metadata={"help": "Tokens of a validation window [default: --seq-len].", "unit": "tokens"}
    )
    tokenizer: str = field(
        default="bpe", metadata={"help": '"bpe" (trained on the text), "bytes", or the path of a tokenizer.json.'}
    )
    vocab_size: int = field(default=4096, metadata={"help": "Tokens of the trained tokenizer."})
    size: str = field(
        default="tiny", metadata={"help": f"Preset: {', '.join(SIZES)}; the next five options override it."}
    )
    layers: int | None = field(default=None, metadata={"help": "Layers."})
    hidden_size: int | None = field(default=None, metadata={"help": "Features of a token."})
    heads: int | None = field(default=None, metadata={"help": "Query heads."})
    kv_heads: int | None = field(
        default=None, metadata={"help": "Key and value heads [default with --heads: the same]."}
    )
    intermediate_size: int | None = field(default=None, metadata={"help": "Features inside the feed-forward."})
    encoding: str = field(default="rope", metadata={"help": f"Position encoding: {', '.join(TEXT_ENCODINGS)}."})
    theta: float = field(
        default=10_000.0, metadata={"help": "Base of the frequencies, for rope, xpos, sinusoidal and transformer_xl."}
    )
    seq_len: int = field(
        default=256, metadata={"help": "Tokens of a training window: the trained length.", "unit": "tokens"}
    )
    repeat_share: float = field(
        default=0.0,
        metadata={"help": "Share of the windows in which blocks of words occur twice, to teach the model to copy."},
    )
    copy_warmup: int = field(
        default=0,
        metadata={"help": "Updates at the run's beginning on repeated random tokens, to teach the model to copy."},
    )
    dropout: float = field(default=0.0, metadata={"help": "Dropout of the residual branches."})
    batch_size: int = field(default=16, metadata={"help": "Windows of one batch."})
    accumulation: int = field(default=1, metadata={"help": "Batches of one update."})
    steps: int | None = field(default=None, metadata={"help": "Updates."})
    epochs: float | None = field(
        default=None, metadata={"help": "Passes over the text, instead of --steps [default: 4]."}
    )
    lr: float = field(default=3e-3, metadata={"help": "Peak learning rate."})
    final_lr: float = field(default=0.1, metadata={"help": "Last learning rate, as a fraction of the peak."})
    warmup: int | None = field(
        default=None, metadata={"help": "Updates until the peak [default: a twentieth of all, at most 200]."}
    )
    weight_decay: float = field(default=0.1, metadata={"help": "AdamW's weight decay, on matrices only."})
    beta1: float = field(default=0.9, metadata={"help": "AdamW's beta1."})
    beta2: float = field(default=0.95, metadata={"help": "AdamW's beta2."})
    clip: float = field(default=1.0, metadata={"help": "Largest norm of the gradient."})
    precision: str = field(default="auto", metadata={"help": "Precision of matrix products: auto, float32, bfloat16."})
    device: str = field(default="auto", metadata={"help": "Device: auto, cpu, cuda."})
    seed: int = field(default=0, metadata={"help": "Seed of weights, order and dropout."})

    def __post_init__(self) -> None:
        for name in ("text", "validation"):
            object.__setattr__(self, name, tuple(str(path) for path in getattr(self, name)))
        self._check_texts()
        self._check_numbers()
        _choice("size", self.size, tuple(SIZES))
        _choice("encoding", self.encoding, TEXT_ENCODINGS)
        _choice("precision", self.precision, PRECISIONS)
        _choice("device", self.device.partition(":")[0], ("auto", "cpu", "cuda"))
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

    def _check_texts(self) -> None:
        if not self.text:
            raise RopeError("train: there is no text to train on.", cure="Pass --text FILE, once for each file.")
        if self.steps is not None and self.epochs is not None:
            raise RopeError(
                "train: `steps` and `epochs` both say how long to train.",
                facts={"steps": self.steps, "epochs": self.epochs},
                cure="Pass one of them.",
            )

    def _check_numbers(self) -> None:
        least = {"seq_len": 2, "vocab_size": 2, "batch_size": 1, "accumulation": 1, "validation_windows": 1, "steps": 1}
        least |= dict.fromkeys(_SHAPE, 1) | {"warmup": 0, "seed": 0, "copy_warmup": 0, "validation_length": 2}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and value < low:
                raise RopeError(
                    f"train: `{name}` must be at least {low}.",
                    facts={name: value},
                    cure=f"Pass --{name.replace('_', '-')} {low} or more.",
                )
        positive = ("lr", "clip", "epochs", "theta")
        for name in positive:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise RopeError(
                    f"train: `{name}` must be a finite number above 0.",
                    facts={name: value},
                    cure="Leave it out for the default.",
                )
        for name in ("validation_fraction", "repeat_share", "dropout", "final_lr", "beta1", "beta2", "weight_decay"):
            value = getattr(self, name)
            top = 1.0 if name in ("repeat_share", "final_lr", "weight_decay") else math.nextafter(1.0, 0.0)
            if not 0.0 <= value <= top:
                raise RopeError(
                    f"train: `{name}` must be from 0 to {'1' if top == 1.0 else 'below 1'}.",
                    facts={name: value},
                    cure="Leave it out for the default.",
                )

    def decoder_config(self, vocab_size: int) -> DecoderConfig:
        """The model's shape: Llama's (RMSNorm, SwiGLU, tied head), by default with half-split rotary pairs."""
        from ropewalk.models.config import DecoderConfig
        from ropewalk.rope.config import RopeConfig

        hidden, heads = int(self.hidden_size or 0), int(self.heads or 0)
        if hidden % heads or (hidden // heads) % 2 or heads % int(self.kv_heads or 1):
            raise RopeError(
                "train: `hidden_size` / `heads` must be a whole even number, and `heads` a multiple of `kv_heads`.",
                facts={"hidden_size": hidden, "heads": heads, "kv_heads": self.kv_heads},
                cure="For example --hidden-size 192 --heads 3 --kv-heads 1.",
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
        """The rival of this name, with the trained length and the base where it has them."""
        from ropewalk.encodings import ENCODINGS, LearnedAbsolute, Sinusoidal, TransformerXL, XPos

        if self.encoding == "learned":
            return LearnedAbsolute(self.seq_len)
        if self.encoding == "sinusoidal":
            return Sinusoidal(self.theta)
        if self.encoding == "transformer_xl":
            return TransformerXL(self.theta)
        return XPos(rope) if self.encoding == "xpos" else ENCODINGS[self.encoding]()

    def on_this_machine(self) -> TrainSettings:
        """These settings with `device` and `precision` chosen, where they say "auto"."""
        device, precision = on_machine(self.device, self.precision)
        return replace(self, device=device, precision=precision)

    def to_json(self) -> dict[str, Any]:
        """These settings as JSON holds them; paths absolute, so that another folder means the same run."""
        plain = asdict(self)
        for name in ("text", "validation"):
            plain[name] = [str(Path(path).resolve()) for path in plain[name]]
        if Path(self.tokenizer).suffix == ".json":
            plain["tokenizer"] = str(Path(self.tokenizer).resolve())
        return plain

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The settings' names, in order."""
        return tuple(each.name for each in fields(cls) if each.name != "_")


def on_machine(device: str, precision: str) -> tuple[str, str]:
    """Device and precision, chosen where they say "auto"; a `RopeError` for CUDA on a machine without."""
    import torch

    from ropewalk.models.precision import fast_bfloat16

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


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise RopeError(f"train: unknown `{name}`.", facts={name: value, "known": known}, cure="Pass one of these.")
