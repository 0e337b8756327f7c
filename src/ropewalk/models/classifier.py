"""The text classifier: a bidirectional encoder, one vector for each text, one logit for each label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.attention.masks import TokenLayout
from ropewalk.errors import RopeError, check_kind
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import DecoderLayer, check_ids, draw_weights, run_layers, shared_encoding
from ropewalk.models.encoding import EncodingConfig
from ropewalk.models.encodings import LearnedAbsolute
from ropewalk.models.forward_inputs import ForwardInputs
from ropewalk.models.norm import RMSNorm, residual_stream
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.values import Float, Int, Shaped, checked
from ropewalk.tokenizer import TextTokenizer

POOLINGS = ("mean", "first")


@checked
@dataclass(frozen=True)
class TextClassifierConfig:
    """The shape of a text classifier; fields shared with `DecoderConfig` have its names.

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
    ...                      num_hidden_layers=2, num_attention_heads=2).encoder.rope.head_dim
    8
    """

    _: KW_ONLY
    vocab_size: int
    labels: Sequence[str]
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    encoding: str | EncodingConfig | RopeConfig | None = "rope"
    pooling: str = "mean"
    max_length: int = 512
    norm_eps: float = 1e-5
    dropout: float = 0.0
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    embedding_range: float | None = None

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
        try:
            encoder = self.encoder
        except RopeError as error:
            raise RopeError(f"TextClassifierConfig: {error.reason}.", facts=error.facts, cure=error.cure) from None
        for name in ("num_key_value_heads", "head_dim"):
            object.__setattr__(self, name, getattr(encoder, name))
        object.__setattr__(self, "encoding", encoder.rope or encoder.encoding)

    @property
    def encoder(self) -> DecoderConfig:
        """Return the shape of the layers as a decoder's config."""
        encoding = LearnedAbsolute(self.max_length) if self.encoding == "learned" else self.encoding
        return DecoderConfig(
            **{name: getattr(self, name) for name in SHARED},
            rope=encoding if isinstance(encoding, RopeConfig) else None,
            encoding=None if isinstance(encoding, RopeConfig) else encoding,
            residual_dropout=self.dropout,
        )


SHARED = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "norm_eps", "attention_dropout", "initializer_range",
)  # fmt: skip
"""The fields with the same meaning in DecoderConfig."""


class TextClassifier(nn.Module):
    """A bidirectional encoder with a pooled vector and a linear head; the layers are the decoder's, without its mask.

    `tokenizer` is None until training or a checkpoint sets one. Only parameters are stored. Padding changes no logit:
    padded tokens are masked in attention and ignored in pooling.

    Sources: Devlin et al. 2019, arXiv:1810.04805 (first-token pooling); Reimers and Gurevych 2019, arXiv:1908.10084,
    section 3 (mean pooling).

    >>> config = TextClassifierConfig(vocab_size=32, labels=("no", "yes"), hidden_size=16, intermediate_size=32,
    ...                               num_hidden_layers=2, num_attention_heads=2, encoding="alibi")
    >>> TextClassifier(config)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 2])
    """

    @checked
    def __init__(self, config: TextClassifierConfig) -> None:
        super().__init__()
        self.config = config
        self.tokenizer: TextTokenizer | None = None
        shape = config.encoder
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoding = shared_encoding(shape, causal=False)
        self.layers = nn.ModuleList(
            DecoderLayer(shape, rope, None, None, self.encoding, causal=False) for rope in shape.ropes
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.classifier = nn.Linear(config.hidden_size, len(config.labels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights from torch's generator: normal matrices, zero biases, unit norms."""
        deviation = self.config.embedding_range
        embeddings = None if deviation is None else (self.embed_tokens.weight, deviation)
        draw_weights(self, self.config.initializer_range, embeddings)

    def forward(
        self,
        input_ids: Int[Tensor, "batch seq"],
        *,
        attention_mask: Shaped[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch labels"]:
        """Return logits `[batch, labels]` in the model's dtype, for token ids `[batch, seq]`.

        **Arguments:** `attention_mask`: bool or integer `[batch, seq]`, 1 for a real token, padded on any side. A
        token's position is its index among the real tokens of its row. Frequencies that depend on length are those
        of `max_length`.

        **Raises:** `RopeError` for ids outside the vocabulary, and for a row without a real token.
        """
        self._check_call(input_ids, attention_mask)
        x = self.embed_tokens(input_ids)
        inputs = ForwardInputs.of(x, attention_mask=attention_mask, where="TextClassifier")
        if self.config.encoder.needs_seq_len:
            inputs.seq_len = self.config.max_length
        x = residual_stream(x)
        if self.encoding is not None:
            x = self.encoding.embedded(x, inputs.places.queries)
        vectors = self.norm(run_layers(self.layers, self._dropped(x), inputs, self.encoding))
        pool = _first if self.config.pooling == "first" else _mean
        return self.classifier(self._dropped(pool(vectors, inputs.layout)).to(inputs.dtype))  # type: ignore[no-any-return]

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.config.dropout) if self.training and self.config.dropout else x

    @checked
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, at most `max_length`; first-token pooling puts the bos token before them.

        **Raises:** `RopeError` for a text without a token, and without a tokenizer.
        """
        if self.tokenizer is None:
            raise RopeError(
                "TextClassifier: the model has no tokenizer to encode texts.",
                cure="Set `tokenizer`, or load a folder that was saved with one.",
            )
        ids = self.tokenizer.encode(text.strip())
        if not ids:
            raise RopeError("TextClassifier: the text is empty.", facts={"text": text}, cure="Omit empty texts.")
        start = self.tokenizer.bos_id
        if self.config.pooling == "first" and start is not None:
            ids = [start, *ids]
        return ids[: self.config.max_length]

    def _check_call(self, input_ids: Tensor, attention_mask: Tensor | None) -> None:
        check_ids(input_ids, self.config.vocab_size, "TextClassifier")
        if attention_mask is not None:
            check_kind("TextClassifier", Tensor, "Pass 1 for a real token.", attention_mask=attention_mask)
        if torch.compiler.is_compiling() or input_ids.device.type != "cpu":
            return
        if not input_ids.shape[1] or (attention_mask is not None and not bool((attention_mask != 0).any(-1).all())):
            raise RopeError(
                "TextClassifier: a text without tokens has no class.",
                facts={"input_ids": input_ids, "attention_mask": attention_mask},
                cure="Omit empty texts.",
            )


def _mean(vectors: Tensor, layout: TokenLayout) -> Tensor:
    """Return the mean over real tokens, `[batch, hidden]`."""
    if layout.real is None:
        return vectors.mean(1)
    real = layout.real[:, :, None]
    # `where`, not a product: the vector of a padded token may be anything
    return torch.where(real, vectors, 0.0).sum(1) / real.sum(1)


def _first(vectors: Tensor, layout: TokenLayout) -> Tensor:
    """Return the vector of each row's first real token, `[batch, hidden]`."""
    if layout.real is None:
        return vectors[:, 0]
    first = layout.real.long().argmax(1)
    return vectors[torch.arange(layout.batch, device=vectors.device), first]
