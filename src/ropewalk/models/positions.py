"""What each layer of a decoder knows of positions: its rope, its extension, its sliding window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeVar

from ropewalk.attention.extensions import Extension
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig

RopeSetting = RopeConfig | tuple[RopeConfig | None, ...] | None
"""One rope for all layers, None for none, or a tuple with one entry (or None) per layer."""
ExtensionSetting = Extension | tuple[Extension | None, ...] | None
"""The same for extensions."""


EntryT = TypeVar("EntryT")


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged.UNCHANGED
"""Leave this setting as it is; None would take it away."""


@dataclass(frozen=True)
class Positions:
    """Each layer's rope, extension and sliding window (tokens), or None; one entry per layer.

    >>> rope = RopeConfig(head_dim=8, interleaved=False)
    >>> Positions((rope, None), (None, None), (None, 4)).num_layers
    2
    """

    ropes: tuple[RopeConfig | None, ...]
    extensions: tuple[Extension | None, ...]
    sliding_windows: tuple[int | None, ...]

    def __post_init__(self) -> None:
        for name, kind in (("ropes", RopeConfig), ("extensions", Extension), ("sliding_windows", int)):
            entries("Positions", name, getattr(self, name), kind, len(self.ropes))

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.ropes)

    @property
    def present_ropes(self) -> tuple[RopeConfig, ...]:
        """The ropes of the layers that have one."""
        return tuple(rope for rope in self.ropes if rope is not None)

    @property
    def remaps(self) -> bool:
        """Whether any layer's extension reads unrotated keys."""
        return any(extension is not None and extension.remaps for extension in self.extensions)

    @property
    def needs_seq_len(self) -> bool:
        """Whether any layer's frequencies depend on the sequence's length."""
        return any(rope.needs_seq_len for rope in self.present_ropes)

    def with_rope(self, rope: RopeSetting) -> Positions:
        """One rope for every layer that has one, None for none, or one entry per layer."""
        if isinstance(rope, RopeConfig):
            return replace(self, ropes=tuple(None if old is None else rope for old in self.ropes))
        return replace(self, ropes=entries("with_positions", "rope", rope, RopeConfig, self.num_layers))

    def with_extension(self, extension: ExtensionSetting) -> Positions:
        """One extension for every layer that can take it, None for none, or one entry per layer.

        A layer without a rope or with a sliding window takes none that remaps. Raises `RopeError` where no layer can.
        """
        if isinstance(extension, Extension):
            layers = zip(self.ropes, self.sliding_windows, strict=True)
            able = [not extension.remaps or (rope is not None and window is None) for rope, window in layers]
            if not any(able):
                raise RopeError(
                    "with_positions: no layer of this model has a rope over all earlier tokens.",
                    facts={"extension": extension},
                    cure="Choose a model with RoPE.",
                )
            return replace(self, extensions=tuple(extension if takes else None for takes in able))
        return replace(self, extensions=entries("with_positions", "extension", extension, Extension, self.num_layers))


def entries(where: str, name: str, value: object, kind: type[EntryT], count: int) -> tuple[EntryT | None, ...]:
    """`value` as one entry for each of `count` layers: itself for all, or a tuple's own entries.

    Raises `RopeError`, in which `where` names the caller, for entries that are no `kind`, and for another count.
    """
    several = isinstance(value, list | tuple)
    of_layers: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else (value,) * count
    if several and len(of_layers) != count:
        raise RopeError(
            f"{where}: a tuple `{name}` needs one entry per layer.",
            facts={f"len({name})": len(of_layers), "num_hidden_layers": count},
            cure="Give None for the layers without.",
        )
    if not all(entry is None or isinstance(entry, kind) for entry in of_layers):
        raise RopeError(
            f"{where}: `{name}` must be a {kind.__name__}, None, or a tuple of these.",
            facts={name: value},
            cure="Give one for all layers, or a tuple with one entry per layer.",
        )
    return of_layers
