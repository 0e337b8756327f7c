"""Multi-head attention with rotary embedding: grouped queries, windows, padding, packed documents, a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention.attend import LogitRules, attend, attend_openly, differentiable_kernels
from ropewalk.attention.masks import Visibility
from ropewalk.attention.remap import attend_remapped, attend_remapped_openly
from ropewalk.errors import RopeError, check_kind
from ropewalk.models.cache import KVCache
from ropewalk.models.encoding import Encoding, EncodingConfig, Sizes
from ropewalk.models.encodings import rope_or_encoding
from ropewalk.models.forward_inputs import ForwardInputs, masked_bias
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.values import Float, Int, Real, Shaped, check_positive, check_whole, checked
from ropewalk.rotation.backends import choose, norm_rotated, rotated
from ropewalk.rotation.backends.request import Turn
from ropewalk.rotation.checks import check_tables
from ropewalk.rotation.embedding import RotaryEmbedding


class Attention(nn.Module):
    """Multi-head, grouped-query or multi-query attention; positions act on queries and keys, never on values.

    **Arguments:**

    - `hidden_size`, `num_attention_heads`, `num_key_value_heads` (None: as many as heads; 1: multi-query), `head_dim`
      (None: hidden_size / heads): sizes.
    - `rope`: a RopeConfig, or None for attention without position (NoPE). `encoding`: instead of a rope one of
      `ropewalk.encodings`, by name ("alibi", "t5", "rope", ...) or with its settings.
    - `causal`: False for bidirectional attention. `sliding_window`: tokens; query p attends to key j if
      p - window < j <= p (causal), or if |p - j| <= window (bidirectional), both as in transformers.
    - `extension`: one of `ropewalk.rope.extensions`, which remaps relative positions or scales logits.
    - `softcap`: logits become softcap tanh(logit / softcap) before masks and biases, as in Gemma 2. `sinks`: a learned
      logit for each head, `self.sinks` `[heads]`, that takes weight in the softmax and adds no value, as in gpt-oss.
    - `bias`: of the four projections. `attention_dropout`: a probability, applied to the weights only in training.

    **Raises:** `RopeError` if sizes do not match.

    Sources: Vaswani et al. 2017; Shazeer 2019 (multi-query); Ainslie et al. 2023 (grouped-query); Su et al. 2021,
    arXiv:2104.09864, eq. 16.

    >>> attention = Attention(32, 4, num_key_value_heads=2, rope=RopeConfig(head_dim=8, interleaved=False))
    >>> attention(torch.zeros(1, 5, 32)).shape
    torch.Size([1, 5, 32])
    """

    @checked
    def __init__(
        self,
        hidden_size: int,
        num_attention_heads: int,
        *,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        rope: RopeConfig | None = None,
        encoding: str | EncodingConfig | RopeConfig | Encoding | None = None,
        causal: bool = True,
        sliding_window: int | None = None,
        extension: Extension | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        bias: bool = False,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        kv_heads = num_attention_heads if num_key_value_heads is None else num_key_value_heads
        sizes = {
            "hidden_size": hidden_size,
            "num_attention_heads": num_attention_heads,
            "num_key_value_heads": kv_heads,
        }
        check_whole("Attention", optional=False, **sizes)
        check_whole("Attention", head_dim=head_dim, sliding_window=sliding_window)
        if head_dim is None and hidden_size % num_attention_heads:
            rule = "Attention: `hidden_size` is not a multiple of `num_attention_heads`."
            raise RopeError(rule, facts=sizes, cure="Pass head_dim=...")
        self.hidden_size, self.num_attention_heads = hidden_size, num_attention_heads
        self.num_key_value_heads = kv_heads
        self.head_dim = hidden_size // num_attention_heads if head_dim is None else head_dim
        self.causal, self.sliding_window = causal, sliding_window
        self.softcap, self.attention_dropout = softcap, attention_dropout
        _check_sizes(self)
        self.sinks = nn.Parameter(torch.zeros(num_attention_heads)) if sinks else None
        self.q_proj = nn.Linear(hidden_size, num_attention_heads * self.head_dim, bias=bias)
        self.k_proj = nn.Linear(hidden_size, kv_heads * self.head_dim, bias=bias)
        self.v_proj = nn.Linear(hidden_size, kv_heads * self.head_dim, bias=bias)
        self.o_proj = nn.Linear(num_attention_heads * self.head_dim, hidden_size, bias=bias)
        self.rotary: RotaryEmbedding | None = None
        self.encoding: Encoding | None = None
        self._shared: tuple[Encoding, ...] = ()  # of the layers of a model, which registers it
        self.extension: Extension | None = None
        rope, chosen = rope_or_encoding("Attention", rope, encoding, self.head_dim)
        if isinstance(chosen, Encoding):
            self._shared = (chosen,)
        elif chosen is not None:
            self.encoding = chosen.build(Sizes(hidden_size, num_attention_heads, self.head_dim, causal))
        self.set_positions(rope, extension)

    @property
    def rope(self) -> RopeConfig | None:
        """Return the rope of queries and keys, or None."""
        return None if self.rotary is None else self.rotary.config

    @property
    def position_encoding(self) -> Encoding | None:
        """Return the encoding used instead of a rope: the layer's own, the one shared by its model, or None."""
        return self._shared[0] if self._shared else self.encoding

    @property
    def remaps(self) -> bool:
        """Return whether an extension remaps positions, so that keys are stored unrotated."""
        return self.extension is not None and self.extension.remaps

    @checked
    def set_positions(self, rope: RopeConfig | RotaryEmbedding | None, extension: Extension | None) -> None:
        """Replace rope and extension; raise `RopeError` if they do not fit this layer."""
        config = rope.config if isinstance(rope, RotaryEmbedding) else rope
        causal, window, encoding = self.causal, self.sliding_window, self.position_encoding
        if config is not None and config.head_dim != self.head_dim:
            raise RopeError(
                "Attention: `rope` has a different head_dim.",
                facts={"rope.head_dim": config.head_dim, "head_dim": self.head_dim},
                cure="Set RopeConfig(head_dim=...) to the size of one head; rotary_dim may be smaller.",
            )
        if config is not None and config.axis_blocks:
            raise RopeError(
                "Attention: the features of each axis are paired by themselves in this rope.",
                facts={"rope": config},
                cure="Leave `axis_blocks` out, or rotate with rw.RotaryEmbedding(rope) in your own attention.",
            )
        if extension is not None and extension.remaps and (config is None or not causal or window is not None):
            raise RopeError(
                "Attention: an extension needs causal attention with a rope over all earlier tokens.",
                facts={"extension": extension, "rope": config, "causal": causal, "sliding_window": window},
                cure="Use None for this layer: a sliding window within the trained length needs no extension.",
            )
        if extension is not None and encoding is not None and encoding.adds_to_scores:
            raise RopeError(
                "Attention: an extension's scale is defined only for q.k, but this layer's encoding adds to scores.",
                facts={"extension": extension, "encoding": encoding.config},
                cure="Omit the extension, or choose an encoding that rotates queries and keys, such as a rope.",
            )
        self.rotary = RotaryEmbedding(rope) if isinstance(rope, RopeConfig) else rope
        self.extension = extension

    def forward(
        self,
        hidden_states: Float[Tensor, "batch seq hidden"],
        *,
        position_ids: Real[Tensor, "*positions"] | None = None,
        attention_mask: Shaped[Tensor, "batch seq"] | None = None,
        document_ids: Int[Tensor, "batch seq"] | None = None,
        cache: KVCache | None = None,
        layer: int | None = None,
        seq_len: int | None = None,
        need_weights: bool = False,
        inputs: ForwardInputs | None = None,
        bias: Tensor | None = None,
    ) -> (
        Float[Tensor, "batch seq hidden"]
        | tuple[Float[Tensor, "batch seq hidden"], Float[Tensor, "batch heads seq keys"]]
    ):
        """Attend within `hidden_states` `[batch, seq, hidden]`, and to the cached tokens of this layer.

        **Arguments:**

        - `position_ids`: integers `[seq]` or `[batch, seq]`, with several axes last; None: each token's index among the
          real tokens of its row, after those in the cache, or of its document. Required if each axis has its own
          frequencies (`axes_restart`, such as `encoding="axial"`).
        - `attention_mask`: bool or integer `[batch, seq]`, 1 for a real token, padded on any side; with a cache it
          covers only the new tokens. The result at padded tokens is finite and has no meaning.
        - `document_ids`: integers `[batch, seq]`; a new document begins when the id changes; documents do not
          attend to each other.
        - `cache`: keeps no gradients, and counts the tokens of each layer.
        - `layer`: number of this layer in the cache, required if the cache has several; no two modules share one.
        - `seq_len`: tokens; required if frequencies depend on length, unless the cache has it.
        - `need_weights`: also return the weights `[batch, heads, seq, keys]`, before dropout; no fused kernel runs.
        - `inputs`: built by a model from these arguments for all its layers; omit the others in that case.
        - `bias`: with `inputs`, the masked bias of the model's shared encoding (`ForwardInputs.shared_bias`).

        **Returns:** `[batch, seq, hidden]`, or that and the weights.

        **Raises:** `RopeError` for arguments that contradict each other.
        """
        check_kind("Attention", Tensor, "Pass [batch, seq, hidden].", hidden_states=hidden_states)
        if hidden_states.layout is not torch.strided or hidden_states.is_nested:
            raise RopeError(
                "Attention: `hidden_states` must be a dense tensor, neither sparse nor nested.",
                facts={"hidden_states": hidden_states},
                cure="Sparse: x.to_dense(). Nested: pass x.values()[None], and document_ids for its rows.",
            )
        if hidden_states.ndim != 3 or hidden_states.shape[-1] != self.hidden_size:
            raise RopeError(
                "Attention: `hidden_states` must be [batch, seq, hidden].",
                facts={"hidden_states": hidden_states, "hidden_size": self.hidden_size},
                cure="Add the batch dimension with hidden_states[None], or build Attention with this hidden size.",
            )
        given: dict[str, Any] = {
            "position_ids": position_ids, "attention_mask": attention_mask, "document_ids": document_ids,
            "cache": cache, "seq_len": seq_len,
        }  # fmt: skip
        check_kind("Attention", bool, "Pass True for the weights too.", need_weights=need_weights)
        if inputs is not None:
            check_kind("Attention", ForwardInputs, "Build it: ForwardInputs(hidden_states, ...).", inputs=inputs)
        standalone, layer = inputs is None, _layer_of(cache if inputs is None else inputs.cache, layer)
        if inputs is None:
            if bias is not None:
                raise RopeError("Attention: `bias` requires `inputs`.", cure="Omit it: a layer computes its own.")
            if cache is not None:
                if not self.causal:
                    raise RopeError("Attention: a cache needs causal attention.", cure="Run without a cache.")
                cache.check_layer(layer, self, self.rope, self.extension)
            inputs = ForwardInputs(hidden_states, **given, layer=layer)
        else:
            _check_inputs(inputs, hidden_states, given)
        cache = inputs.cache
        with torch.no_grad() if cache is not None else differentiable_kernels():
            if self.encoding is not None:
                hidden_states = self.encoding.embedded(hidden_states, inputs.places.queries)
            out, weights = self._attend(hidden_states, inputs, layer, bias, need_weights)
            out = self.o_proj(out.transpose(1, 2).flatten(2))
        if cache is not None and standalone:
            cache.commit(inputs.layout)
        return (out, weights) if weights is not None else out

    def _attend(
        self, x: Tensor, inputs: ForwardInputs, layer: int, bias: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return `[batch, heads, seq, head_dim]`, and the weights or None."""
        # under tensor parallelism a process computes only its own heads
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_dim)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        q, keys, values = self._rotate_and_store(q, k, v, inputs, layer)
        dropout, rules = self.attention_dropout if self.training else 0.0, LogitRules(self.softcap or 0.0, self.sinks)
        layout, encoding = inputs.layout, self.position_encoding
        if self.extension is not None:
            q = inputs.remap(self.rotary, self.extension).scaled(q)
        if bias is None and encoding is not None:
            q, bias = encoding.biased(q, inputs.places)
            if bias is not None:
                bias = masked_bias(bias, layout.visibility(self.causal, self.sliding_window, whole=True))
        q = q.transpose(1, 2)
        if self.extension is not None and self.extension.remaps:
            remap = inputs.remap(self.rotary, self.extension)
            if need_weights:
                return attend_remapped_openly(q, keys, values, remap, dropout, rules)
            return attend_remapped(q, keys, values, remap, dropout, rules), None
        seen = Visibility()
        if bias is None:
            seen = layout.visibility(self.causal, self.sliding_window, whole=need_weights or not rules.none)
        else:
            bias = bias.to(q.dtype)
        if need_weights:
            return attend_openly(q, keys, values, seen, dropout, bias, rules)
        return attend(q, keys, values, seen, dropout, bias, rules), None

    def _rotate_and_store(
        self, q: Tensor, k: Tensor, v: Tensor, inputs: ForwardInputs, layer: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate and store, in one pass if possible; return queries, and keys and values with heads first."""
        layout, cache, encoding = inputs.layout, inputs.cache, self.position_encoding
        if self.rotary is not None and not self.remaps:
            rope, (cos, sin, scale) = self.rotary.config, inputs.tables(self.rotary)
            check_tables({"q": q}, cos, sin, rope.interleaved, rope.rotary_dim, "bshd")
            backend = choose({"q": q, "k": k, "v": v, "cos": cos, "sin": sin})
            turn = Turn(rope.interleaved, scale, False, "bshd")
            store = cache.store(layer, v, layout) if cache is not None and backend.kernels else None
            if cache is not None and store is not None:
                q, _ = norm_rotated(backend, q, k, cos, sin, turn, None, store)
                return q, *cache.held(layer, layout)
            q, k = rotated(backend, [q, k], cos, sin, turn)
        elif encoding is not None:
            q, k = encoding.encoded(q, k, inputs.places.queries)
        if cache is None:
            return q, k.transpose(1, 2), v.transpose(1, 2)
        keys, values = cache.write(layer, k, v, layout)
        return q, keys.to(q.dtype), values.to(q.dtype)


def _layer_of(cache: KVCache | None, layer: int | None) -> int:
    """Return `layer`; None is 0. Raise `RopeError` if a cache of several layers does not know which one is meant."""
    if cache is not None:
        check_kind("Attention", KVCache, "Build one: rw.KVCache(...).", cache=cache)
    if layer is not None:
        check_whole("Attention", least=0, layer=layer)
    elif cache is not None and cache.num_layers > 1:
        raise RopeError(
            "Attention: `layer` is required: the cache has several layers.",
            facts={"layer": layer, "cache": cache},
            cure="Pass each layer's own number: attention(x, cache=cache, layer=i).",
        )
    return layer or 0


def _check_inputs(inputs: ForwardInputs, hidden_states: Tensor, given: dict[str, Any]) -> None:
    """Raise `RopeError` if arguments that `inputs` already contain are passed again, or the shapes differ."""
    ignored = {name: value for name, value in given.items() if value is not None}
    if ignored:
        names = " and ".join(f"`{name}`" for name in ignored)
        raise RopeError(
            f"Attention: `inputs` is already built, so {names} would be ignored.",
            facts=ignored,
            cure="Omit `inputs`, or build it with them: ForwardInputs(hidden_states, ...).",
        )
    if hidden_states.shape[:2] != (inputs.layout.batch, inputs.layout.seq):
        raise RopeError(
            "Attention: `inputs` was built for a different shape.",
            facts={"hidden_states": hidden_states, "batch": inputs.layout.batch, "seq": inputs.layout.seq},
            cure="Build it from the hidden states of this call: ForwardInputs(hidden_states, ...).",
        )


def _check_sizes(layer: Attention) -> None:
    """Raise `RopeError` unless the heads can be divided, the dropout is a probability, and the softcap positive."""
    heads, kv_heads = layer.num_attention_heads, layer.num_key_value_heads
    if heads % kv_heads:
        raise RopeError(
            "Attention: `num_attention_heads` must be a multiple of `num_key_value_heads`.",
            facts={"num_attention_heads": heads, "num_key_value_heads": kv_heads},
            cure="Choose a multiple: each key-value head is shared by the same number of query heads.",
        )
    if not 0.0 <= layer.attention_dropout < 1.0:
        raise RopeError(
            "Attention: `attention_dropout` must be a probability below 1.",
            facts={"attention_dropout": layer.attention_dropout},
            cure="Pass 0.0 to disable it; common values are 0.0 to 0.2.",
        )
    if layer.softcap is not None:
        check_positive("Attention", softcap=layer.softcap)
