"""What stands in for the forward of a live model's rotary modules: our tables in the module's own form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attachment.formats import Format, positions_by_axis
from ropewalk.attachment.live_layout import CallLayouts
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rotation.embedding import RotaryEmbedding


@dataclass
class SeqLen:
    """The length in tokens for frequencies that depend on it; None: the largest position of each call, plus one."""

    fixed: int | None = None

    def of(self, rope: RopeConfig, position_ids: Tensor) -> int | Tensor | None:
        """The length for these positions; None for a rope that needs none. Under a compiler it may be a tensor."""
        if not rope.needs_seq_len:
            return None
        if self.fixed is not None:
            return self.fixed
        longest = position_ids.max() + 1
        return longest if torch.compiler.is_compiling() else int(longest)


@dataclass(frozen=True)
class LayerTables:
    """The tables of one layer type: its rope (None: no rotation, cos 1 and sin 0 for `pairs` pairs), and their form."""

    rope: RopeConfig | None
    form: Format
    axes: int
    pairs: int

    def with_rope(self, rope: RopeConfig | None) -> LayerTables:
        """The same form with another rope, or none."""
        return replace(self, rope=rope)

    def __call__(self, x: Tensor, position_ids: Tensor, seq_len: SeqLen) -> tuple[Tensor, Tensor] | Tensor:
        """cos and sin of these positions, as the model's own module would give them."""
        positions = positions_by_axis(position_ids, self.axes)
        if self.rope is None:
            shape = positions.shape if self.axes == 1 else positions.shape[:-1]
            cos = torch.ones(*shape, self.pairs, device=x.device)
            return self.form.arranged(cos, torch.zeros_like(cos), 1.0, x.dtype)
        rotary = RotaryEmbedding(self.rope)
        length = seq_len.of(self.rope, position_ids)
        cos, sin = rotary.cos_sin(positions, length)
        factor = rotary.attention_factor_at(length)
        return self.form.arranged(cos.to(x.device), sin.to(x.device), factor, x.dtype)


class TablesForward:
    """The forward of one rotary module, by layer type; it holds no reference to the module, and no tensor.

    The model calls it once when a forward begins: `layouts` forget the call before.
    """

    def __init__(
        self, tables: Mapping[str | None, LayerTables], seq_len: SeqLen, layouts: CallLayouts, text_only: bool
    ) -> None:
        self.tables, self.seq_len, self.layouts, self.text_only = dict(tables), seq_len, layouts, text_only

    @torch.no_grad()
    def __call__(
        self, x: Tensor, position_ids: Tensor, layer_type: str | None = None
    ) -> tuple[Tensor, Tensor] | Tensor:
        if not torch.compiler.is_compiling():
            self.layouts.forget()
            if self.text_only and position_ids.ndim == 3 and bool((position_ids != position_ids[:1]).any()):
                raise RopeError(
                    "attach: under this method positions must be those of plain text, alike on every axis.",
                    facts={"position_ids": position_ids},
                    cure="For images and videos choose a method of frequencies that gives all layers one rope.",
                )
        if layer_type not in self.tables:  # a class that has one table for all, and is told the layer type
            layer_type = None
        return self.tables[layer_type](x, position_ids, self.seq_len)


class OwnTables:
    """A hook before one attention layer whose rope is not that of the layers with which it shares a rotary module."""

    def __init__(self, tables: LayerTables, seq_len: SeqLen) -> None:
        self.tables, self.seq_len = tables, seq_len

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        position_ids = kwargs.get("position_ids")
        if "position_embeddings" not in kwargs or position_ids is None:
            raise RopeError(
                "attach: this model does not hand position ids to its attention layers, so they share one rope.",
                facts={"layer": type(module).__name__, "arguments": ", ".join(kwargs)},
                cure="Choose a method that gives all layers one rope.",
            )
        x = kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]
        with torch.no_grad():
            tables = self.tables(x, position_ids, self.seq_len)
        return args, {**kwargs, "position_embeddings": tables}
