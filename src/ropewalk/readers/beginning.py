"""The beginning of a window as one model has read it, from which the same model under other positions reads on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ropewalk.attention.attention import Attention
from ropewalk.attention.cache import KVCache
from ropewalk.attention.tables import tables_at
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.rotation.rotate import rotate


class Beginning:
    """Keys and values of a window's first tokens, and their losses; a copy, that the model's cache can go on without.

    - `model`: the one that read them. `cache`: of one row of rotated keys, with at least `tokens` tokens in it.
    - `losses`: float32 `[tokens]`, nats of the tokens from 1 to `tokens`, the last after all that is kept.
    - `seconds`: that it took to read them.

    Raises `RopeError` for a cache of unrotated keys, and for one that holds fewer tokens.
    """

    def __init__(self, model: Decoder, cache: KVCache, losses: Tensor, seconds: float) -> None:
        held = cache.lay_out(1, 0)
        if not cache.rotated or held.total < len(losses):
            raise RopeError(
                "Beginning: it is taken from a cache of rotated keys that holds all its tokens.",
                facts={"cache": cache, "tokens": len(losses)},
                cure="Take it after they were read, under a model without an extension.",
            )
        self.tokens, self.seconds, self.losses = len(losses), seconds, losses.clone()
        self._ropes = model.config.ropes
        self._layers = [
            tuple(part[:, :, : self.tokens].clone() for part in cache.held(layer, held))
            for layer in range(model.config.num_hidden_layers)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of its keys and values."""
        return sum(part.nbytes for layer in self._layers for part in layer)

    def put(self, model: Decoder, cache: KVCache, tokens: int) -> None:
        """Write the first `tokens` into an empty cache of the same model under an extension.

        Keys that the cache keeps unrotated are turned back: in float32 to 1e-7, in a half type with one more rounding.
        Raises `RopeError` where the ropes are others, or fewer tokens are kept.
        """
        if model.config.ropes != self._ropes or tokens > self.tokens:
            raise RopeError(
                "Beginning: these tokens were read under another rope, or fewer of them.",
                facts={"ropes": set(self._ropes), "model": set(model.config.ropes), "tokens": (tokens, self.tokens)},
                cure="Read on with the same weights under the same ropes.",
            )
        layout = cache.lay_out(1, tokens)
        for number, (attention, (keys, values)) in enumerate(zip(_attentions(model), self._layers, strict=True)):
            kept, values = keys[:, :, :tokens].transpose(1, 2), values[:, :, :tokens].transpose(1, 2)
            cache.write(number, kept if cache.rotated else _turned_back(kept, attention), values, layout)
        cache.commit(layout)


def _attentions(model: Decoder) -> Iterator[Attention]:
    for layer in model.layers:
        attention = layer.self_attn
        assert isinstance(attention, Attention)
        yield attention


def _turned_back(keys: Tensor, attention: Attention) -> Tensor:
    """Keys `[1, tokens, heads, head_dim]` at positions 0, 1, ... as they were before their rotation."""
    if attention.rotary is None:
        return keys
    rope, positions = attention.rotary.config, torch.arange(keys.shape[1], device=keys.device)
    exact = torch.float64 if keys.dtype == torch.float64 else torch.float32
    cos, sin, factor = tables_at(attention.rotary, positions, None, exact)
    return rotate(
        keys, cos, sin, interleaved=rope.interleaved, rotary_dim=rope.rotary_dim, blocks=rope.blocks, scale=1 / factor,
        inverse=True,
    )  # fmt: skip
