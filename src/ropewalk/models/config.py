"""The shape of a decoder."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ropewalk.errors import RopeError
from ropewalk.models.encoding import EncodingConfig
from ropewalk.models.encodings import NoPE, resolve
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.model_ropes import ExtensionSetting, ModelRopes, RopeSetting, entries
from ropewalk.rope.values import MOST_SIZE, check_whole, checked


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
    encoding: str | EncodingConfig | None = None
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
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        facts = {name: getattr(self, name) for name in sizes}
        check_whole("DecoderConfig", most=MOST_SIZE, optional=False, **facts)
        check_whole(
            "DecoderConfig", most=MOST_SIZE, num_key_value_heads=self.num_key_value_heads, head_dim=self.head_dim
        )
        if not 0.0 <= self.norm_eps < 1.0:
            raise RopeError(
                "DecoderConfig: `norm_eps` must be between 0 and 1.",
                facts={"norm_eps": self.norm_eps},
                cure="Pass for example 1e-5 or 1e-6, as in published models.",
            )
        if self.num_key_value_heads is None:
            object.__setattr__(self, "num_key_value_heads", self.num_attention_heads)
        if self.head_dim is None:
            if self.hidden_size % self.num_attention_heads:
                raise RopeError(
                    "DecoderConfig: `hidden_size` is not a multiple of `num_attention_heads`.",
                    facts=facts,
                    cure="Pass head_dim=... if a head is not hidden_size / num_attention_heads.",
                )
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.encoding is not None:
            if self.rope is not None:
                raise RopeError(
                    "DecoderConfig: `rope` and `encoding` are mutually exclusive.",
                    facts={"rope": self.rope, "encoding": self.encoding},
                    cure="Pass one of them.",
                )
            chosen = resolve(self.encoding, self.head_dim or 0)
            object.__setattr__(self, "rope", chosen if isinstance(chosen, RopeConfig) else None)
            object.__setattr__(self, "encoding", None if isinstance(chosen, RopeConfig | NoPE) else chosen)
        for name in ("rope", "sliding_window", "extension"):
            entries("DecoderConfig", name, getattr(self, name), self.num_hidden_layers)

    @property
    def ropes(self) -> tuple[RopeConfig | None, ...]:
        """Return one rope, or None, per layer."""
        return self.rope if isinstance(self.rope, tuple) else (self.rope,) * self.num_hidden_layers

    @property
    def sliding_windows(self) -> tuple[int | None, ...]:
        """Return one window in tokens, or None, per layer."""
        window = self.sliding_window
        return window if isinstance(window, tuple) else (window,) * self.num_hidden_layers

    @property
    def extensions(self) -> tuple[Extension | None, ...]:
        """Return one extension, or None, per layer."""
        extension = self.extension
        return extension if isinstance(extension, tuple) else (extension,) * self.num_hidden_layers

    @property
    def positions(self) -> ModelRopes:
        """Return the rope, extension and window of each layer."""
        return ModelRopes(self.ropes, self.extensions, self.sliding_windows)

    @property
    def kv_heads(self) -> int:
        """Return `num_key_value_heads`, resolved."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def needs_seq_len(self) -> bool:
        """Return whether any layer's frequencies depend on the sequence's length."""
        return self.positions.needs_seq_len
