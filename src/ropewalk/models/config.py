"""The shapes of a decoder and of a text classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.models.encoding import EncodingConfig
from ropewalk.models.encodings import LearnedAbsolute, NoPE, rope_or_encoding
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.model_ropes import ExtensionSetting, ModelRopes, RopeSetting, entries
from ropewalk.rope.values import MOST_SIZE, check_whole, checked

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
POOLINGS = ("mean", "first")


@checked
@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder; fields use Hugging Face's names where they exist.

    **Arguments:**

    - `num_key_value_heads` None: as many as heads. `head_dim` None: hidden_size / num_attention_heads.
    - `rope`: one RopeConfig for all layers, None for no position at all, or a tuple with one entry (or None) per layer.
    - `encoding`: instead of a rope one of `ropewalk.encodings`, by name or with its settings; "rope" and "axial" set
      `rope`.
    - `sliding_window`: tokens, None, or a tuple with one entry per layer.
    - `extension`: one of `ropewalk.rope.extensions`, None, or a tuple with one entry (or None) per layer.
    - `attention_bias`: of q, k, v and o. Dropouts are probabilities, applied only in training.

    **Raises:** `RopeError` if sizes do not match.

    >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
    >>> len(config.ropes), config.sliding_windows
    (2, (None, None))
    """

    _: KW_ONLY
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rope: RopeSetting = None
    encoding: str | EncodingConfig | RopeConfig | None = None
    sliding_window: int | tuple[int | None, ...] | None = None
    extension: ExtensionSetting = None
    norm_eps: float = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        where, sizes = type(self).__name__, {name: getattr(self, name) for name in SIZES}
        check_whole(where, most=MOST_SIZE, optional=False, **sizes)
        check_whole(where, most=MOST_SIZE, num_key_value_heads=self.num_key_value_heads, head_dim=self.head_dim)
        for name, usual in (("norm_eps", "1e-5 or 1e-6, as in published models"), ("residual_dropout", "0.0 or 0.1")):
            if not 0.0 <= (value := getattr(self, name)) < 1.0:
                rule = f"{where}: `{name}` must be between 0 and 1."
                raise RopeError(rule, facts={name: value}, cure=f"Pass for example {usual}.")
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise RopeError(
                f"{where}: `hidden_size` is not a multiple of `num_attention_heads`.",
                facts=sizes,
                cure="Pass head_dim=... if a head is not hidden_size / num_attention_heads.",
            )
        settings: dict[str, Any] = {
            "num_key_value_heads": self.num_key_value_heads or self.num_attention_heads,
            "head_dim": self.head_dim or self.hidden_size // self.num_attention_heads,
        }
        for name in ("rope", "sliding_window", "extension"):
            of_layers = entries(where, name, getattr(self, name), self.num_hidden_layers)
            settings[name] = of_layers[0] if len(set(of_layers)) == 1 else of_layers
        rope, encoding = rope_or_encoding(where, settings["rope"], self.encoding, settings["head_dim"])
        settings |= {"rope": rope, "encoding": None if isinstance(encoding, NoPE) else encoding}
        for name, value in settings.items():
            object.__setattr__(self, name, value)

    def _of_layers(self, name: str) -> tuple[Any, ...]:
        return entries("DecoderConfig", name, getattr(self, name), self.num_hidden_layers)

    @property
    def ropes(self) -> tuple[RopeConfig | None, ...]:
        """Return one rope, or None, per layer."""
        return self._of_layers("rope")

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """Return one window in tokens, or None, per layer."""
        return self._of_layers("sliding_window")

    @property
    def extensions(self) -> tuple[Extension | None, ...]:
        """Return one extension, or None, per layer."""
        return self._of_layers("extension")

    @property
    def positions(self) -> ModelRopes:
        """Return the rope, extension and window of each layer."""
        return ModelRopes(self.ropes, self.extensions, self.sliding_windows)

    @property
    def needs_seq_len(self) -> bool:
        """Return whether any layer's frequencies depend on the sequence's length."""
        return self.positions.needs_seq_len


@checked
@dataclass(frozen=True, kw_only=True)
class TextClassifierConfig(DecoderConfig):
    """The shape of a text classifier; the fields of `DecoderConfig` are its layers'.

    **Arguments:**

    - `labels`: the classes by name, in the order of the logits; two or more.
    - `encoding`: one of `ropewalk.encodings` by name or with its settings, a RopeConfig, or None for no position.
      Attention is bidirectional, so "xpos" raises.
    - `pooling`: "mean" of the real tokens' vectors, or the "first" real token's.
    - `max_length`: tokens; `encode` truncates longer texts, and a learned table has this number of positions.
    - `dropout`: of embeddings, residual branches and the pooled vector; `attention_dropout`: of attention's weights;
      both only in training.
    - `initializer_range`, `embedding_range` (None: the same): standard deviations of the first matrices and embeddings.
      A wide range separates words that occur in few texts.

    **Raises:** `RopeError` if sizes do not match.

    >>> TextClassifierConfig(vocab_size=32, labels=("no", "yes"), hidden_size=16, intermediate_size=32,
    ...                      num_hidden_layers=2, num_attention_heads=2).rope.head_dim
    8
    """

    labels: Sequence[str]
    encoding: str | EncodingConfig | RopeConfig | None = "rope"
    pooling: str = "mean"
    max_length: int = 512
    dropout: float = 0.0
    embedding_range: float | None = None
    residual_dropout: float = field(init=False)
    tie_word_embeddings: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        if len(self.labels) < 2 or len(set(self.labels)) < len(self.labels):
            raise RopeError(
                "TextClassifierConfig: `labels` must be two or more different names.",
                facts={"labels": self.labels},
                cure="Pass each class once.",
            )
        if self.pooling not in POOLINGS:
            raise RopeError(
                "TextClassifierConfig: unknown `pooling`.",
                facts={"pooling": self.pooling, "known": POOLINGS},
                cure="Choose one of the known values.",
            )
        if self.max_length < 1 or not 0.0 <= self.dropout < 1.0:
            raise RopeError(
                "TextClassifierConfig: `max_length` must be at least 1 token, and `dropout` a probability below 1.",
                facts={"max_length": self.max_length, "dropout": self.dropout},
                cure="Omit them for the defaults.",
            )
        object.__setattr__(self, "residual_dropout", self.dropout)
        if self.encoding == "rope" and self.rope is not None:
            object.__setattr__(self, "encoding", None)
        elif self.encoding == "learned":
            object.__setattr__(self, "encoding", LearnedAbsolute(self.max_length))
        super().__post_init__()
