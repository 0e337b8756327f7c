"""The decoder language model: pre-norm, grouped-query attention, a rope and a window per layer."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.attention.attention import Attention
from ropewalk.attention.cache import KVCache, SeqLen
from ropewalk.attention.call import RotaryTables, agreed_seq_len, arrange, check_unrotated, find_places, rotary_tables
from ropewalk.attention.extension import Extension
from ropewalk.attention.norm import RMSNorm
from ropewalk.attention.remap import Remap
from ropewalk.encodings import Encoding, EncodingConfig, Sizes
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig, Extensions, Ropes
from ropewalk.models.layers import DecoderLayer, FeedForward, make_norm
from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.embedding import RotaryEmbedding

if TYPE_CHECKING:
    from ropewalk.models.tokenizer import TextTokenizer

ModuleT = TypeVar("ModuleT", bound=nn.Module)


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
        self.tokenizer: TextTokenizer | None = None
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
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
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
    ) -> Tensor:
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

        Raises `RopeError` for arguments that do not fit together, and where a cache would be outgrown.
        """
        hidden = self.hidden_states(
            input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            document_ids=document_ids,
            cache=cache,
            seq_len=seq_len,
        )
        with torch.no_grad() if cache is not None else nullcontext():
            return self.logits(hidden)

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
        self._check_call(input_ids, cache, seq_len)
        seq_len = agreed_seq_len(seq_len, cache)
        layout = arrange(input_ids, attention_mask, document_ids, cache, where="Decoder")
        tables: dict[RopeConfig, RotaryTables] = {}
        remaps: dict[tuple[RopeConfig | None, Extension], Remap] = {}
        with torch.no_grad() if cache is not None else nullcontext():
            x = self.embed_tokens(input_ids)
            places = None if self.config.encoding is None else find_places(layout, position_ids)
            if self.encoding is not None and places is not None:
                x = self.encoding.embedded(x, places.queries)
            for index, layer in enumerate(self.layers):
                attention = cast(DecoderLayer, layer).self_attn
                rotary, extension, of_layer, remap = attention.rotary, attention.extension, None, None
                if extension is not None:
                    key = (attention.rope, extension)
                    if key not in remaps:
                        remaps[key] = Remap(rotary, extension, layout, position_ids, seq_len, x.dtype)
                    remap = remaps[key]
                if rotary is not None and not (extension is not None and extension.remaps):
                    if rotary.config not in tables:
                        tables[rotary.config] = rotary_tables(rotary, layout, position_ids, seq_len, dtype=x.dtype)
                    of_layer = tables[rotary.config]
                x = layer(x, layout=layout, tables=of_layer, places=places, remap=remap, cache=cache, layer=index)
            x = self.norm(x)
        if cache is not None:
            cache.commit(layout)
        return x  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """`[..., hidden]` after the final norm to logits `[..., vocab]`."""
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        return F.linear(hidden, head.weight)

    def with_rope(self, rope: Ropes) -> Decoder:
        """This model under another rope: the same weights (not copied), `self` left as it is.

        A RopeConfig for all layers (those without a rope stay without), None for none, or a tuple with one per layer.
        A cache of one is refused by the other.
        """
        if self.config.encoding is not None:
            raise RopeError(
                "with_rope: this model was trained with another encoding, which no rope can stand for.",
                facts={"encoding": self.config.encoding},
                cure='Train a model with encoding="rope".',
            )
        if isinstance(rope, RopeConfig):
            rope = tuple(None if old is None else rope for old in self.config.ropes)
            if len(set(rope)) == 1:
                rope = rope[0]
        other = _shallow(self)
        other.config = replace(self.config, rope=rope)
        rotaries = {config: RotaryEmbedding(config) for config in other.config.ropes if config is not None}
        layers = []
        for layer, config in zip(self.layers, other.config.ropes, strict=True):
            assert isinstance(layer, DecoderLayer)
            twin = _shallow(layer)
            twin.self_attn = _shallow(layer.self_attn)
            twin.self_attn.set_rope(None if config is None else rotaries[config])
            layers.append(twin)
        other.layers = nn.ModuleList(layers)
        return other

    def with_extension(self, extension: Extensions) -> Decoder:
        """This model under an extension in attention: the same weights (not copied), `self` left as it is.

        One for all layers that it can serve (with a remapping one, layers without a rope or with a sliding window
        stay as they are), None for none, or a tuple with one per layer. Raises `RopeError` where no layer can take it.
        A cache of one is refused by the other.

        >>> from ropewalk.attention.extension import ReRoPE
        >>> config = DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        ...                        num_attention_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
        >>> Decoder(config).with_extension(ReRoPE(window=128)).config.extension
        ReRoPE(window=128, leak=0.0, log_n=None)
        """
        if isinstance(extension, Extension):
            layers = zip(self.config.ropes, self.config.sliding_windows, strict=True)
            able = [not extension.remaps or (rope is not None and window is None) for rope, window in layers]
            if not any(able):
                raise RopeError(
                    "with_extension: no layer of this model has a rope over all earlier tokens.",
                    facts={"extension": extension},
                    cure="Choose a model with RoPE.",
                )
            if not all(able):
                extension = tuple(extension if takes else None for takes in able)
        other = _shallow(self)
        other.config = replace(self.config, extension=extension)
        twins = []
        for layer, one in zip(self.layers, other.config.extensions, strict=True):
            assert isinstance(layer, DecoderLayer)
            twin = _shallow(layer)
            twin.self_attn = _shallow(layer.self_attn)
            twin.self_attn.set_extension(one)
            twins.append(twin)
        other.layers = nn.ModuleList(twins)
        return other

    def new_cache(
        self,
        batch: int = 1,
        *,
        seq_len: SeqLen | None = None,
        capacity: int | None = None,
        dtype: torch.dtype | None = None,
        rotated: bool | None = None,
    ) -> KVCache:
        """An empty cache for `batch` rows, on the model's device and in its dtype (or `dtype`).

        `rotated`: False keeps keys unrotated, as `KVCache.drop` needs; None: as the model's extension wants it.

        `seq_len` (tokens, an int or `[batch]`) is required where frequencies depend on length, and fixed from then on.
        `capacity` (tokens) reserves room ahead: give it where the final length is known.
        """
        weight = self.embed_tokens.weight
        return KVCache(
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


def _shallow(module: ModuleT) -> ModuleT:
    """A copy of a module that shares its parameters and submodules, and can be given others."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    return twin
