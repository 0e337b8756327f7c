"""The rope, the extension and the window of each layer of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeVar

from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension

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
"""The value that leaves a setting unchanged; None removes the setting."""


@dataclass(frozen=True)
class Positions:
    """The rope, extension and sliding window (tokens), or None, of each layer.

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
        """Return the number of layers."""
        return len(self.ropes)

    @property
    def present_ropes(self) -> tuple[RopeConfig, ...]:
        """Return the ropes of all layers with a rope."""
        return tuple(rope for rope in self.ropes if rope is not None)

    @property
    def remaps(self) -> bool:
        """Return whether any layer's extension needs unrotated keys."""
        return any(extension is not None and extension.remaps for extension in self.extensions)

    @property
    def needs_seq_len(self) -> bool:
        """Return whether any layer's frequencies depend on the sequence's length."""
        return any(rope.needs_seq_len for rope in self.present_ropes)

    def with_rope(self, rope: RopeSetting) -> Positions:
        """Return positions with this rope in every layer with a rope, None for no rope, or one entry per layer."""
        if isinstance(rope, RopeConfig):
            return replace(self, ropes=tuple(None if old is None else rope for old in self.ropes))
        return replace(self, ropes=entries("with_positions", "rope", rope, RopeConfig, self.num_layers))

    def with_extension(self, extension: ExtensionSetting) -> Positions:
        """Return positions with this extension in every supported layer, None for no extension, or one entry per layer.

        Layers without a rope or with a sliding window do not support extensions that remap. **Raises:** `RopeError` if
        no layer supports it.
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
    """Return `value`, or the entries of a tuple, as one entry for each of `count` layers.

    **Raises:** `RopeError` for entries that are not a `kind`, and for a different count. `where` is the caller.
    """
    of_layers: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) else (value,) * count
    if len(of_layers) != count:
        raise RopeError(
            f"{where}: a tuple `{name}` needs one entry per layer.",
            facts={f"len({name})": len(of_layers), "num_hidden_layers": count},
            cure="Pass None for the layers without one.",
        )
    if not all(entry is None or isinstance(entry, kind) for entry in of_layers):
        raise RopeError(
            f"{where}: `{name}` must be a {kind.__name__}, None, or a tuple of these.",
            facts={name: value},
            cure="Pass one for all layers, or a tuple with one entry per layer.",
        )
    return of_layers
