"""In which form a model's rotary module hands out cos and sin, learned from a fresh module of its class."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import inverse_frequencies
from ropewalk.rope.tables import text_positions
from ropewalk.rotation.embedding import RotaryEmbedding

Arrangement = Literal["doubled", "repeated", "once", "complex", "sines first"]
"""Of the pairs' numbers: all of them twice, each of them twice, each once, as complex numbers, or in one tensor."""

_NEAR = (0, 1, 2, 3, 5, 8, 13, 21)
_FAR = (0, 1, 77, 1000, 4095, 12_345, 20_011, 30_011)
_FLOOR, _SLOPE = 4e-6, 8e-6  # of a float32 table: of itself, and for each radian of its angle


@dataclass(frozen=True)
class Format:
    """The form of a rotary module's tables `[batch, seq, width]`.

    - `arrangement`: of the pairs' numbers along the width. `follows_input`: the tables have the dtype of the hidden
      states; False: float32. `negated`: the tables turn forwards, and the class's function turns back by them.
    """

    arrangement: Arrangement
    follows_input: bool
    negated: bool = False

    def arranged(self, cos: Tensor, sin: Tensor, factor: float, dtype: torch.dtype) -> tuple[Tensor, Tensor] | Tensor:
        """Tables `[batch, seq, pairs]` times the attention factor, in this form; one rounding, to `dtype`."""
        if self.negated:
            sin = -sin
        if factor != 1.0:
            cos, sin = cos * factor, sin * factor
        if self.arrangement == "complex":
            return torch.complex(cos, sin)
        if self.follows_input:
            cos, sin = cos.to(dtype), sin.to(dtype)
        if self.arrangement == "once":
            return cos, sin
        if self.arrangement == "sines first":
            return torch.cat((sin, cos), dim=-1)
        if self.arrangement == "doubled":
            return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
        return cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)


def layer_types_of(module: nn.Module) -> tuple[str | None, ...]:
    """The layer types that a rotary module keeps tables for; (None,) where it has one for all.

    Raises `RopeError` for a forward that is not `(x, position_ids)` or `(x, position_ids, layer_type)`.
    """
    names = list(inspect.signature(type(module).forward).parameters)[1:]
    if names[:2] != ["x", "position_ids"] or not set(names[2:]) <= {"layer_type"}:
        raise RopeError(
            f"attach: {type(module).__name__} takes other arguments than hidden states and position ids.",
            facts={"arguments": ", ".join(names)},
            cure="Use the model without attaching it.",
        )
    held = [name.removesuffix("_inv_freq") for name, _ in module.named_buffers(recurse=False)]
    labels = [name for name in held if name not in ("inv_freq", "original") and not name.endswith("_original")]
    return tuple(labels) or (None,)


def positions_by_axis(position_ids: Tensor, axes: int) -> Tensor:
    """Position ids as a model passes them, `[batch, seq]` or `[axes, batch, seq]`, with the axes last."""
    if axes == 1:
        return position_ids
    if position_ids.ndim < 3:
        return text_positions(position_ids, axes)
    return position_ids.movedim(0, -1).expand(*position_ids.shape[1:], axes)


def learned_format(make: Callable[[], nn.Module], label: str | None, rope: RopeConfig, name: str) -> Format:
    """The form in which a fresh module, which `make` gives, hands out the tables of `rope`.

    Raises `RopeError` where none of the forms that we know gives its numbers: near positions and far ones, on axes
    that differ, are compared to float32's rounding.
    """
    lengths = [length for length in (rope.switch_length, rope.max_position_embeddings) if length and rope.needs_seq_len]
    near_and_far = (_NEAR, _FAR, *((0, 1, length // 2, length + length // 3) for length in lengths))
    negated, found = False, set[Arrangement]()
    for negated in (False, True) if _turns_back(rope) else (False,):
        found = set.intersection(*(_fitting(make(), label, rope, places, negated) for places in near_and_far))
        if found:
            break
    if not found:
        raise _unlike(name, rope, {"class": type(make()).__name__, "layer_type": label})
    low = _called(make(), label, torch.arange(4)[None], rope.num_axes, torch.bfloat16)
    arrangement: Arrangement = min(found)  # one pair alone fits two of them, which are then the same
    return Format(arrangement, low[0].dtype == torch.bfloat16, negated)


def table_format(table: Tensor, rope: RopeConfig, name: str) -> Format:
    """The form of a tensor `[positions, width]` that holds the sines, then the cosines, of every position.

    Raises `RopeError` where its rows are not those of `rope`, near and far, to the rounding of its dtype.
    """
    if table.is_meta:
        raise RopeError(
            f"attach: the tables of {name} are compared, and they are on the meta device.",
            facts={"table": table},
            cure="Attach where the weights are.",
        )
    count = len(table) if table.ndim == 2 else 0
    places = sorted({place for place in (*_NEAR, count // 3, count // 2, count - 1) if 0 <= place < count})
    rows = table.detach()[places].cpu() if places and not rope.needs_seq_len else torch.empty(0, 0)
    if rows.shape[1] == 2 * rope.pairs:
        positions = torch.tensor(places, device="cpu")
        cos, sin = RotaryEmbedding(rope).cos_sin(positions, dtype=torch.float64)
        angles = positions.double()[:, None] @ inverse_frequencies(rope).inv_freq.abs()
        rounding = torch.finfo(table.dtype).eps if table.dtype in (torch.bfloat16, torch.float16) else 0.0
        if _agree(tuple(rows.chunk(2, dim=-1)), (sin, cos), angles, rounding):
            return Format("sines first", follows_input=True)
    raise _unlike(name, rope, {"table": table})


def _unlike(name: str, rope: RopeConfig, facts: dict[str, Any]) -> RopeError:
    return RopeError(
        f"attach: the tables of {name} are not those that the config describes.",
        facts={**facts, "rope": rope},
        cure="Use the model without attaching it.",
    )


def _turns_back(rope: RopeConfig) -> bool:
    """Whether every pair turns by minus the angle, or stands still."""
    return rope.inv_freq is not None and max(rope.inv_freq) <= 0


def _called(
    module: nn.Module, label: str | None, position_ids: Tensor, axes: int, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    x = torch.zeros(1, 1, dtype=dtype, device="cpu")
    ids = position_ids if axes == 1 or position_ids.ndim == 3 else position_ids.expand(axes, -1, -1)
    options: dict[str, Any] = {} if label is None else {"layer_type": label}
    out = module(x, position_ids=ids, **options)
    if isinstance(out, Tensor) and out.is_complex():
        return out.real, out.imag, out
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def _fitting(
    module: nn.Module, label: str | None, rope: RopeConfig, places: tuple[int, ...], negated: bool
) -> set[Arrangement]:
    ids = torch.tensor([places], device="cpu")
    if rope.num_axes > 1:  # axes that differ, else which pair follows which is not seen
        ids = torch.stack([ids.roll(axis, dims=1) for axis in range(rope.num_axes)])
    out = _called(module, label, ids, rope.num_axes, torch.float32)
    rotary = RotaryEmbedding(rope)
    seq_len = max(places) + 1 if rope.needs_seq_len else None
    by_axis = positions_by_axis(ids, rope.num_axes)
    cos, sin = rotary.cos_sin(by_axis, seq_len, dtype=torch.float64)
    factor = rotary.attention_factor_at(seq_len)
    reals = by_axis.double() if rope.num_axes > 1 else by_axis.double()[..., None]
    angles = reals @ inverse_frequencies(rope, seq_len).inv_freq.abs()
    if len(out) == 3:
        return {"complex"} if _agree(out[:2], (cos * factor, sin * factor), angles) else set()
    forms: tuple[Arrangement, ...] = ("doubled", "repeated", "once")
    fits = set()
    for form in forms:
        form_of = Format(form, False, negated)
        tables = form_of.arranged(cos, sin, factor, torch.float64)
        if _agree(out, tuple(tables), form_of.arranged(angles, angles, 1.0, torch.float64)[0]):
            fits.add(form)
    return fits


def _agree(theirs: tuple[Tensor, ...], ours: tuple[Tensor, ...], angles: Tensor, rounding: float = 0.0) -> bool:
    """Whether two tables and two tables differ by no more than float32's rounding of the angles, and `rounding`."""
    if len(theirs) != 2 or any(a.shape != b.shape for a, b in zip(theirs, ours, strict=True)):
        return False
    allowed = _FLOOR + rounding + _SLOPE * angles
    return all(bool(((a.double() - b).abs() <= allowed).all()) for a, b in zip(theirs, ours, strict=True))
