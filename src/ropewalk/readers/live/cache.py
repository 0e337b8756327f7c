"""A transformers model's own cache with room made beforehand: appending copies nothing, and can be taken back."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

_REPLACING = (DynamicLayer, DynamicSlidingWindowLayer)
"""Layers whose update makes new tensors and leaves the former ones as they were."""


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers is not typed
    """A layer over all tokens whose keys and values are views of one tensor each, made for `capacity` tokens."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = max(1, capacity)
        self._room: tuple[Tensor, Tensor] | None = None

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append tokens `[batch, heads, tokens, features]`; returns all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.get_seq_length()
        stop = held + key_states.shape[-2]
        if self._room is None or stop > self._room[0].shape[-2]:
            self._make_room(max(stop, self.capacity), key_states, value_states, held)
        assert self._room is not None
        for room, states in zip(self._room, (key_states, value_states), strict=True):
            room[..., held:stop, :] = states
        self.keys, self.values = (room[..., :stop, :] for room in self._room)
        return self.keys, self.values

    def _make_room(self, tokens: int, key_states: Tensor, value_states: Tensor, held: int) -> None:
        rooms = []
        for states, kept in ((key_states, self.keys), (value_states, self.values)):
            room = states.new_empty(*states.shape[:-2], tokens, states.shape[-1])
            if held:
                room[..., :held, :] = kept
            rooms.append(room)
        self._room = (rooms[0], rooms[1])

    def copied(self) -> RoomyLayer:
        """The same tokens in tensors of its own."""
        other = RoomyLayer(self.capacity)
        if self.is_initialized and self._room is not None:
            other.lazy_initialization(self.keys, self.values)
            held = self.get_seq_length()
            other._make_room(self._room[0].shape[-2], self.keys, self.values, 0)
            assert other._room is not None
            for room, states in zip(other._room, (self.keys, self.values), strict=True):
                room[..., :held, :] = states
            other.keys, other.values = (room[..., :held, :] for room in other._room)
        return other


def new_cache(config: Any, capacity: int) -> Any:
    """The cache that transformers makes for a config, with room for `capacity` tokens in its full layers."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def copied(cache: Any) -> Any:
    """A cache with the same tokens that goes on by itself."""
    other = copy.copy(cache)
    other.layers = [layer.copied() if isinstance(layer, RoomyLayer) else _kept(layer) for layer in cache.layers]
    return other


@contextmanager
def taken_back(cache: Any) -> Iterator[None]:
    """What is appended within is gone afterwards."""
    before = [
        (layer.keys, layer.values, layer.is_initialized) if isinstance(layer, RoomyLayer) else _kept(layer)
        for layer in cache.layers
    ]
    layers = list(cache.layers)
    try:
        yield
    finally:
        for index, kept in enumerate(before):
            layer = layers[index]
            if isinstance(layer, RoomyLayer):
                layer.keys, layer.values, layer.is_initialized = kept
                cache.layers[index] = layer
            else:
                cache.layers[index] = kept


def held_bytes(cache: Any) -> list[tuple[int, int | None]]:
    """For each layer the bytes of its keys and values (or states), and the tokens that it holds at most, or None."""
    found = []
    for layer in cache.layers:
        tensors = (value for value in _tensors(vars(layer)))
        window = layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None
        found.append((sum(tensor.numel() * tensor.element_size() for tensor in tensors), window))
    return found


def _tensors(values: dict[str, Any]) -> Iterator[Tensor]:
    """The tensors that a layer holds, views of others left out."""
    for name, value in values.items():
        several = value if isinstance(value, list | tuple) else (value,)
        if name not in ("_room", "_sliding_window_tensor"):
            yield from (one for one in several if isinstance(one, torch.Tensor))


def _kept(layer: Any) -> Any:
    """A layer that is not changed by what is appended to the original."""
    return copy.copy(layer) if type(layer) in _REPLACING else copy.deepcopy(layer)
