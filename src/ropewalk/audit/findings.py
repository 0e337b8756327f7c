"""The rope blocks of a Hugging Face config, their layers, and findings about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partialmethod
from types import SimpleNamespace
from typing import Any, Literal

from ropewalk.attachment.layers import attends, flags_of, layer_types_of_config
from ropewalk.checkpoints.checkpoint import Checkpoint, family_of
from ropewalk.families import Family, family_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.hugging_face import NESTED, describe, text_part
from ropewalk.rope.rope_parameters import blocks_of_layers, window_of_layer_type
from ropewalk.rope.values import as_whole, is_number


@dataclass(frozen=True)
class Layers:
    """The layers of one rope.

    - `window`: the window of each layer in tokens; None for all tokens.
    - `other_signal`: the other information about positions, in words; None if there is none.
    - `numbers`: of the layers, from 0; () if the config does not state the type of each. `count`: all layers.
    """

    window: int | None = None
    other_signal: str | None = None
    numbers: tuple[int, ...] = ()
    count: int = 0


Layer = tuple[str | None, RopeConfig | None, int | None]
"""A layer's type, its rope (None: no rotation), and its window in tokens."""


def each_layer(model: Checkpoint) -> list[Layer]:
    """Return each layer of a model, in their order; [] if its config does not state the type of each."""
    if model.positions is not None:
        names = {rope: label for label, rope in model.ropes.items()}
        pairs = zip(model.positions.ropes, model.positions.sliding_windows, strict=True)
        return [(names[rope] if rope else None, rope, window) for rope, window in pairs]
    text = text_part(model.config)
    count = as_whole(text.get("num_hidden_layers")) or 0
    config = SimpleNamespace(**{"model_type": None, **text, "num_hidden_layers": count})
    labels, flags = layer_types_of_config(config), flags_of(config, count)
    if flags is None and None in labels:
        return []
    only = next(iter(model.ropes), None)
    layers = enumerate(only if label is None else label for label in labels)
    return [layer_of(model, label) if flags is None or flags[n] else (label, None, None) for n, label in layers]


def layer_of(model: Checkpoint, label: str | None) -> Layer:
    """Return a layer of this type, or with a label of `Checkpoint.ropes`."""
    family = family_of(model.config)
    name = family.block_of.get(label or "", label) if family else label
    rope = model.ropes.get(name, model.ropes.get(None) if attends(label) else None)
    return name, rope, window_of_layer_type(text_part(model.config), label) if rope else None


def layers_of(model: Checkpoint) -> dict[str | None, Layers]:
    """Return the layers of each rope of a checkpoint."""
    layers, text, family = each_layer(model), text_part(model.config), family_of(model.config)
    kinds: list[tuple[str | None, Any]] = [(label, rope) for label, rope, _ in layers]
    if family is not None:
        kinds += blocks_of_layers(describe(text)).items()
    still = any(block is None and attends(label) for label, block in kinds)
    signal = "only a slice of each head rotates" if family and family.mla else None
    signal = signal or ("some layers do not rotate" if still else None)
    found = {}
    for label, own in model.ropes.items():
        numbers = tuple(n for n, (_, rope, _) in enumerate(layers) if rope == own)
        windows = {layers[n][2] for n in numbers} or {layer_of(model, label)[2]}
        window = None if None in windows else max(filter(None, windows))
        found[label] = Layers(window, signal, numbers, len(layers))
    return found


Severity = Literal["error", "warning", "note"]
SEVERITIES = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem of a config or of a live model, and its cure.

    - `code`: a short name of the kind of problem. `severity`: "error", "warning" or "note".
    - `message`: the place, the value found and the expected one. `cure`: one instruction.
    - `layer_type`: the layer type of the block, if layer types have blocks of their own.

    >>> from ropewalk.audit import Finding
    >>> Finding(code="dtype", severity="error", message="inv_freq is in bfloat16", cure="Keep it in float32.").severity
    'error'
    """

    code: str
    severity: Severity
    message: str
    cure: str
    layer_type: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One rope block of a config.

    - `written`: the block's own keys. `config`: the whole text config; `outer`: the config that contains it, or {}.
      `nested`: whether it is one of several blocks, keyed by layer type.
    - `rope`: None if RopeConfig does not support the config. `layers`: those with this rope. `target`: tokens.
    """

    config: Mapping[str, Any]
    written: Mapping[str, Any]
    outer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layer_type: str | None = None
    nested: bool = False
    rope: RopeConfig | None = None
    layers: Layers = dataclasses.field(default_factory=Layers)
    target: int = 32_768

    @property
    def rope_type(self) -> str:
        """Return the rule's name in either spelling, or "default"."""
        return str(self.written.get("rope_type", self.written.get("type", "default")))

    @property
    def model_type(self) -> str:
        """Return the config's model_type, or an empty string."""
        return str(self.config.get("model_type", ""))

    @property
    def family(self) -> Family | None:
        """Return the family of the config; None if it is unknown."""
        return family_named(self.model_type)

    @property
    def is_trained(self) -> bool:
        """Return whether the model is known to have been trained with the scaling of this block."""
        return self.rope is not None and self.rope.scaling_is_trained is True

    @property
    def theta_is_written(self) -> bool:
        """Return whether the config contains a theta in any spelling; otherwise the class's default applies."""
        names = ("rope_theta", "rotary_emb_base", "global_rope_theta", "rope_local_base_freq", "default_theta")
        return any(source.get(name) is not None for name in names for source in (self.written, self.config))

    def number(self, key: str) -> float | None:
        """Return a number from the block, else from the config, else None."""
        for source in (self.written, self.config):
            value: Any = source.get(key)
            if is_number(value):
                return float(value)
        return None

    def finding(self, severity: Severity, code: str, message: str, cure: str) -> Finding:
        """Return a finding about this block."""
        return Finding(code=code, severity=severity, message=message, cure=cure, layer_type=self.layer_type)

    error = partialmethod(finding, "error")
    warning = partialmethod(finding, "warning")
    note = partialmethod(finding, "note")


def blocks(config: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the rope blocks of a config: `rope_parameters` or `rope_scaling`, flat or one for each layer type."""
    text = text_part(config)
    outer = config if any(isinstance(config.get(key), Mapping) for key in NESTED) else {}
    written = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(written, Mapping):
        written = {}
    nested = {key: value for key, value in written.items() if isinstance(value, Mapping)}
    if not nested:
        yield Block(config=text, written=written, outer=outer)
    for layer_type, inner in nested.items():
        yield Block(config=text, written=inner, outer=outer, layer_type=layer_type, nested=True)
