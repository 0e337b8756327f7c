"""What one forward computes once for all its layers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar, cast

import torch
from torch import Tensor

ValueT = TypeVar("ValueT")


class Memo:
    """Values by key, for the layers of one forward; a tensor that has a gradient is computed each time and not kept.

    Activation checkpointing runs a layer a second time. What the first run had kept would then be missing from the
    graph, or would be a part of two graphs. The grad mode belongs to the key: a constant made without gradients does
    not stand for one made with them.

    >>> memo = Memo()
    >>> memo("zeros", lambda: torch.zeros(2)) is memo("zeros", lambda: torch.zeros(2))
    True
    >>> weight = torch.ones(2, requires_grad=True)
    >>> memo("double", lambda: 2 * weight) is memo("double", lambda: 2 * weight)
    False
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Hashable, bool], object] = {}

    def __call__(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """The value under `key`; `make` computes it where there is none yet."""
        full_key = (key, torch.is_grad_enabled())
        if full_key in self._values:
            return cast(ValueT, self._values[full_key])
        value = make()
        if not _has_gradient(value):
            self._values[full_key] = value
        return value


def _has_gradient(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, tuple | list) and any(_has_gradient(part) for part in value)
