"""What a call on attention must fulfil, and the message where it does not."""

from __future__ import annotations

import math

from torch import Tensor

from ropewalk.attention.cache import KVCache
from ropewalk.attention.extensions import Extension
from ropewalk.attention.forward_inputs import ForwardInputs
from ropewalk.encodings import Encoding
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig


def check_inputs(inputs: ForwardInputs, hidden_states: Tensor, bias: Tensor | None, **arguments: object) -> None:
    """Inputs that are built already leave nothing to the arguments that they were built from."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if given:
        names = " and ".join(f"`{name}`" for name in given)
        raise RopeError(
            f"Attention: `inputs` is already built, so {names} would be ignored.",
            facts=given,
            cure="Leave `inputs` out, or build it with them: ForwardInputs.of(hidden_states, ...).",
        )
    if hidden_states.shape[:2] != (inputs.layout.batch, inputs.layout.seq):
        raise RopeError(
            "Attention: `inputs` was built for a call of another shape.",
            facts={"hidden_states": hidden_states, "batch": inputs.layout.batch, "seq": inputs.layout.seq},
            cure="Build it from hidden states of this call: ForwardInputs.of(hidden_states, ...).",
        )
    if bias is not None and inputs.documents is not None:
        raise RopeError(
            "Attention: packed documents have a bias each, so `bias` would be ignored.",
            facts={"bias": bias},
            cure="Pass what ForwardInputs.shared_bias gives: None for packed documents.",
        )


def check_sizes(hidden: int, heads: int, kv_heads: int, head_dim: int | None, window: int | None) -> None:
    """Sizes of a layer are whole multiples of each other, as `Attention` needs."""
    facts = {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    if min(hidden, heads, kv_heads, 1 if head_dim is None else head_dim) < 1:
        raise RopeError(
            "Attention: sizes must be at least 1.",
            facts=facts,
            cure="Give whole numbers; heads must be a multiple of key-value heads.",
        )
    if heads % kv_heads:
        raise RopeError(
            "Attention: `num_attention_heads` must be a multiple of `num_key_value_heads`.",
            facts=facts,
            cure="Each key-value head serves the same number of query heads.",
        )
    if head_dim is None and hidden % heads:
        raise RopeError(
            "Attention: `hidden_size` is not a multiple of `num_attention_heads`.",
            facts=facts,
            cure="Pass head_dim=...",
        )
    if window is not None and window < 1:
        raise RopeError(
            "Attention: `sliding_window` must be at least 1 token.",
            facts={"sliding_window": window},
            cure="Leave it out to see every token before.",
        )


def check_dropouts(**dropouts: float) -> None:
    """Every dropout is a probability below 1."""
    for name, p in dropouts.items():
        if not 0.0 <= p < 1.0:
            raise RopeError(
                f"Attention: `{name}` must be a probability below 1.",
                facts={name: p},
                cure="0.0 turns it off; common values are 0.0 to 0.2.",
            )


def check_softcap(softcap: float | None) -> None:
    """A softcap is a positive number."""
    if softcap is not None and not 0.0 < softcap < math.inf:
        raise RopeError(
            "Attention: `softcap` must be a positive number.",
            facts={"softcap": softcap},
            cure="Gemma 2 has 50.0; leave it out for logits as they are.",
        )


def check_cache(cache: KVCache, layer: int, rope: RopeConfig | None, extension: Extension | None) -> None:
    """The cache is for this layer's rope, which it knows where it must watch its length, and for its extension."""
    known = None if cache.ropes is None or not 0 <= layer < cache.num_layers else cache.ropes[layer]
    must_know = rope is not None and rope.needs_seq_len
    if known != rope and (cache.ropes is not None or must_know):
        raise RopeError(
            "Attention: the cache was not made for this layer's rope.",
            facts={"layer": layer, "cache.ropes": cache.ropes, "rope": rope},
            cure="KVCache(ropes=[...], seq_len=...) takes one rule per layer.",
        )
    if 0 <= layer < cache.num_layers and cache.extensions[layer] != extension:
        raise RopeError(
            "Attention: the cache was not made for this layer's extension.",
            facts={"layer": layer, "cache.extensions": cache.extensions, "extension": extension},
            cure="KVCache(extensions=[...]) takes one, or None, per layer.",
        )


def check_unrotated(cache: KVCache, extension: Extension | None, encoding: Encoding | None) -> None:
    """An extension reads unrotated keys; an encoding that knows positions by more than slots cannot be read so."""
    if extension is not None and extension.remaps and cache.rotated:
        raise RopeError(
            "KVCache: an extension in attention reads unrotated keys.",
            facts={"extension": extension, "cache": cache},
            cure="Make the cache with rotated=False; model.new_cache does.",
        )
    if encoding is not None and not cache.rotated and not encoding.by_slots:
        raise RopeError(
            "KVCache: this encoding writes positions into embeddings or keys before they are stored.",
            facts={"encoding": encoding.config, "cache": cache},
            cure="Make the cache with rotated=True.",
        )


def check_one_way(rope: object, encoding: object) -> None:
    """Positions are known by a rope or by an encoding."""
    if rope is not None and encoding is not None:
        raise RopeError(
            "Attention: `rope` and `encoding` both say how positions are known.",
            facts={"rope": rope, "encoding": encoding},
            cure="Pass one of them.",
        )


def check_rope(rope: RopeConfig | None, head_dim: int, held: Extension | None) -> None:
    """A rope fits the heads, and stays while an extension remaps its positions."""
    if rope is not None and rope.head_dim != head_dim:
        raise RopeError(
            "Attention: `rope` is for another head_dim.",
            facts={"rope.head_dim": rope.head_dim, "head_dim": head_dim},
            cure="RopeConfig(head_dim=...) must be the size of one head; rotary_dim may be smaller.",
        )
    if rope is None and held is not None and held.remaps:
        raise RopeError(
            "Attention: the layer's extension remaps the positions of a rope, so the rope cannot go alone.",
            facts={"extension": held},
            cure="Take both away: set_positions(None, None), or model.with_positions(rope=None, extension=None).",
        )


def check_extension(
    extension: Extension, rope: RopeConfig | None, encoding: Encoding | None, causal: bool, window: int | None
) -> None:
    """What remaps positions has a rope over all earlier tokens; what scales logits has q.k alone in them."""
    if extension.remaps and (rope is None or not causal or window is not None):
        raise RopeError(
            "Attention: an extension remaps the positions of causal attention with a rope over all earlier tokens.",
            facts={"extension": extension, "rope": rope, "causal": causal, "sliding_window": window},
            cure="Leave this layer without it: a sliding window no longer than the trained length needs none.",
        )
    if encoding is not None and encoding.adds_to_scores:
        raise RopeError(
            "Attention: an extension's scale is defined for q.k alone, and this layer's encoding adds to scores.",
            facts={"extension": extension, "encoding": encoding.config},
            cure="Leave the extension out, or choose an encoding that turns queries and keys, as a rope does.",
        )


def check_local_heads(kv_heads: int, here: int, sinks: Tensor | None, encoding: Encoding | None) -> None:
    """Where a process computes a part of the heads, nothing may be held for each of them."""
    if sinks is not None:
        raise RopeError(
            "Attention: there is a sink for each head, and this process computes a part of the heads.",
            facts={"sinks": sinks, "kv_heads": kv_heads, "here": here},
            cure="Leave q_proj, k_proj and v_proj out of tensor parallelism.",
        )
    if encoding is not None and encoding.adds_to_scores:
        raise RopeError(
            "Attention: this encoding has a bias for each head, and this process computes a part of the heads.",
            facts={"encoding": encoding.config, "kv_heads": kv_heads, "here": here},
            cure="Leave q_proj, k_proj and v_proj out of tensor parallelism, or choose a rope.",
        )
