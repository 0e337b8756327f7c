"""A classifier on top of a language model: the states after one of its layers, pooled, and a linear head."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.models.tokens import Tokenizer
from ropewalk.shapes import Float, Int, Shaped

STATE_POOLINGS = ("mean", "last", "mean+last")


@runtime_checkable
class Body(Protocol):
    """What a classifier needs of a language model: the states after its layers. It is an `nn.Module`, too.

    Texts are padded on the right, so that a causal model's real tokens never see the padding.
    """

    @property
    def num_layers(self) -> int:
        """How many layers it has."""

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The layers, in order."""

    def states(self, input_ids: Tensor, lengths: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """After each of these layers (1: the first), every token's state `[batch, seq, hidden]`, normalised.

        `input_ids`: int64 `[batch, seq]`, padded on the right; `lengths`: int64 `[batch]`.
        """

    def cut(self, layer: int) -> Body:
        """The model up to this layer, weights shared; itself, where the rest cannot be left out."""


class DecoderBody(nn.Module):
    """Our `Decoder` as the body of a classifier; states go through the model's final norm.

    >>> from ropewalk.models.config import DecoderConfig
    >>> shape = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                       num_attention_heads=2)
    >>> body = DecoderBody(Decoder(shape)).cut(1)
    >>> body.num_layers, body.states(torch.tensor([[1, 2, 3]]), torch.tensor([3]), [1])[0].shape
    (1, torch.Size([1, 3, 16]))
    """

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    @property
    def num_layers(self) -> int:
        """How many layers it has."""
        return len(self.decoder.layers)

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """The layers, in order."""
        return list(self.decoder.layers)

    def states(self, input_ids: Tensor, lengths: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """As `Body.states`."""
        seq_len = lengths if self.decoder.config.needs_seq_len else None
        found: dict[int, Tensor] = {}
        with ExitStack() as hooks:
            for number in set(layers):

                def keep(_: nn.Module, __: object, out: Tensor, number: int = number) -> None:
                    found[number] = out

                hooks.callback(self.decoder.layers[number - 1].register_forward_hook(keep).remove)
            self.decoder.hidden_states(input_ids, seq_len=seq_len)
        return [self.decoder.norm(found[number]) for number in layers]

    def cut(self, layer: int) -> DecoderBody:
        """The decoder up to this layer, without its head; weights are shared."""
        config = self.decoder.config
        of_layers: dict[str, Any] = {
            name: value[:layer]
            for name in ("rope", "sliding_window", "extension")
            if isinstance(value := getattr(config, name), tuple)
        }
        short = copy.copy(self.decoder)
        short._modules = dict(self.decoder._modules)
        short.layers, short.lm_head = nn.ModuleList(list(self.decoder.layers)[:layer]), None
        short.config = replace(config, num_hidden_layers=layer, tie_word_embeddings=True, **of_layers)
        return DecoderBody(short)


@dataclass(frozen=True)
class CheckpointClassifierConfig:
    """The shape of a classifier on a checkpoint.

    - `labels`: the classes by name, in the order of the logits. `layer`: whose states are read, 1 for the first.
    - `pooling`: "mean" of the tokens' states, that of the "last" token, or both, "mean+last".
    - `max_length`: tokens; longer texts are cut. `features`: numbers of a pooled text.
    - `checkpoint`, `digest`: what the body was made from, by name, and a hash of its config and weights.
    """

    _: KW_ONLY
    labels: Sequence[str]
    layer: int
    pooling: str
    max_length: int
    features: int
    checkpoint: str
    digest: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", tuple(self.labels))
        if self.pooling not in STATE_POOLINGS:
            raise RopeError(
                "CheckpointClassifierConfig: unknown `pooling`.",
                facts={"pooling": self.pooling, "known": STATE_POOLINGS},
                cure="Choose one of the known.",
            )


class CheckpointClassifier(nn.Module):
    """Pooled states of a language model's layer, standardised, and a linear head: multinomial logistic regression.

    `center` and `spread`, of each feature over the training texts, are not trained. `tokenizer` is the checkpoint's.

    **Numerics:** states in the body's dtype; pooled and classified in float32.
    """

    def __init__(self, config: CheckpointClassifierConfig, body: nn.Module) -> None:
        super().__init__()
        assert isinstance(body, Body), "a body gives states"
        self.config, self.body = config, body
        self.tokenizer: Tokenizer | None = None
        features = config.features
        self.center = nn.Parameter(torch.zeros(features), requires_grad=False)
        self.spread = nn.Parameter(torch.ones(features), requires_grad=False)
        self.classifier = nn.Linear(features, len(config.labels))

    def forward(
        self,
        input_ids: Int[Tensor, "batch seq"],
        *,
        attention_mask: Shaped[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch labels"]:
        """Logits `[batch, labels]`, float32, for token ids `[batch, seq]`, padded on the right where a mask says so."""
        lengths = lengths_of(input_ids, attention_mask)
        body = self.body
        assert isinstance(body, Body)
        [states] = body.states(input_ids, lengths, [self.config.layer])
        with torch.autocast(input_ids.device.type, enabled=False):
            pooled = (pool(states, lengths, self.config.pooling) - self.center) / self.spread
            return self.classifier(pooled)  # type: ignore[no-any-return]

    def encode(self, text: str) -> list[int]:
        """The ids of a text, at most `max_length`, after what the checkpoint puts before every text.

        Raises `RopeError` for a text without a token, or where there is no tokenizer.
        """
        return encode(self.tokenizer, text, self.config.max_length)

    def num_parameters(self) -> int:
        """Numbers that were learned."""
        return sum(parameter.numel() for parameter in self.parameters())


def encode(tokenizer: Tokenizer | None, text: str, max_length: int) -> list[int]:
    """As `CheckpointClassifier.encode`, before there is one."""
    ids = require_tokenizer(tokenizer).encode_prompt(text.strip())[:max_length]
    if not ids:
        raise RopeError("classify: the text is empty.", facts={"text": text}, cure="Leave out empty texts.")
    return ids


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer of a checkpoint; raises `RopeError` where it has none."""
    if tokenizer is None:
        raise RopeError(
            "classify: the checkpoint has no tokenizer, so no text can be read.",
            cure="Put its tokenizer.json beside the weights.",
        )
    return tokenizer


def lengths_of(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Tokens of each row, int64 `[batch]`. Raises `RopeError` for padding elsewhere than on the right, or no token."""
    rows, tokens = input_ids.shape
    if attention_mask is None:
        return torch.full((rows,), tokens, device=input_ids.device)
    real = attention_mask.bool()
    lengths = real.sum(1)
    if not bool((lengths > 0).all()) or bool((real[:, 1:] & ~real[:, :-1]).any()):
        raise RopeError(
            "CheckpointClassifier: texts are padded on the right, and have a token each.",
            facts={"attention_mask": attention_mask},
            cure="Put the padding behind the text.",
        )
    return lengths


def pool(states: Tensor, lengths: Tensor, pooling: str) -> Tensor:
    """The states of real tokens `[batch, seq, hidden]` as one vector for each text, float32 `[batch, features]`.

    >>> pool(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([2]), "mean+last")
    tensor([[2., 3.]])
    """
    parts = []
    if "mean" in pooling:
        real = (torch.arange(states.shape[1], device=states.device) < lengths[:, None])[:, :, None]
        parts.append(torch.where(real, states, 0.0).float().sum(1) / lengths[:, None])
    if "last" in pooling:
        parts.append(states[torch.arange(len(states), device=states.device), lengths - 1].float())
    return torch.cat(parts, -1)


def unit_size(states: Tensor) -> Tensor:
    """Each token's state divided by its root mean square, float32: large tokens do not drown the others in a mean."""
    return F.rms_norm(states.float(), states.shape[-1:], eps=1e-6)
