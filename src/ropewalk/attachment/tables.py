"""A model's tables of cos and sin: their form, and our tables in the same form."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ropewalk.attachment.probe import NEAR, Order, called_rows, takes_positions
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.tables import text_positions
from ropewalk.rotation.embedding import RotaryEmbedding

MadeT = TypeVar("MadeT")

_FAR = (0, 1, 77, 1000, 4095, 12_345, 20_011, 30_011)


@dataclass(frozen=True)
class Format:
    """The form of a rotary module's tables `[batch, seq, width]`.

    - `order`: of the pairs' numbers along the width, not "blocks".
    - `follows_input`: whether the tables have the dtype of the hidden states; else they are float32.
    - `negated`: the tables have the positive angle, and the class's function rotates by minus the angle.
    """

    order: Order
    follows_input: bool
    negated: bool = False

    def arranged(self, cos: Tensor, sin: Tensor, factor: float, dtype: torch.dtype) -> tuple[Tensor, Tensor] | Tensor:
        """Return tables `[batch, seq, pairs]` times the attention factor in this form, rounded once to `dtype`."""
        if self.negated:
            sin = -sin
        if factor != 1.0:
            cos, sin = cos * factor, sin * factor
        if self.order == "complex":
            return torch.complex(cos, sin)
        if self.follows_input:
            cos, sin = cos.to(dtype), sin.to(dtype)
        if self.order == "once":
            return cos, sin
        if self.order == "doubled":
            return torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1)
        return cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)


def layer_types_of(module: nn.Module) -> tuple[str | None, ...]:
    """Return the layer types for which a rotary module has tables; (None,) if all share one.

    **Raises:** `RopeError` for a forward that is not `(x, position_ids)` or `(x, position_ids, layer_type)`.
    """
    if not takes_positions(module):
        raise RopeError(
            f"attach: {type(module).__name__} has arguments other than hidden states and position ids.",
            facts={"module": type(module)},
            cure="Use the model without attaching it.",
        )
    names = [name for name, _ in module.named_buffers(recurse=False) if name.endswith("inv_freq")]
    buffers = [name.removesuffix("_inv_freq") for name in names]
    labels = [name for name in buffers if name not in ("inv_freq", "original") and not name.endswith("_original")]
    return tuple(labels) or (None,)


def positions_by_axis(position_ids: Tensor, axes: int) -> Tensor:
    """Return position ids `[batch, seq]` or `[axes, batch, seq]` with the axes last."""
    if axes == 1:
        return position_ids
    if position_ids.ndim < 3:
        return text_positions(position_ids, axes)
    return position_ids.movedim(0, -1).expand(*position_ids.shape[1:], axes)


def learned_format(module: nn.Module, label: str | None, rope: RopeConfig, name: str) -> Format:
    """Return the form of the tables of `rope` from a new module.

    Near and far positions, on axes that differ, are compared to float32's rounding.

    **Raises:** `RopeError` if no known form matches its numbers.
    """
    lengths = [length for length in (rope.switch_length, rope.max_position_embeddings) if length and rope.needs_seq_len]
    forms, right = set[tuple[Order, bool]](), True
    for places in (NEAR, _FAR, *((0, 1, length // 2, length + length // 3) for length in lengths)):
        rows = next(called_rows(module, label, rope, places), None)
        right &= rows is not None and rows.cos.shape[-1] == rope.pairs and not rows.arrangement.sines_first
        if rows is not None and right:
            length = rows.seq_len or 1
            differences, allowed, negated = rows.differences(rope, length, rope.attention_factor_at(length))
            right = bool((differences <= allowed).all()) and rows.arrangement.order != "blocks"
            forms.add((rows.arrangement.order, negated))
    if not right or len(forms) > 1:
        raise RopeError(
            f"attach: the tables of {name} differ from those of the config.",
            facts={"class": type(module).__name__, "layer_type": label, "rope": rope},
            cure="Use the model without attaching it.",
        )
    ((order, negated),) = forms
    low = next(called_rows(module, label, rope, NEAR, torch.bfloat16))
    return Format(order, low.dtype == torch.bfloat16, negated)


@dataclass(frozen=True)
class LayerTables:
    """The tables of one layer type: rope (None: no rotation, cos 1 and sin 0 for `pairs` pairs), form and axes."""

    rope: RopeConfig | None
    form: Format
    axes: int
    pairs: int

    def __call__(
        self, x: Tensor, position_ids: Tensor, seq_len: int | None, nudge: float = 0.0
    ) -> tuple[Tensor, Tensor] | Tensor:
        """Return cos and sin of these positions in the form of the model's module.

        `seq_len` as in `Calls`: to read the largest position breaks a compiler's graph. `nudge`: as in `TablesForward`.
        """
        positions = positions_by_axis(position_ids, self.axes)
        if self.rope is None:
            shape = positions.shape if self.axes == 1 else positions.shape[:-1]
            cos = torch.ones(*shape, self.pairs, device=x.device)
            return self.form.arranged(cos, torch.zeros_like(cos), 1.0, x.dtype)
        rotary = RotaryEmbedding(self.rope)
        length = seq_len if self.rope.needs_seq_len else None
        if length is None and self.rope.needs_seq_len:
            length = int(position_ids.max()) + 1
        cos, sin = rotary.cos_sin(positions, length)
        factor = rotary.attention_factor_at(length)
        if nudge:
            random = torch.Generator().manual_seed(0)  # torch's own random state does not change
            draws = [torch.randint(0, 2, table.shape, generator=random, device="cpu") for table in (cos, sin)]
            cos, sin = (
                x * (1 + nudge * (draw * 2 - 1).to(x.device)) for x, draw in zip((cos, sin), draws, strict=True)
            )
        return self.form.arranged(cos.to(x.device), sin.to(x.device), factor, x.dtype)


class TablesForward:
    """The forward of one rotary module, by layer type, without a reference to the module or to a tensor.

    - `tables`, `text_only`: set for each `ModelRopes` of the model.
    - `own`: the module's own forward; set by `detach` if a wrapper still calls this one.
    - `nudge`: a fraction to change every number by, up or down at random, to measure the model's rounding noise.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.tables: Mapping[str | None, LayerTables] = {}
        self.text_only, self.nudge = False, 0.0
        self.own: Callable[..., Any] | None = None

    @torch.no_grad()
    def __call__(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor] | Tensor:
        if self.own is not None:
            out: tuple[Tensor, Tensor] | Tensor
            out = self.own(x, position_ids) if layer_type is None else self.own(x, position_ids, layer_type)
            return out
        if not torch.compiler.is_compiling():
            self.calls.forget()
            if self.text_only and position_ids.ndim == 3 and bool((position_ids != position_ids[:1]).any()):
                raise RopeError(
                    "attach: this method needs positions of plain text, equal on every axis.",
                    facts={"position_ids": position_ids},
                    cure="For images and videos choose a method that scales the frequencies of all layers alike.",
                )
        if layer_type not in self.tables:  # the class gets the layer type, but has one table for all
            layer_type = None
        return self.tables[layer_type](x, position_ids, self.calls.seq_len, self.nudge)


class PerCall:
    """One value shared by the layers of a call, for a tensor (a mask, positions) and a key; thread-safe."""

    def __init__(self) -> None:
        self._held: tuple[Hashable, weakref.ref[Tensor] | None, Any] | None = None

    def forget(self) -> None:
        """Forget the last call, because a new forward begins."""
        self._held = None

    def __deepcopy__(self, memo: dict[int, Any]) -> PerCall:
        return PerCall()

    def of(self, key: Hashable, given: Tensor | None, make: Callable[[], MadeT]) -> MadeT:
        """Return the value if it belongs to this tensor and this key; else make it."""
        version = None if given is None or given.is_inference() else given._version
        key, held = (key, version), self._held
        if held is not None and held[0] == key and (None if held[1] is None else held[1]()) is given:
            value: MadeT = held[2]
            return value
        made = make()
        self._held = key, None if given is None else weakref.ref(given), made  # one write
        return made


class Calls:
    """What the modules of an attached model share: a length, and values of the current call.

    - `seq_len`: tokens, for frequencies that depend on the length; None: the largest position of each call, plus one.
    - `tables`: cos and sin of layers with the same tables.
    """

    def __init__(self) -> None:
        self.seq_len: int | None = None
        self.tables: dict[LayerTables, PerCall] = {}

    def forget(self) -> None:
        """Forget the last call, because a new forward begins."""
        for value in self.tables.values():
            value.forget()


class OwnTables:
    """A hook before one attention layer with a different rope than other layers of its rotary module."""

    def __init__(self, tables: LayerTables, calls: Calls) -> None:
        self.tables, self.calls, self.shared = tables, calls, calls.tables.setdefault(tables, PerCall())

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        position_ids = kwargs.get("position_ids")
        if "position_embeddings" not in kwargs or position_ids is None:
            raise RopeError(
                "attach: this model does not pass position ids to its attention layers, so they must share one rope.",
                facts={"layer": type(module).__name__, "arguments": ", ".join(kwargs)},
                cure="Choose a method with one rope for all layers.",
            )
        x, seq_len = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0], self.calls.seq_len
        with torch.no_grad():
            if torch.compiler.is_compiling():
                tables = self.tables(x, position_ids, seq_len)
            else:
                key = seq_len, x.dtype, x.device, torch.is_inference_mode_enabled()
                tables = self.shared.of(key, position_ids, lambda: self.tables(x, position_ids, seq_len))
        return args, {**kwargs, "position_embeddings": tables}
