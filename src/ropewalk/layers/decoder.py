"""The decoder language model: pre-norm, grouped-query attention, a rope and a window per layer."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError, check_kind
from ropewalk.layers.attention import check_unrotated
from ropewalk.layers.blocks import (
    DecoderLayer,
    Head,
    HeadFunction,
    ResultT,
    check_ids,
    draw_weights,
    make_layer,
    make_norm,
    only_hidden,
    run_layers,
    shared_encoding,
)
from ropewalk.layers.cache import KVCache
from ropewalk.layers.config import DecoderConfig
from ropewalk.layers.forward_inputs import ForwardInputs
from ropewalk.layers.masks import Branches
from ropewalk.layers.norm import multiplied, residual_stream
from ropewalk.layers.prompts import Tokenizer
from ropewalk.layers.tables import SeqLen
from ropewalk.rope.of_layers import UNCHANGED, ExtensionSetting, RopeSetting, Unchanged
from ropewalk.rotation.embedding import RotaryEmbedding

EntryT = TypeVar("EntryT")
ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Decoder(nn.Module):
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

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        check_kind("Decoder", DecoderConfig, 'Pass its config, or load a model: rw.load("tiny").', config=config)
        self.config = config
        self.tokenizer: Tokenizer | None = None
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoding = shared_encoding(config)
        self.layers = nn.ModuleList(
            make_layer(config, rope, window, extension, self.encoding)
            for rope, window, extension in zip(config.ropes, config.sliding_windows, config.extensions, strict=True)
        )
        self.norm = make_norm(config.norm, config.hidden_size, config.norm_eps)
        self.lm_head = None
        if not config.tie_word_embeddings:
            self.lm_head = Head(config.hidden_size, config.vocab_size, bias=False)
        if not self.embed_tokens.weight.is_meta:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights from torch's generator: normal matrices, zero biases, unit norms."""
        draw_weights(self, self.config.initializer_range)

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
        head_fn: HeadFunction[ResultT] | None = None,
    ) -> Tensor | ResultT:
        """Return logits `[batch, seq, vocab]` in the model's dtype, for token ids `[batch, seq]`.

        **Arguments:**

        - `position_ids`: integers `[seq]` or `[batch, seq]`; None: each token's index among the real tokens of its row,
          after those in the cache, or of its document.
        - `attention_mask`: bool or integer `[batch, seq]`, 1 for a real token, padded on any side; with a cache it
          covers only the new tokens. The result at padded tokens is finite and has no meaning.
        - `document_ids`: integers `[batch, seq]` of packed documents: when the id changes, a new document begins and
          positions restart; documents do not attend to each other. Not with a cache.
        - `cache`: from `new_cache`; the tokens are appended to it, and no gradients are kept.
        - `seq_len`: tokens, an int or int64 `[batch]`: required if frequencies depend on length (dynamic NTK,
          LongRoPE), unless the cache has it.
        - `branches`: the tokens `[1, seq]` are several continuations of the one row of `cache`. Each result equals that
          of a call with only the token's own line. The cache contains the same tokens afterwards.
        - `head_fn`: a function to call instead of the product with the head. Its arguments are the hidden states
          `[batch, seq, hidden]` after the final norm and the head's weight `[vocab, hidden]`; its result is returned.
          Compute losses in it, because FSDP gathers the weight only during the forward.

        **Raises:** `RopeError` for arguments that contradict each other, and for a call that exceeds the cache's
        `seq_len`.
        """
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
                where="Decoder",
            )
            x = residual_stream(x)
            if self.encoding is not None:
                x = self.encoding.embedded(x, inputs.places.queries)
            hidden = self.norm(run_layers(self.layers, x, inputs, self.encoding)).to(inputs.dtype)
            if cache is not None:
                cache.commit(inputs.layout)
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
        """Return `[batch, seq, hidden]` after the final norm, without the head; arguments as `forward`'s."""
        return self(  # type: ignore[no-any-return]
            input_ids,
            position_ids=position_ids,
            attention_mask=attention_mask,
            document_ids=document_ids,
            cache=cache,
            seq_len=seq_len,
            head_fn=only_hidden,
        )

    def with_positions(
        self,
        *,
        rope: RopeSetting | Unchanged = UNCHANGED,
        extension: ExtensionSetting | Unchanged = UNCHANGED,
    ) -> Decoder:
        """Return this model with a different rope, a different extension in attention, or both.

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
        ReRoPE(window=128, leak=0.0, log_n=None)
        """
        positions = self.config.positions
        fields: dict[str, Any] = {}
        if not isinstance(rope, Unchanged):
            if self.config.encoding is not None:
                raise RopeError(
                    "with_positions: this model was trained with a different encoding, which a rope cannot replace.",
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
    ) -> KVCache:
        """Return an empty cache for `batch` rows, on the model's device and in its dtype (or `dtype`).

        **Arguments:**

        - `seq_len`: tokens, an int or `[batch]`; fixed; required if frequencies depend on length.
        - `capacity`: tokens to reserve memory for, if the final length is known.
        - `rotated`: False stores unrotated keys; None: as the model's extension needs it.
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
        """Return the number of parameters; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _check_call(self, input_ids: Tensor, cache: KVCache | None, seq_len: SeqLen | None) -> None:
        check_ids(input_ids, self.config.vocab_size, "Decoder")
        if self.config.needs_seq_len and seq_len is None and (cache is None or cache.seq_len is None):
            raise RopeError(
                "Decoder: `seq_len` is required: this model's frequencies depend on length.",
                facts={"scaling": next(r.scaling for r in self.config.ropes if r is not None and r.needs_seq_len)},
                cure="Pass seq_len=... (the final number of tokens), or new_cache(seq_len=...).",
            )
        if cache is not None and cache.ropes != self.config.ropes:
            raise RopeError(
                "Decoder: the cache was made for a different rope, so its keys have different angles.",
                facts={"cache.ropes": cache.ropes, "config.ropes": self.config.ropes},
                cure="Create it with this model's new_cache.",
            )
        if cache is not None and cache.extensions != self.config.extensions:
            raise RopeError(
                "Decoder: the cache was made with a different extension, which changes deeper layers' keys and values.",
                facts={"cache.extensions": cache.extensions, "config.extensions": self.config.extensions},
                cure="Create it with this model's new_cache, and run its tokens again.",
            )
        if cache is not None:
            for extension in set(self.config.extensions):
                check_unrotated(cache, extension)


def _setting(of_layers: tuple[EntryT, ...]) -> EntryT | tuple[EntryT, ...]:
    """Return one entry if all layers have the same, else the tuple."""
    return of_layers[0] if len(set(of_layers)) == 1 else of_layers


def _shallow(module: ModuleT) -> ModuleT:
    """Return a copy of a module that shares its parameters and submodules, which can be replaced in the copy."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    twin._parameters = dict(module._parameters)
    twin._buffers = dict(module._buffers)
    return twin
