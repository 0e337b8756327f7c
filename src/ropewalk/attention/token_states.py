"""The states of a call's tokens for a `SequentialEncoding`: padding, packed documents, and the cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.attention.cache import KVCache
from ropewalk.attention.forward_inputs import ForwardInputs
from ropewalk.attention.masks import TokenLayout
from ropewalk.encodings import SequentialEncoding, TokenStates
from ropewalk.errors import RopeError


def token_states(encoding: SequentialEncoding, x: Tensor, inputs: ForwardInputs, layer: int) -> TokenStates:
    """Return the states of all keys of a call on hidden states `x` `[batch, seq, hidden]`; store the new ones.

    **Raises:** `RopeError` for position ids and branches, and for a cache without room for the states.
    """
    layout, cache = inputs.layout, inputs.cache
    _refuse(encoding, inputs)
    raw = encoding.raw(x)
    if cache is not None:
        check_state_size(cache, layer, encoding.state_size)
        return _stored(encoding, x, raw, layout, cache, layer)
    taps = [raw, *(_before(raw, layout, distance) for distance in range(1, encoding.taps))]
    values = encoding.states(x, taps)
    if layout.real is not None:
        values = values.masked_fill(~layout.real[..., None], 0.0)
    return TokenStates(values, torch.arange(layout.seq, device=x.device), 0)


def check_state_size(cache: KVCache, layer: int, size: int) -> None:
    """Raise `RopeError` unless the cache keeps as many numbers of each token as the layer's encoding needs."""
    if 0 <= layer < cache.num_layers and cache.state_sizes[layer] != size:
        raise RopeError(
            "Attention: the cache was not made for this layer's encoding, which keeps numbers of each token.",
            facts={"layer": layer, "cache.state_sizes": cache.state_sizes, "encoding.state_size": size},
            cure="KVCache(state_sizes=[...]) takes one per layer; model.new_cache does.",
        )


def _refuse(encoding: SequentialEncoding, inputs: ForwardInputs) -> None:
    name = type(encoding.config).__name__
    if inputs.position_ids is not None:
        raise RopeError(
            f"{name}: positions are the order of the tokens, so `position_ids` would be ignored.",
            facts={"position_ids": inputs.position_ids},
            cure="Leave position_ids out; attention_mask and document_ids are supported.",
        )
    if inputs.layout.branches is not None:
        raise RopeError(
            f"{name}: several continuations in one call are not supported: each would need its own sums.",
            cure="Run them in rows of their own: cache.select([0, 0, ...]).",
        )


def _stored(
    encoding: SequentialEncoding, x: Tensor, raw: Tensor, layout: TokenLayout, cache: KVCache, layer: int
) -> TokenStates:
    """Return the states of a cache's tokens after those of this call are stored."""
    slots, taps = layout.slots_in_full(), [raw]
    if encoding.raw_size:
        rows = torch.arange(layout.batch, device=x.device)[:, None]
        held = cache.write_states(layer, raw, layout)[..., : encoding.raw_size].to(raw.dtype)
        for distance in range(1, encoding.taps):
            tap = held[rows, (slots - distance).clamp(min=0)]
            taps.append(tap.masked_fill((slots < distance)[..., None], 0.0))
    own = encoding.states(x, taps)
    values = cache.write_states(layer, own, layout, first=encoding.raw_size)[..., encoding.raw_size :].to(own.dtype)
    if layout.slots is None:
        return TokenStates(values, layout.slots_of_queries(), layout.start)
    return TokenStates(values, slots)


def _before(raw: Tensor, layout: TokenLayout, distance: int) -> Tensor:
    """Return `raw` of the token `distance` real tokens before each token in its document; 0 if there is none."""
    if layout.slots is None and layout.documents is None:
        return F.pad(raw, (0, 0, distance, 0))[:, : layout.seq]
    slots = layout.slots_in_full()
    columns = torch.arange(layout.seq, device=raw.device).expand(layout.batch, -1)
    if layout.real is not None:
        columns = (~layout.real).long().argsort(dim=1, stable=True)  # the column of each slot
    column = columns.gather(1, (slots - distance).clamp(min=0))
    earlier = raw.gather(1, column[..., None].expand_as(raw))
    positions = layout.position_ids()
    return earlier.masked_fill((positions < distance)[..., None], 0.0)
