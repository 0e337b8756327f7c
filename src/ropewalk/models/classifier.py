"""The text classifier: a bidirectional encoder, one vector for each text, one logit for each label."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.models.config import TextClassifierConfig
from ropewalk.models.decoder import Backbone
from ropewalk.models.encoding import known_range
from ropewalk.models.forward_inputs import ForwardInputs
from ropewalk.rope.values import Float, Int, Shaped, checked


class TextClassifier(Backbone):
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

    where = "TextClassifier"
    causal: ClassVar[bool] = False
    config: TextClassifierConfig

    @checked
    def __init__(self, config: TextClassifierConfig) -> None:
        super().__init__(config)
        self.classifier = nn.Linear(config.hidden_size, len(config.labels))
        self.reset_parameters()

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
        self.check_ids(input_ids)
        x = self.embed_tokens(input_ids)
        seq_len = self.config.max_length if self.config.needs_seq_len else None
        inputs = ForwardInputs(x, attention_mask=attention_mask, seq_len=seq_len, where="TextClassifier")
        real = inputs.layout.real
        if not input_ids.shape[1] or (real is not None and known_range(~real.any(-1))[1]):
            raise RopeError(
                "TextClassifier: a text without tokens has no class.",
                facts={"input_ids": input_ids, "attention_mask": attention_mask},
                cure="Omit empty texts.",
            )
        dropout = self.config.dropout if self.training else 0.0
        pooled = F.dropout(self._pooled(self.hidden_of(x, inputs, dropout), real), dropout)
        return self.classifier(pooled.to(inputs.dtype))  # type: ignore[no-any-return]

    def _pooled(self, vectors: Tensor, real: Tensor | None) -> Tensor:
        """Return one vector for each text, `[batch, hidden]`, from those of its real tokens."""
        if self.config.pooling == "first":
            if real is None:
                return vectors[:, 0]
            return vectors[torch.arange(len(vectors), device=vectors.device), real.long().argmax(1)]
        if real is None:
            return vectors.mean(1)
        # `where`, not a product: the vector of a padded token may be anything
        return torch.where(real[:, :, None], vectors, 0.0).sum(1) / real.sum(1)[:, None]

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
