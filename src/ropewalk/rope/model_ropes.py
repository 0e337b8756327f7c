"""Which ropes a model has, layer by layer: from a config, from a GGUF file, or as a live model applies them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.families import Family, family_named
from ropewalk.rope import hugging_face
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.rope.rope_parameters import attends as attends
from ropewalk.rope.values import MOST_TOKENS, checked, whole_or_zero

RopeSetting = RopeConfig | tuple[RopeConfig | None, ...] | None
"""One rope for all layers, None for none, or a tuple with one entry (or None) per layer."""
ExtensionSetting = Extension | tuple[Extension | None, ...] | None
"""The same for extensions."""

EntryT = TypeVar("EntryT")


Ropes = Mapping[str | None, RopeConfig | None]
"""Ropes by layer type, None for layers without rotation; the only key is None if all layers rotate alike."""
_WINDOWED = ("sliding", "chunked", "local")
TYPE_KEYS = ("layer_types", "layers_block_type")  # the second: the older name of hybrid models


class LayerType(NamedTuple):
    """The layers of one type: its name in the config (None: all layers), their rope, their window in tokens."""

    name: str | None
    rope: RopeConfig | None
    window: int | None


@dataclass(frozen=True)
class Layers:
    """The layers of one rope.

    - `window`: the window of each layer in tokens; None for all tokens. `local`: the window of some of the layers, and
      their numbers; () if the config does not state the type of each.
    - `numbers`: of the layers, from 0; () if the config does not state the type of each. `count`: all layers.
    """

    window: int | None = None
    numbers: tuple[int, ...] = ()
    count: int = 0
    local: tuple[int, tuple[int, ...]] | None = None


@checked
@dataclass(frozen=True)
class ModelRopes:
    """The rope, extension and sliding window (tokens), or None, of each layer.

    - `labels`: of each layer: its type in the config, or the name of its block; () for a model without a config.
    - `types`: of the layers in the config, also of those that no layer has; () for a model without a config.
    - `nested`: whether each type has its own block. `numbered`: whether the config states what each layer applies; if
      not, layers of several types have one entry for each type.

    >>> rope = RopeConfig(head_dim=8, interleaved=False)
    >>> ModelRopes((rope, None), (None, None), (None, 4)).num_layers
    2
    """

    ropes: tuple[RopeConfig | None, ...]
    extensions: tuple[Extension | None, ...]
    sliding_windows: tuple[int | None, ...]
    labels: tuple[str | None, ...] = field(default=(), compare=False, repr=False)
    types: tuple[LayerType, ...] = field(default=(), compare=False, repr=False)
    nested: bool = field(default=False, compare=False, repr=False)
    numbered: bool = field(default=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("extensions", "sliding_windows"):
            entries("ModelRopes", name, getattr(self, name), len(self.ropes))

    @classmethod
    def from_hf(
        cls, config: str | PathLike[str] | Mapping[str, Any] | Any, *, alpha: Tensor | Iterable[float] | None = None
    ) -> ModelRopes:
        """Return the ropes of a Hugging Face config; its arguments are those of `RopeConfig.from_hf`.

        **Raises:** `RopeError` as `RopeConfig.from_hf`, except for a missing `layer_type` and for layer types of which
        none rotates.

        >>> gemma = {"model_type": "gemma3_text", "hidden_size": 2560, "num_attention_heads": 8}
        >>> {name: rope.theta for name, rope in ModelRopes.from_hf(gemma).by_type.items()}
        {'sliding_attention': 10000.0, 'full_attention': 1000000.0}
        >>> cohere = {"model_type": "cohere2", "hidden_size": 512, "num_attention_heads": 4}
        >>> ModelRopes.from_hf(cohere).by_type["full_attention"]
        """
        read, nested, fields, family = hugging_face.read_layer_types(config, alpha=alpha)
        ropes = {name: None if values is None else RopeConfig(**values) for name, values in read.items()}
        nested = nested and None not in ropes
        alike = _alike(ropes)
        labels, flags = _labels(fields), _flags(fields, family)
        stated = fields.get("layer_types") or family.layer_types
        names = tuple(ropes if nested or not stated else dict.fromkeys(stated))
        blocks = ropes if nested else alike
        types = tuple(LayerType(name, _of_type(blocks, name), window_of_layer_type(fields, name)) for name in names)
        numbered = flags is not None or None not in labels
        of_layers = list[LayerType]()
        if labels and (numbered or None in alike) and any(alike.values()):
            only, first = next((label, rope) for label, rope in alike.items() if rope is not None)
            for label, rotates in zip(labels, flags or itertools.repeat(True), strict=False):
                label = only if flags and label is None else label
                name = family.block_of.get(label or "", label)
                rope = _of_type(alike, name) if flags is None else first
                rope = rope if rotates and attends(label) else None
                of_layers.append(LayerType(name, rope, window_of_layer_type(fields, label)))
        made = cls((), (), (), types=types, nested=nested)
        return made._of(of_layers or types, bool(of_layers) and numbered)

    @property
    def num_layers(self) -> int:
        """Return the number of layers."""
        return len(self.ropes)

    @property
    def present_ropes(self) -> tuple[RopeConfig, ...]:
        """Return the ropes of all layers with a rope."""
        return tuple(rope for rope in self.ropes if rope is not None)

    @property
    def by_type(self) -> Ropes:
        """Return the rope of each type of layers, None for no rotation; the only key is None if all rotate alike.

        Without a config, each different rope has a number.
        """
        if self.types:
            layers: dict[str | None, RopeConfig | None] = {}
            for label, rope in zip(self.labels, self.ropes, strict=True):
                layers[label] = layers.get(label) or rope
            types = (one for one in self.types if self.nested or attends(one.name))
            return _alike({one.name: layers.get(one.name, one.rope) for one in types})
        different = list(dict.fromkeys(self.present_ropes))
        return {None if len(different) == 1 else f"rope {n}": rope for n, rope in enumerate(different)}

    @property
    def rotating(self) -> dict[str | None, RopeConfig]:
        """Return `by_type` without layers that do not rotate."""
        return {name: rope for name, rope in self.by_type.items() if rope is not None}

    def of_type(self, name: str | None) -> tuple[RopeConfig | None, int | None]:
        """Return the rope and the window of a type of layers, also of another model."""
        rope = _of_type(self.by_type, name)
        window = next((one.window for one in self.types if one.name in (name, None)), None)
        return rope, window if rope else None

    def of_label(self, label: str | None) -> list[RopeConfig]:
        """Return the rope of a type of layers; if no type has this name, every different rope of the model."""
        by_type = self.by_type
        ropes = [by_type[label]] if label in by_type else by_type.values()
        return [rope for rope in dict.fromkeys(ropes) if rope is not None]

    def layers_of(self, name: str | None) -> Layers:
        """Return the layers with the rope of a type (a key of `rotating`)."""
        own = self.rotating[name]
        numbers = tuple(n for n, rope in enumerate(self.ropes) if rope == own) if self.numbered else ()
        windows = {self.sliding_windows[n] for n in numbers}
        windows = windows or {one.window for one in self.types if one.rope == own} or {self.of_type(name)[1]}
        most = max(filter(None, windows), default=None)
        local = tuple(n for n in numbers if self.sliding_windows[n] is not None)
        window, some = (most, None) if None not in windows else (None, (most, local) if most else None)
        return Layers(window, numbers, self.num_layers if self.numbered else 0, some)

    @property
    def remaps(self) -> bool:
        """Return whether any layer's extension needs unrotated keys."""
        return any(extension is not None and extension.remaps for extension in self.extensions)

    @property
    def needs_seq_len(self) -> bool:
        """Return whether any layer's frequencies depend on the sequence's length."""
        return any(rope.needs_seq_len for rope in self.present_ropes)

    def mapped(self, change: Callable[[RopeConfig], RopeConfig]) -> ModelRopes:
        """Return the same layers with each rope changed."""
        return replace(
            self,
            ropes=tuple(rope and change(rope) for rope in self.ropes),
            types=tuple(one._replace(rope=one.rope and change(one.rope)) for one in self.types),
        )

    def of_types(self) -> ModelRopes:
        """Return one entry for each type of layers in place of each layer."""
        return self._of(self.types, False)

    def _of(self, layers: Sequence[LayerType], numbered: bool) -> ModelRopes:
        return replace(
            self,
            ropes=tuple(one.rope for one in layers),
            extensions=(None,) * len(layers),
            sliding_windows=tuple(one.window for one in layers),
            labels=tuple(one.name for one in layers),
            numbered=numbered,
        )

    def with_rope(self, rope: RopeSetting) -> ModelRopes:
        """Return them with this rope in every layer with a rope, None for no rope, or one entry per layer."""
        if isinstance(rope, RopeConfig):
            return replace(self, ropes=tuple(None if old is None else rope for old in self.ropes))
        return replace(self, ropes=entries("with_positions", "rope", rope, self.num_layers))

    def with_extension(self, extension: ExtensionSetting) -> ModelRopes:
        """Return them with this extension in every layer that supports it, None for none, or one entry per layer.

        Layers without a rope or with a sliding window do not support extensions that remap.
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
        return replace(self, extensions=entries("with_positions", "extension", extension, self.num_layers))


def entries(where: str, name: str, value: EntryT | tuple[EntryT, ...], count: int) -> tuple[EntryT, ...]:
    """Return `value`, or the entries of a tuple, as one entry for each of `count` layers; `where` is the caller."""
    of_layers = value if isinstance(value, tuple) else (value,) * count
    if len(of_layers) != count:
        raise RopeError(
            f"{where}: a tuple `{name}` needs one entry per layer.",
            facts={f"len({name})": len(of_layers), "num_hidden_layers": count},
            cure="Pass None for the layers without one.",
        )
    return of_layers


def is_windowed(layer_type: str) -> bool:
    """Return whether layers of this type attend only to a window of the text.

    >>> is_windowed("sliding_attention"), is_windowed("full_attention")
    (True, False)
    """
    return any(word in layer_type for word in _WINDOWED)


def window_of_layer_type(config: Mapping[str, Any], layer_type: str | None) -> int | None:
    """Return the window of a layer of this type, in tokens, or None if it attends to all tokens.

    `config` is a Hugging Face config's text part; pass None as `layer_type` if all layers have one type.

    >>> window_of_layer_type({"model_type": "mistral", "sliding_window": 4096}, None)
    4096
    """
    family = family_named(config.get("model_type", ""))
    if family is None:
        return None
    mixed, own = len(set(config.get("layer_types") or ())) > 1, family.module
    local = own.windowed and not mixed if layer_type is None else is_windowed(layer_type)
    window = config.get(own.window_key, own.sliding_window) if local else None
    return window if 0 < whole_or_zero(window) <= MOST_TOKENS else None


def _flags(fields: Mapping[str, Any], family: Family) -> list[bool] | None:
    """Return whether each layer of a config rotates; None if its class has no such list, or the list is too short."""
    if family.flags is None:
        return None
    count, stated = whole_or_zero(fields.get("num_hidden_layers")), fields.get(family.flags)
    if not stated:
        every = whole_or_zero(fields.get("no_rope_layer_interval")) or 4
        stated = [(layer + 1) % every != 0 for layer in range(count)]
    if not isinstance(stated, list | tuple) or not len(stated) >= count > 0:
        return None
    return [bool(flag) for flag in stated[:count]]


def _labels(fields: Mapping[str, Any]) -> list[str | None]:
    """Return the type of each layer of a config, None if it does not state it."""
    count = whole_or_zero(fields.get("num_hidden_layers"))
    stated = next((fields[key] for key in TYPE_KEYS if fields.get(key)), None)
    ratios = fields.get("compress_ratios")
    if not stated and isinstance(ratios, list | tuple):  # DeepSeek-V4's older spelling
        stated = [("sliding_attention", "compressed_sparse_attention")[bool(ratio)] for ratio in ratios]
    stated = stated if isinstance(stated, list | tuple) else ()
    labels: list[str | None] = [one if isinstance(one, str) else None for one in stated][:count]
    return labels + [None] * (count - len(labels))


def _of_type(ropes: Ropes, name: str | None) -> RopeConfig | None:
    return ropes[name] if name in ropes else ropes.get(None) if attends(name) else None


def _alike(ropes: Ropes) -> Ropes:
    """Return the ropes by type, with the only key None if all rotate alike."""
    rotate = set(ropes.values())
    return {None: next(iter(rotate))} if len(rotate) == 1 and None not in rotate else ropes
