"""Models that look sines and cosines up in a table of all positions: what stands in the table's place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.attachment.formats import table_format
from ropewalk.attachment.tables import LayerTables, TablesForward
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig


class LookedUp:
    """In place of a tensor `[positions, rotary_dim]`: the rows that are asked for, made for their positions.

    Models ask by index, by `torch.gather` along the positions, or by `F.embedding`; any other use raises `TypeError`.
    It keeps `held`, the module's own dict of tensors, for the dtype and the device of the one that it stands for.
    """

    def __init__(self, forward: TablesForward, held: Mapping[str, Tensor | None], name: str) -> None:
        self.forward, self.held, self.name = forward, held, name

    def rows(self, position_ids: Tensor) -> Tensor:
        """Sines, then cosines `[*position_ids, rotary_dim]`, in the dtype of the model's own table."""
        x = torch.empty(0, dtype=self._own.dtype, device=position_ids.device)
        rows = self.forward(x, position_ids)
        assert isinstance(rows, Tensor), "its form is one tensor"
        return rows

    @property
    def _own(self) -> Tensor:
        own = self.held[self.name]
        assert own is not None
        return own

    @property
    def shape(self) -> torch.Size:
        """That of the model's own table; positions beyond it have rows as well."""
        return self._own.shape

    @property
    def device(self) -> torch.device:
        """That of the model's own table."""
        return self._own.device

    def to(self, device: torch.device) -> LookedUp:
        """Refused: the model would keep what it gets as its own table."""
        raise RopeError(
            "attach: this model's table of positions is on another device than its inputs.",
            facts={"table": self.device, "inputs": device},
            cure="Move the model with model.to(device) first.",
        )

    def repeat(self, *_: int) -> LookedUp:
        """Itself: rows are made for any batch."""
        return self

    def __getitem__(self, position_ids: Tensor) -> Tensor:
        return self.rows(position_ids)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.gather and not kwargs:
            table, dim, index = args
            if dim == index.ndim - 2:
                return table.rows(index[..., 0])
        if func is F.embedding:
            ids, table = args[:2]
            return table.rows(ids)
        return NotImplemented


def understood_tables(
    model: nn.Module, path: str, rope: RopeConfig
) -> list[tuple[str, nn.Module, str, dict[str | None, LayerTables]]]:
    """Every table at this path from a module of the model: the holder's name, the holder, the tensor's name, its form.

    Raises `RopeError` for a table whose rows are not the sines and cosines of `rope`.
    """
    found = []
    for name, module in model.named_modules():
        holder, own = _held(module, path)
        if holder is not None:
            where = f"{name}.{path}".lstrip(".")
            form = table_format(_tensors(holder, own)[own], rope, where)
            tables: dict[str | None, LayerTables] = {None: LayerTables(rope, form, rope.num_axes, rope.pairs)}
            found.append((where, holder, own, tables))
    return found


def stand_in(holder: nn.Module, name: str, forward: TablesForward) -> LookedUp:
    """What takes the place of a module's tensor of this name."""
    return LookedUp(forward, _tensors(holder, name), name)


def _held(module: nn.Module, path: str) -> tuple[nn.Module | None, str]:
    """The module that holds the tensor at a path from this one, and the tensor's name there; None where none does."""
    *inner, name = path.split(".")
    holder: nn.Module | None = module
    for part in inner:
        holder = None if holder is None else holder._modules.get(part)
    there = holder is not None and isinstance(_tensors(holder, name).get(name), Tensor)
    return (holder if there else None), name


def _tensors(module: nn.Module, name: str) -> dict[str, Any]:
    return module._buffers if name in module._buffers else module._parameters
