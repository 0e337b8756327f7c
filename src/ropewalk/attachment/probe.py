"""The rotary modules of a live model: their frequencies, tables and calls in one form, compared with float64.

`attach` learns the form of a class's tables from them, and `ropewalk.audit.check` compares their numbers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ropewalk.rope.config import RopeConfig
from ropewalk.rope.tables import make_tables

NEAR = (0, 1, 2, 3, 5, 8, 13, 21)
_FLOOR, _SLOPE = 4e-6, 8e-6  # errors of a float32 table: constant, and for each radian of the angle
_CLASS = re.compile("(?<!Apply)(?:Rotary|RoPE|Rope)")  # a function of vLLM, ApplyRotaryEmb, has no rope
_FREQUENCIES = re.compile(r"^(?:(?P<label>\w+?)_)?inv_freq$")
_NOT_LIVE = ("original", "long", "short")  # copies that the forward may put into `inv_freq`
_PAIRS = (("cos_cached", "sin_cached"), ("_cos_cached", "_sin_cached"), ("cos_cache", "sin_cache"),
          ("freqs_cos", "freqs_sin"), ("cos", "sin"), ("cos_table", "sin_table"))  # fmt: skip
_JOINT = ("cos_sin_cache", "long_short_cos_sin_cache", "cos_sin_cached", "freqs_cis", "rope_cache")
_ROWS_TO_KEEP = 65_536  # numbers: a larger buffer is a table, which no forward changes in place


Order = Literal["doubled", "repeated", "once", "blocks", "complex"]
"""The order of the pairs' numbers: all twice, each twice, each once, all of an axis twice, or as complex numbers."""


class Arrangement(NamedTuple):
    """The order of numbers along a module's own width, and whether a call returns (sin, cos)."""

    order: Order
    sines_first: bool = False

    def __str__(self) -> str:
        return f"{self.order}, sines first" if self.sines_first else self.order


@dataclass(frozen=True)
class TableRows:
    """Rows of cos and sin in float64, each pair once.

    - `name`: of the tensor or the call. `positions`: `[rows]`, or `[rows, axes]`. `cos`, `sin`: `[rows, pairs]`.
    - `dtype`: of the module's own numbers. `count`: rows of the whole table, None for a call.
    - `seq_len`: the length of this table for frequencies that depend on it; None if unknown.
    """

    name: str
    positions: Tensor
    cos: Tensor
    sin: Tensor
    arrangement: Arrangement
    dtype: torch.dtype
    count: int | None = None
    seq_len: int | None = None

    @property
    def eps(self) -> float:
        """Return the relative rounding of 16-bit numbers; 0 for others, whose rounding `allowed` contains."""
        return torch.finfo(self.dtype).eps if self.dtype.itemsize < 4 else 0.0

    def differences(self, rope: RopeConfig, seq_len: int, factor: float) -> tuple[Tensor, Tensor, bool]:
        """Return the differences from `rope` after division by `factor`, those that are allowed, and if sin is negated.

        Differences are `[rows, pairs]`. Some classes that rotate backwards have tables of the angle, and negate it in
        their rotation.
        """
        columns, axes = rope.columns_at(seq_len), rope.axes if self.positions.ndim == 2 else None
        cos, sin = make_tables(self.positions, columns, axes, dtype=torch.float64)
        places = self.positions[..., None] if axes is None else self.positions[..., list(axes)]
        angles = places.double() * torch.tensor(columns, dtype=torch.float64, device="cpu").abs()
        of_cos = (self.cos / factor - cos).abs()
        found = [torch.maximum(of_cos, (self.sin / factor - sign * sin).abs()) for sign in (1, -1)]
        # every pair rotates by minus the angle, or not
        backwards = rope.inv_freq is not None and max(rope.inv_freq) <= 0
        negated = backwards and float(found[1].max()) < float(found[0].max())
        return found[negated], _FLOOR + _SLOPE * angles + self.eps, negated


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the module's own buffers, parameters and tensor attributes."""
    held = {**module._buffers, **module._parameters, **vars(module)}
    return {name: value for name, value in held.items() if isinstance(value, Tensor)}


def is_named_rotary(module: nn.Module) -> bool:
    """Return whether a module's class has a name of rotary modules; layers with such a name have linear ones."""
    return _is_named(module) and not any(isinstance(child, nn.Linear) for child in module.modules())


def _is_named(module: nn.Module) -> bool:
    return _CLASS.search(type(module).__name__) is not None


def is_rotary(module: nn.Module) -> bool:
    """Return whether a module has frequencies or tables, or has a name of such modules."""
    return any(True for _ in frequencies_of(module)) or bool(tables_of(module)) or is_named_rotary(module)


def frequencies_of(module: nn.Module) -> Iterator[tuple[str, str | None, Tensor]]:
    """Yield the name, the layer type and the tensor of each list of inverse frequencies.

    With learned factors (LeRoPE's `alpha`) these are the resulting frequencies.
    """
    tensors = tensors_of(module)
    alpha = tensors.get("alpha")
    for name, tensor in tensors.items():
        match = _FREQUENCIES.match(name)
        label = None if match is None else match["label"]
        if match and tensor.numel() and not (label or "").endswith(_NOT_LIVE):
            if alpha is not None and alpha.shape == tensor.shape:
                tensor = tensor.double() * alpha.double().exp()
            yield name, label, tensor
    if "theta" in tensors and "cache" in tensors and tensors["theta"].ndim == 1:  # torchtune's name
        yield "theta", None, tensors["theta"]


def tables_of(module: nn.Module, looked_up: str | None = None) -> dict[str, tuple[Tensor, ...]]:
    """Return the tables stored in a module, by name: cos and sin, or one tensor with both.

    `cache` counts only in modules with a rotary name. `looked_up`: a family's tensor with sines, then cosines.
    """
    tensors, found = tensors_of(module), dict[str, tuple[Tensor, ...]]()
    for names in _PAIRS:
        parts = [_flat(tensors[name]) for name in names if name in tensors]
        if len(parts) == 2 and parts[0].shape == parts[1].shape and all(p.ndim == 2 and _is_real(p) for p in parts):
            found[" and ".join(names)] = tuple(tensors[name] for name in names)
    named = _is_named(module) or "theta" in tensors
    for name in (*_JOINT, *(["cache"] if named else []), *([looked_up] if looked_up else [])):
        if name in tensors and _may_be_table(_flat(tensors[name])):
            found[name] = (tensors[name],)
    return found


def _may_be_table(table: Tensor) -> bool:
    """Return whether a tensor `[positions, width]`, `[positions, pairs, 2]` or complex can contain cos and sin."""
    if table.is_complex():
        return table.ndim == 2 and table.numel() > 0
    return _is_real(table) and table.ndim in (2, 3) and (table.shape[-1] == 2 or table.ndim + table.shape[-1] % 2 == 2)


def _is_real(table: Tensor) -> bool:
    return table.is_floating_point() and table.numel() > 0


def table_rows(name: str, parts: tuple[Tensor, ...], rope: RopeConfig, wanted: Sequence[int]) -> list[TableRows]:
    """Return the near, the far and the requested rows of a module's table; two lists if it has two tables."""
    original = rope.original_length
    if name.startswith("long_short") and original and original < len(parts[0]):
        halves = ((parts[0][:original], original), (parts[0][original:], len(parts[0])))
        return [
            TableRows(f"{name} ({of})", *_some_rows((half,), rope, wanted), count=len(half), seq_len=length)
            for of, (half, length) in zip(("short factors", "long factors"), halves, strict=True)
        ]
    return [TableRows(name, *_some_rows(parts, rope, wanted), count=len(_flat(parts[0])))]


def _flat(table: Tensor) -> Tensor:
    """Return a table without leading dimensions of size 1: positions come first."""
    while table.ndim > 2 and table.shape[0] == 1:
        table = table[0]
    return table.squeeze(1) if table.ndim == 3 and table.shape[1] == 1 else table


def _some_rows(
    parts: tuple[Tensor, ...], rope: RopeConfig, wanted: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Arrangement, torch.dtype]:
    tables = [_flat(part) for part in parts]
    count = len(tables[0])
    places = sorted({p for p in (*NEAR, count // 3, count // 2, count - 1, *wanted) if 0 <= p < count})
    rows = [table[places].detach().cpu() for table in tables]
    cos, sin, order = _undoubled(*_cos_and_sin(rows), rope)
    return torch.tensor(places, device="cpu"), cos, sin, Arrangement(order), rows[0].dtype


def _cos_and_sin(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return cos and sin of rows of one or two tensors, in the form of the tables."""
    if len(rows) == 2:
        return rows[0].double(), rows[1].double()
    row = torch.view_as_real(rows[0]).double() if rows[0].is_complex() else rows[0].double()
    if row.ndim == 3:
        return row[..., 0], row[..., 1]
    first, second = row.chunk(2, dim=-1)
    return (second, first) if _is_sine(first, second) else (first, second)


def _is_sine(first: Tensor, second: Tensor) -> bool:
    """Return whether the first of two tables from position 0 on has the sines."""
    return not first[0].any() and bool(second[0].any())


def _undoubled(cos: Tensor, sin: Tensor, rope: RopeConfig) -> tuple[Tensor, Tensor, Order]:
    """Return each pair's cos and sin once, and the module's order."""
    width = cos.shape[-1]
    if width % 2:
        return cos, sin, "once"

    sizes = [2 * size for size in rope.blocks] if sum(rope.blocks) * 2 == width else [width]
    ways: dict[Order, Callable[[Tensor], Sequence[Tensor]]] = {
        "doubled": lambda x: x.chunk(2, dim=-1),
        "repeated": lambda x: (x[..., 0::2], x[..., 1::2]),
        "blocks": lambda x: [
            torch.cat(halves, dim=-1)
            for halves in zip(*(part.chunk(2, dim=-1) for part in torch.split(x, sizes, dim=-1)), strict=True)
        ],
    }
    for name, split in ways.items():
        if all(torch.equal(*(part.nan_to_num() for part in split(x))) for x in (cos, sin)):
            return split(cos)[0], split(sin)[0], name
    return cos, sin, "once"


# --- calls of a module

_LAYOUTS: tuple[Callable[[Tensor], Tensor], ...] = (  # of positions [rows, axes]; towers take row or column first
    lambda p: p.T[:, None],
    lambda p: p,
    lambda p: p[None],
    lambda p: p.flip(-1),
    lambda p: p[None].flip(-1),
)


def takes_positions(module: nn.Module) -> bool:
    """Return whether the forward takes hidden states and position ids, and at most a layer type."""
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    return names[:2] == ["x", "position_ids"] and set(names[2:]) <= {"layer_type"}


def called_rows(
    module: nn.Module,
    label: str | None,
    rope: RopeConfig,
    places: Sequence[int],
    dtype: torch.dtype = torch.float32,
) -> Iterator[TableRows]:
    """Yield the tables of one call for each supported layout of positions; the module does not change.

    `dtype`: of the hidden states.
    """
    positions = torch.tensor(places, device="cpu")
    if rope.num_axes > 1:  # different positions on each axis show which pair follows which
        positions = torch.stack([positions.roll(axis) for axis in range(rope.num_axes)], dim=-1)
    device = next((tensor.device for tensor in tensors_of(module).values()), torch.device("cpu"))
    x = torch.zeros(1, len(places), 1, dtype=dtype, device=device)
    options: dict[str, Any] = {} if label is None else {"layer_type": label}
    for layout in _LAYOUTS if rope.num_axes > 1 else (lambda p: p[None],):
        try:
            with unchanged(module), torch.no_grad():
                out = module(x, position_ids=layout(positions).to(device), **options)
            parts = [out] if isinstance(out, Tensor) else list(out)
            rows = [part.detach().cpu().reshape(-1, part.shape[-1]) for part in parts]
            if len(rows) > 2 or len(rows[0]) != len(places):
                continue
            sines_first = len(rows) == 2 and _is_sine(*rows)
            cos, sin, order = _undoubled(*_cos_and_sin(rows[::-1] if sines_first else rows), rope)
        except Exception:  # each class fails in its own way when it gets positions of another layout
            continue
        held = [tensor.dtype for tensor in tensors_of(module).values() if tensor.ndim > 1 and _is_real(tensor)]
        lowest = min([parts[0].dtype, *held], key=lambda dtype: dtype.itemsize)  # a table of 16 bits may be cast
        arrangement = Arrangement("complex" if parts[0].is_complex() else order, sines_first)
        name, length = "cos and sin of its forward", max(places) + 1
        yield TableRows(name, positions, cos, sin, arrangement, lowest, seq_len=length)


@contextmanager
def unchanged(module: nn.Module) -> Iterator[None]:
    """Restore the attributes and the small buffers of a module: dynamic NTK and LongRoPE change them in a forward."""
    attributes, buffers = dict(vars(module)), dict(module._buffers)
    numbers = {name: tensor.clone() for name, tensor in tensors_of(module).items() if tensor.numel() <= _ROWS_TO_KEEP}
    try:
        yield
    finally:
        vars(module).clear()
        vars(module).update(attributes)
        module._buffers.clear()
        module._buffers.update(buffers)
        with torch.no_grad():
            for name, tensor in tensors_of(module).items():
                if name in numbers and not torch.equal(tensor, numbers[name]):
                    tensor.copy_(numbers[name])
