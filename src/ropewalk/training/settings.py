"""Everything that decides what a training run computes: one frozen, checked record."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from ropewalk.encodings import ENCODINGS, EncodingConfig, LearnedAbsolute, Sinusoidal, TransformerXL, XPos
from ropewalk.errors import RopeError
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
TEXT_ENCODINGS = ("rope", *ENCODINGS)
PRECISIONS = ("auto", "float32", "bfloat16")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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

    Optimisation (AdamW; decay on matrices only)
    - `batch_size` windows at a time, `accumulation` batches per update; `steps` updates, or `epochs` over the text.
    - `lr` peak, after `warmup` updates (None: a twentieth of them, at most 200), then a cosine to `final_lr` * `lr`.
    - `clip`: largest gradient norm. `precision`: of matrix products; weights, sums and norms stay float32.

    Raises `RopeError` naming what does not fit.

    >>> TrainSettings(text=("novel.txt",), size="nano", heads=8).decoder_config(vocab_size=512).head_dim
    16
    """

    text: tuple[str, ...]
    _: KW_ONLY
    validation: tuple[str, ...] = ()
    validation_fraction: float = 0.05
    validation_windows: int = 64
    validation_length: int | None = None
    tokenizer: str = "bpe"
    vocab_size: int = 4096
    size: str = "tiny"
    layers: int | None = None
    hidden_size: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    intermediate_size: int | None = None
    encoding: str = "rope"
    theta: float = 10_000.0
    seq_len: int = 256
    dropout: float = 0.0
    batch_size: int = 16
    accumulation: int = 1
    steps: int | None = None
    epochs: float | None = None
    lr: float = 3e-3
    final_lr: float = 0.1
    warmup: int | None = None
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    precision: str = "auto"
    device: str = "auto"
    seed: int = 0

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
        least |= dict.fromkeys(_SHAPE, 1) | {"warmup": 0, "seed": 0, "validation_length": 2}
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
        for name in ("validation_fraction", "dropout", "final_lr", "beta1", "beta2", "weight_decay"):
            value = getattr(self, name)
            top = 1.0 if name in ("final_lr", "weight_decay") else math.nextafter(1.0, 0.0)
            if not 0.0 <= value <= top:
                raise RopeError(
                    f"train: `{name}` must be from 0 to {'1' if top == 1.0 else 'below 1'}.",
                    facts={name: value},
                    cure="Leave it out for the default.",
                )

    def decoder_config(self, vocab_size: int) -> DecoderConfig:
        """The model's shape: Llama's (RMSNorm, SwiGLU, tied head), by default with half-split rotary pairs."""
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
        return tuple(field.name for field in fields(cls) if field.name != "_")


def on_machine(device: str, precision: str) -> tuple[str, str]:
    """Device and precision, chosen where they say "auto"; a `RopeError` for CUDA on a machine without."""
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


def fast_bfloat16(device: str) -> bool:
    """Whether bfloat16 products are faster than float32 there: CPUs with AVX512-BF16 or AMX, CUDA from Ampere.

    Measured on an AMD EPYC (Zen 4): 400 against 170 GFLOP/s for the products of `tiny`.
    """
    if device.startswith("cuda"):
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if device != "cpu":
        return False
    can = torch.cpu.get_capabilities()
    return bool(can.get("avx512_bf16") or can.get("amx_bf16"))


def _choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise RopeError(f"train: unknown `{name}`.", facts={name: value, "known": known}, cure="Pass one of these.")
