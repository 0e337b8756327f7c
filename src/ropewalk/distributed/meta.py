"""Models whose weights never lie whole in memory, with the same first weights, bit for bit, as built in one process.

A model is built on the meta device, cut over the mesh, given memory for its parts, and initialised: each tensor is
drawn whole, by the generator of the CPU, and each process keeps its part. What constructors draw is drawn as well, and
thrown away, so that the generator stands where it would.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ropewalk.distributed.mesh import Mesh
from ropewalk.distributed.sharding import local_part, put_whole, spread
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder

_FILLS = ("normal_", "uniform_", "kaiming_uniform_", "fill_", "zero_", "zeros_", "ones_")


class _Whole(TorchFunctionMode):
    """In-place initialisation of what holds no values (meta) or a part of them (DTensor) is done on a whole tensor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        place = args[0] if args else given.get("tensor")
        name = getattr(func, "__name__", "")
        if name not in _FILLS or not isinstance(place, Tensor) or not (place.is_meta or hasattr(place, "placements")):
            return func(*args, **given)
        drawn = torch.empty(place.shape, dtype=place.dtype, device="cpu")
        func(drawn, *args[1:], **{key: value for key, value in given.items() if key != "tensor"})
        if not place.is_meta:
            put_whole(place, drawn)
        return place


def built(make: Callable[[], Decoder], mesh: Mesh, device: str) -> Decoder:
    """The decoder that `make` builds and initialises, cut over a mesh: the same weights as one process would have.

    Torch's generator is left where one process would leave it. Raises `RopeError` where a weight is left without
    values, and where the model cannot be cut so.
    """
    with _Whole(), torch.device("meta"):
        model = make()
    spread(model, mesh)
    model.to_empty(device=device)
    for parameter in model.parameters():
        local_part(parameter).fill_(math.nan)
    with _Whole():
        model.reset_parameters()
    check_filled(model)
    return model


def check_filled(model: nn.Module) -> None:
    """Refuse a model with a weight that nothing was written to since its memory was taken."""
    empty = [name for name, parameter in model.named_parameters() if bool(local_part(parameter).isnan().any())]
    if empty:
        raise RopeError(
            "train: weights were built on the meta device and never given values.",
            facts={"weights": empty[:4], "of": sum(1 for _ in model.parameters())},
            cure="Initialise them after to_empty (reset_parameters), or load a checkpoint into them.",
        )
