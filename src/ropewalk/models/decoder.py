"""The decoder language model: pre-norm, grouped-query attention, a rope and a window per layer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import EllipsisType
from typing import Any, ClassVar, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.errors import RopeError, check_kind
from ropewalk.models.attention import Attention
from ropewalk.models.cache import KVCache
from ropewalk.models.config import DecoderConfig, TextClassifierConfig
from ropewalk.models.encoding import Encoding, EncodingConfig, Sizes, known_range
from ropewalk.models.forward_inputs import ForwardInputs
from ropewalk.models.norm import RMSNorm
from ropewalk.precision import HALF
from ropewalk.rope.model_ropes import ExtensionSetting, RopeSetting
from ropewalk.rope.values import checked
from ropewalk.rotation.embedding import RotaryEmbedding
from ropewalk.tokenizer import TextTokenizer

ModuleT = TypeVar("ModuleT", bound=nn.Module)
HeadFunction = Callable[[Tensor, Tensor], Any]
"""A function of hidden states `[batch, seq, hidden]` and the head's weight `[vocab, hidden]`."""


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)). Source: Shazeer 2020, arXiv:2002.05202, eq. 6.

    >>> FeedForward(8, 16)(torch.zeros(1, 2, 8)).shape
    torch.Size([1, 2, 8])
    """

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return `[..., hidden]` for `[..., hidden]`."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Head(nn.Linear):
    """An untied head. Functions of its weight run in its forward, because FSDP gathers the weight there."""

    def forward(self, hidden: Tensor, head_fn: HeadFunction | None = None) -> Any:
        """Return logits `[..., vocab]` for `[..., hidden]`, or the result of `head_fn`."""
        return super().forward(hidden) if head_fn is None else head_fn(hidden, self.weight)


def only_hidden(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return the hidden states: a `head_fn` that skips the head."""
    return hidden


class DecoderLayer(nn.Module):
    """One pre-norm block: x + attention(norm(x)), then x + feed_forward(norm(x)). Names as in Hugging Face's Llama.

    >>> from ropewalk.rope.config import RopeConfig
    >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
    >>> Decoder(config).layers[0](torch.zeros(1, 3, 16)).shape
    torch.Size([1, 3, 16])
    """

    def __init__(self, config: DecoderConfig, number: int, shared: Encoding | None, *, causal: bool) -> None:
        """Build layer `number` of a model; `shared` is the encoding shared by all layers, or None."""
        super().__init__()
        self.number = number
        self.self_attn = Attention(
            config.hidden_size,
            config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rope=config.ropes[number],
            encoding=config.encoding if shared is None else shared,
            causal=causal,
            sliding_window=config.sliding_windows[number],
            extension=config.extensions[number],
            bias=config.attention_bias,
            attention_dropout=config.attention_dropout,
        )
        self.mlp = FeedForward(config.hidden_size, config.intermediate_size, bias=config.mlp_bias)
        self.input_layernorm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, eps=config.norm_eps)
        self.residual_dropout = config.residual_dropout

    def forward(self, x: Tensor, inputs: ForwardInputs | None = None, bias: Tensor | None = None) -> Tensor:
        """Return `[batch, seq, hidden]` for `x` of this shape; `inputs` and `bias` as in `Attention.forward`.

        Without `inputs`, positions count from 0, as in a model's call without further arguments. `x` may be float32 for
        weights of a half type: the result of a norm is rounded once, to the dtype of `inputs`.

        **Raises:** `RopeError` for a different shape; without `inputs` for a `bias`, or if a `seq_len` is needed.
        """
        dtype = x.dtype if inputs is None else inputs.dtype
        out = self.self_attn(self.input_layernorm(x).to(dtype), inputs=inputs, layer=self.number, bias=bias)
        x = x + F.dropout(out, self.residual_dropout, self.training)
        out = self.mlp(self.post_attention_layernorm(x).to(dtype))
        return x + F.dropout(out, self.residual_dropout, self.training)


class Backbone(nn.Module):
    """What `Decoder` and `TextClassifier` share: embeddings, an encoding of all layers, the layers and a norm."""

    where: ClassVar[str]
    causal: ClassVar[bool] = True

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config: Any = config
        self.tokenizer: TextTokenizer | None = None
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoding: Encoding | None = None
        if isinstance(config.encoding, EncodingConfig) and config.encoding.shared:
            sizes = Sizes(config.hidden_size, config.num_attention_heads, cast(int, config.head_dim), self.causal)
            self.encoding = config.encoding.build(sizes)
        self.layers = nn.ModuleList(
            DecoderLayer(config, number, self.encoding, causal=self.causal)
            for number in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, eps=config.norm_eps)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights: normal matrices, zero biases, unit norms, encodings by their own rule."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(0.0, self.config.initializer_range)
            elif isinstance(module, RMSNorm):
                module.weight.fill_(1.0)
            bias = getattr(module, "bias", None)
            if isinstance(bias, Tensor):
                bias.zero_()
        if isinstance(self.config, TextClassifierConfig) and self.config.embedding_range is not None:
            self.embed_tokens.weight.normal_(0.0, self.config.embedding_range)
        for module in self.modules():
            if isinstance(module, Encoding):
                module.reset_parameters()

    def check_ids(self, input_ids: Tensor) -> None:
        """Raise `RopeError` unless ids are integers `[batch, seq]`, on the CPU in the vocabulary."""
        check_kind(self.where, Tensor, "Pass torch.tensor(ids)[None].", input_ids=input_ids)
        if input_ids.ndim != 2 or input_ids.is_floating_point() or input_ids.dtype == torch.bool:
            raise RopeError(
                f"{self.where}: `input_ids` must be integers [batch, seq].",
                facts={"input_ids": input_ids},
                cure="Add the batch dimension: input_ids[None].",
            )
        low, high = known_range(input_ids)
        if low < 0 or high >= self.config.vocab_size:
            raise RopeError(
                f"{self.where}: `input_ids` contains a token outside the vocabulary.",
                facts={"lowest": low, "highest": high, "vocab_size": self.config.vocab_size},
                cure="Use the tokenizer that the model was trained with.",
            )

    def hidden_of(self, x: Tensor, inputs: ForwardInputs, dropout: float = 0.0) -> Tensor:
        """Return `[batch, seq, hidden]` after the norm, for embeddings of this shape and the dropout of these.

        The bias of an encoding of all layers is computed here and passed as an argument, so no layer stores it.
        """
        x = x.float() if x.dtype in HALF else x  # to keep small summands
        if self.encoding is not None:
            x = self.encoding.embedded(x, inputs.places.queries)
        x = F.dropout(x, dropout)
        biases: dict[int | None, Tensor | None] = {}
        for layer in self.layers:
            window = cast(DecoderLayer, layer).self_attn.sliding_window
            if window not in biases:
                biases[window] = inputs.shared_bias(self.encoding, self.causal, window)
            x = layer(x, inputs, biases[window])
        return self.norm(x)  # type: ignore[no-any-return]


class Decoder(Backbone):
    """A decoder language model; its state-dict keys are Hugging Face Llama's without the leading "model.".

    `tokenizer` is None until a checkpoint sets one. A model built under `torch.device("meta")` uses no memory
    and is complete after `to_empty` and `load_state_dict`, because only parameters are stored. Weights start as normal
    numbers of standard deviation `initializer_range`, as in transformers' Llama.

    >>> from ropewalk.rope.config import RopeConfig
    >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
    >>> Decoder(config)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 32])
    """

    where = "Decoder"
    config: DecoderConfig

    @checked
    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.lm_head = None
        if not config.tie_word_embeddings:
            self.lm_head = Head(config.hidden_size, config.vocab_size, bias=False)
        if not self.embed_tokens.weight.is_meta:
            self.reset_parameters()

    def forward(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: KVCache | None = None,
        seq_len: int | None = None,
        head_fn: HeadFunction | None = None,
    ) -> Any:
        """Return logits `[batch, seq, vocab]` in the model's dtype, for token ids `[batch, seq]`.

        **Arguments:**

        - `position_ids`, `attention_mask`, `document_ids`, `seq_len`: as in `Attention`.
        - `cache`: from `new_cache`; the tokens are appended to it, and no gradients are kept.
        - `head_fn`: a function to call instead of the product with the head. Its arguments are the hidden states
          `[batch, seq, hidden]` after the final norm and the head's weight `[vocab, hidden]`; its result is returned.
          Compute losses in it, because FSDP gathers the weight only during the forward.

        **Raises:** `RopeError` for arguments that contradict each other, and for a call that exceeds the cache's
        `seq_len`.
        """
        self.check_ids(input_ids)
        if cache is not None:
            check_kind("Decoder", KVCache, "Create it with new_cache().", cache=cache)
            made_for, wanted = (cache.ropes, cache.extensions), (self.config.ropes, self.config.extensions)
            if made_for != wanted:
                raise RopeError(
                    "Decoder: the cache was made for a different rope or a different extension.",
                    facts={"cache": made_for, "model": wanted},
                    cure="Create it with this model's new_cache, and run its tokens again.",
                )
        if head_fn is not None and not callable(head_fn):
            raise RopeError(
                "Decoder: `head_fn` must be a function.",
                facts={"head_fn": head_fn},
                cure="Pass a function of hidden states and the head's weight.",
            )
        with torch.no_grad() if cache is not None else nullcontext():
            x = self.embed_tokens(input_ids)
            inputs = ForwardInputs(
                x,
                position_ids=position_ids,
                attention_mask=attention_mask,
                document_ids=document_ids,
                cache=cache,
                seq_len=seq_len,
                where="Decoder",
            )
            hidden = self.hidden_of(x, inputs).to(inputs.dtype)
            if cache is not None:
                cache.commit(inputs.layout)
            if self.lm_head is not None:
                return self.lm_head(hidden) if head_fn is None else self.lm_head(hidden, head_fn)
            weight = self.embed_tokens.weight
            return F.linear(hidden, weight) if head_fn is None else head_fn(hidden, weight)

    def hidden_states(self, input_ids: Tensor, **arguments: Any) -> Tensor:
        """Return `[batch, seq, hidden]` after the final norm, without the head; arguments as `forward`'s."""
        return self(input_ids, **arguments, head_fn=only_hidden)  # type: ignore[no-any-return]

    @checked
    def with_positions(
        self,
        *,
        rope: RopeSetting | EllipsisType = ...,
        extension: ExtensionSetting | EllipsisType = ...,
    ) -> Decoder:
        """Return this model with a different rope, a different extension in attention, or both; `...` keeps one.

        **Arguments:**

        - `rope`: a RopeConfig for all layers with a rope, None for no rope, or a tuple with one entry per layer.
        - `extension`: one for all layers that support it, None for no extension, or a tuple with one entry per layer.
          Layers without a rope or with a sliding window do not support extensions that remap positions.

        **Returns:** a model that shares the weights; `self` does not change. Each model raises for the other's caches.

        **Raises:** `RopeError` if no layer can have the extension or, for a rope, with a different encoding.

        >>> from ropewalk.rope.extensions import ReRoPE
        >>> from ropewalk.rope.config import RopeConfig
        >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
        >>> Decoder(config).with_positions(extension=ReRoPE(window=128)).config.extension
        ReRoPE(window=128, log_n=None)
        """
        positions = self.config.positions
        fields: dict[str, Any] = {}
        if not isinstance(rope, EllipsisType):
            if self.config.encoding is not None:
                raise RopeError(
                    "with_positions: this model was trained with a different encoding, which a rope cannot replace.",
                    facts={"encoding": self.config.encoding},
                    cure='Train a model with encoding="rope".',
                )
            positions = positions.with_rope(rope)
            fields["rope"] = positions.ropes
        if not isinstance(extension, EllipsisType):
            positions = positions.with_extension(extension)
            fields["extension"] = positions.extensions
        other = _shallow(self)
        other.config = replace(self.config, **fields)
        rotaries = {config: RotaryEmbedding(config) for config in positions.ropes if config is not None}
        layers = []
        for layer, config, of_layer in zip(self.layers, positions.ropes, positions.extensions, strict=True):
            assert isinstance(layer, DecoderLayer)
            twin = _shallow(layer)
            twin.self_attn = _shallow(layer.self_attn)
            twin.self_attn.set_positions(None if config is None else rotaries[config], of_layer)
            layers.append(twin)
        other.layers = nn.ModuleList(layers)
        return other

    @checked
    def new_cache(
        self,
        batch: int = 1,
        *,
        seq_len: int | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> KVCache:
        """Return an empty cache for `batch` rows, on the model's device and in its dtype (or `dtype`).

        **Arguments:**

        - `seq_len`: tokens of the longest row; fixed; required if frequencies depend on length.
        - `capacity`: tokens to reserve memory for, if the final length is known.
        """
        weight = self.embed_tokens.weight
        return KVCache(
            num_layers=self.config.num_hidden_layers,
            batch=batch,
            num_key_value_heads=cast(int, self.config.num_key_value_heads),
            head_dim=cast(int, self.config.head_dim),
            seq_len=seq_len,
            capacity=capacity,
            dtype=dtype or weight.dtype,
            device=weight.device,
            ropes=self.config.ropes,
            extensions=self.config.extensions,
        )

    def num_parameters(self) -> int:
        """Return the number of parameters; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())


def _shallow(module: ModuleT) -> ModuleT:
    """Return a copy of a module that shares its parameters and submodules, which can be replaced in the copy."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    return twin
