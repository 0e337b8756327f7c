"""The decoder language model: pre-norm, grouped-query attention, a rope and a window per layer."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ropewalk.attention.attention import Attention, check_unrotated
from ropewalk.attention.cache import KVCache
from ropewalk.attention.extensions import Extension
from ropewalk.attention.forward_inputs import ForwardInputs
from ropewalk.attention.masks import Branches, SequenceShard
from ropewalk.attention.norm import RMSNorm, multiplied, residual_stream
from ropewalk.attention.static_cache import StaticCache
from ropewalk.attention.tables import SeqLen
from ropewalk.encodings import Encoding, EncodingConfig, Sizes
from ropewalk.errors import RopeError
from ropewalk.models.config import UNCHANGED, DecoderConfig, ExtensionSetting, RopeSetting, Unchanged
from ropewalk.models.layers import DecoderLayer, FeedForward, Head, HeadFunction, make_norm, only_hidden, run_layers
from ropewalk.models.prompts import Tokenizer
from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.embedding import RotaryEmbedding

EntryT = TypeVar("EntryT")
ModuleT = TypeVar("ModuleT", bound=nn.Module)
ResultT = TypeVar("ResultT")


class Decoder(nn.Module):
    """A decoder language model; its state-dict keys are Hugging Face Llama's without the leading "model.".

    `tokenizer` is None until a checkpoint brings one. Built under `torch.device("meta")` it holds no memory, and is
    right after `to_empty` and `load_state_dict`: nothing but parameters is stored. Weights begin as normal numbers of
    standard deviation `initializer_range`, as transformers' Llama.

    >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
    ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
    >>> Decoder(config)(torch.tensor([[1, 2, 3]])).shape
    torch.Size([1, 3, 32])
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.tokenizer: Tokenizer | None = None
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoding: Encoding | None = None
        if isinstance(config.encoding, EncodingConfig) and config.encoding.shared:
            sizes = Sizes(config.hidden_size, config.num_attention_heads, config.head_dim or 0)
            self.encoding = config.encoding.build(sizes)
        self.layers = nn.ModuleList(
            _make_layer(config, rope, window, extension, self.encoding)
            for rope, window, extension in zip(config.ropes, config.sliding_windows, config.extensions, strict=True)
        )
        self.norm = make_norm(config.norm, config.hidden_size, config.norm_eps)
        self.lm_head = None
        if not config.tie_word_embeddings:
            self.lm_head = Head(config.hidden_size, config.vocab_size, bias=False)
        if not self.embed_tokens.weight.is_meta:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights anew from torch's generator: normal matrices, zero biases, unit norms."""
        with torch.no_grad():
            for module in self.modules():
                if isinstance(module, nn.Linear | nn.Embedding):
                    module.weight.normal_(0.0, self.config.initializer_range)
                elif isinstance(module, RMSNorm | nn.LayerNorm):
                    module.weight.fill_(1.0)
                bias = getattr(module, "bias", None)
                if isinstance(bias, Tensor):
                    bias.zero_()
            for module in self.modules():
                if isinstance(module, Encoding):
                    module.reset_parameters()

    def forward(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: KVCache | None = None,
        seq_len: SeqLen | None = None,
        branches: Branches | None = None,
        shard: SequenceShard | None = None,
        head_fn: HeadFunction[ResultT] | None = None,
    ) -> Tensor | ResultT:
        """Logits `[batch, seq, vocab]` in the model's dtype, for token ids `[batch, seq]`.

        - `position_ids`: integers `[seq]` or `[batch, seq]`; None: each token's index among the real tokens of its row,
          after those in the cache, or of its document.
        - `attention_mask`: bool or integer `[batch, seq]`, 1 for a real token, padded on any side; with a cache it
          covers the new tokens alone. What comes out at padded tokens is finite and means nothing.
        - `document_ids`: integers `[batch, seq]` of packed documents: a new one begins where the id changes, positions
          begin again there, and no token sees another document. Not with a cache.
        - `cache`: from `new_cache`; the tokens are appended to it, and no gradients are kept.
        - `seq_len`: tokens, an int or int64 `[batch]`: required where frequencies depend on length (dynamic NTK,
          LongRoPE), unless the cache has it.
        - `branches`: with a cache of one row, that the tokens `[1, seq]` go on from it in several ways: each comes out
          as if its own line alone had been read, and the cache holds what it held.
        - `shard`: that the tokens are this process's part of rows which several processes hold together (context
          parallelism); `position_ids` and `seq_len` are those of the whole rows. Not with a cache or a mask.
        - `head_fn`: a function that replaces the product with the head. It gets the hidden states
          `[batch, seq, hidden]` after the final norm and the head's weight `[vocab, hidden]`; its result is returned.
          Losses are computed in it: FSDP gathers the weight for the forward alone.

        Raises `RopeError` for arguments that do not fit together, and where a cache would be outgrown.
        """
        hidden = self._final_hidden(
            input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            document_ids=document_ids,
            cache=cache,
            seq_len=seq_len,
            branches=branches,
            shard=shard,
        )
        with torch.no_grad() if cache is not None else nullcontext():
            if self.lm_head is not None:
                return self.lm_head(hidden) if head_fn is None else self.lm_head(hidden, head_fn)  # type: ignore[no-any-return]
            weight = self.embed_tokens.weight
            return multiplied(hidden, weight) if head_fn is None else head_fn(hidden, weight)

    def hidden_states(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        cache: KVCache | None = None,
        seq_len: SeqLen | None = None,
    ) -> Tensor:
        """What `forward` gives before the head: `[batch, seq, hidden]` after the final norm. Arguments as `forward`."""
        return self(  # type: ignore[no-any-return]
            input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            document_ids=document_ids,
            cache=cache,
            seq_len=seq_len,
            head_fn=only_hidden,
        )

    def _final_hidden(
        self,
        input_ids: Tensor,
        *,
        position_ids: Tensor | None,
        attention_mask: Tensor | None,
        document_ids: Tensor | None,
        cache: KVCache | None,
        seq_len: SeqLen | None,
        branches: Branches | None,
        shard: SequenceShard | None,
    ) -> Tensor:
        self._check_call(input_ids, cache, seq_len)
        with torch.no_grad() if cache is not None else nullcontext():
            x = self.embed_tokens(input_ids)
            inputs = ForwardInputs.of(
                x,
                position_ids=position_ids,
                attention_mask=attention_mask,
                document_ids=document_ids,
                cache=cache,
                seq_len=seq_len,
                branches=branches,
                shard=shard,
                where="Decoder",
            )
            x = residual_stream(x)
            if self.encoding is not None:
                x = self.encoding.embedded(x, inputs.places.queries)
            x = self.norm(run_layers(self.layers, x, inputs, self.encoding)).to(inputs.dtype)
        if cache is not None:
            cache.commit(inputs.layout)
        return x  # type: ignore[no-any-return]

    def with_positions(
        self,
        *,
        rope: RopeSetting | Unchanged = UNCHANGED,
        extension: ExtensionSetting | Unchanged = UNCHANGED,
    ) -> Decoder:
        """This model under another rope, another extension in attention, or both at once.

        - `rope`: a RopeConfig for all layers that have a rope, None for none, or a tuple with one entry per layer.
        - `extension`: one for all layers that can take it (one that remaps positions needs a rope over all earlier
          tokens, so layers without a rope or with a sliding window stay as they are), None for none, or a tuple with
          one entry per layer.

        The weights are the same and not copied; `self` is left as it is. A cache of one is refused by the other. Raises
        `RopeError` where no layer can take it, and for a rope where the model has another encoding.

        >>> from ropewalk.attention.extensions import ReRoPE
        >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
        >>> Decoder(config).with_positions(extension=ReRoPE(window=128)).config.extension
        ReRoPE(window=128, leak=0.0, log_n=None)
        """
        positions = self.config.positions
        fields: dict[str, Any] = {}
        if not isinstance(rope, Unchanged):
            if self.config.encoding is not None:
                raise RopeError(
                    "with_positions: this model was trained with another encoding, which no rope can stand for.",
                    facts={"encoding": self.config.encoding},
                    cure='Train a model with encoding="rope".',
                )
            positions = positions.with_rope(rope)
            fields["rope"] = rope if isinstance(rope, tuple) else _setting(positions.ropes)
        if not isinstance(extension, Unchanged):
            positions = positions.with_extension(extension)
            fields["extension"] = extension if isinstance(extension, tuple) else _setting(positions.extensions)
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

    def new_cache(
        self,
        batch: int = 1,
        *,
        seq_len: SeqLen | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
        rotated: bool | None = None,
        static: bool = False,
    ) -> KVCache:
        """An empty cache for `batch` rows, on the model's device and in its dtype (or `dtype`).

        - `seq_len` (tokens, an int or `[batch]`) is required where frequencies depend on length; it stays fixed.
        - `capacity` (tokens) reserves room ahead: give it where the final length is known.
        - `rotated`: False keeps keys unrotated, as `KVCache.drop` needs; None: as the model's extension wants it.
        - `static`: a `StaticCache` of `capacity` tokens, for `torch.compile`: one graph decodes every token.
        """
        weight = self.embed_tokens.weight
        return (StaticCache if static else KVCache)(
            num_layers=self.config.num_hidden_layers,
            batch=batch,
            num_key_value_heads=self.config.kv_heads,
            head_dim=self.config.head_dim or 0,
            seq_len=seq_len,
            capacity=capacity,
            dtype=dtype or weight.dtype,
            device=weight.device,
            ropes=self.config.ropes,
            extensions=self.config.extensions,
            rotated=not self.config.remaps if rotated is None else rotated,
        )

    def num_parameters(self) -> int:
        """Numbers that are learned; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _check_call(self, input_ids: Tensor, cache: KVCache | None, seq_len: SeqLen | None) -> None:
        if input_ids.ndim != 2 or input_ids.is_floating_point() or input_ids.dtype == torch.bool:
            raise RopeError(
                "Decoder: `input_ids` must be integers [batch, seq].",
                facts={"input_ids": input_ids},
                cure="Add the batch: input_ids[None].",
            )
        if not torch.compiler.is_compiling() and input_ids.device.type == "cpu" and input_ids.numel():
            low, high = (int(bound) for bound in input_ids.aminmax())
            if low < 0 or high >= self.config.vocab_size:
                raise RopeError(
                    "Decoder: `input_ids` holds a token that the vocabulary has not.",
                    facts={"lowest": low, "highest": high, "vocab_size": self.config.vocab_size},
                    cure="Use the tokenizer that the model was trained with.",
                )
        if self.config.needs_seq_len and seq_len is None and (cache is None or cache.seq_len is None):
            raise RopeError(
                "Decoder: `seq_len` is required: this model's frequencies depend on length.",
                facts={"scaling": next(r.scaling for r in self.config.ropes if r is not None and r.needs_seq_len)},
                cure="Pass seq_len=... (tokens in all, to the end of generation), or new_cache(seq_len=...).",
            )
        if cache is not None and cache.ropes != self.config.ropes:
            raise RopeError(
                "Decoder: the cache was made for another rope: its keys are rotated by other frequencies.",
                facts={"cache.ropes": cache.ropes, "config.ropes": self.config.ropes},
                cure="Make it with this model's new_cache.",
            )
        if cache is not None and cache.extensions != self.config.extensions:
            raise RopeError(
                "Decoder: the cache was made under another extension, and deeper layers' keys and values follow it.",
                facts={"cache.extensions": cache.extensions, "config.extensions": self.config.extensions},
                cure="Make it with this model's new_cache, and run its tokens again.",
            )
        if cache is not None:
            for extension in set(self.config.extensions):
                check_unrotated(cache, extension, self.encoding)


def _make_layer(
    config: DecoderConfig,
    rope: RopeConfig | None,
    window: int | None,
    extension: Extension | None,
    shared: Encoding | None,
) -> DecoderLayer:
    attention = Attention(
        config.hidden_size,
        config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rope=rope,
        encoding=config.encoding if shared is None else shared,
        sliding_window=window,
        extension=extension,
        qk_norm=config.qk_norm,
        norm_eps=config.norm_eps,
        bias=config.attention_bias,
        output_bias=config.output_bias,
        attention_dropout=config.attention_dropout,
        residual_dropout=config.residual_dropout,
    )
    return DecoderLayer(
        attention,
        FeedForward(config.hidden_size, config.intermediate_size, hidden_act=config.hidden_act, bias=config.mlp_bias),
        make_norm(config.norm, config.hidden_size, config.norm_eps),
        make_norm(config.norm, config.hidden_size, config.norm_eps),
        residual_dropout=config.residual_dropout,
    )


def _setting(of_layers: tuple[EntryT, ...]) -> EntryT | tuple[EntryT, ...]:
    """One entry where all layers have the same, else the tuple."""
    return of_layers[0] if len(set(of_layers)) == 1 else of_layers


def _shallow(module: ModuleT) -> ModuleT:
    """A copy of a module that shares its parameters and submodules, and can be given others."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    return twin
