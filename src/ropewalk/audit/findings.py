"""The rope blocks of a Hugging Face config, their layers, and findings about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partialmethod
from typing import Any, Literal

from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.rope.config import RopeConfig, ropes_of_layer_types
from ropewalk.rope.extensions import Positions
from ropewalk.rope.hugging_face import text_part
from ropewalk.rope.rope_parameters import window_of_layer_type
from ropewalk.rope.values import is_number


@dataclass(frozen=True)
class Layers:
    """The layers of one rope.

    - `window`: the window of each layer in tokens; None for all tokens.
    - `other_signal`: the other information about positions, in words; None if there is none.
    """

    window: int | None = None
    other_signal: str | None = None


def layers_of_config(config: Mapping[str, Any], layer_type: str | None) -> Layers:
    """Return the layers of a layer type in a Hugging Face config's text part; None for all layers."""
    name = family_name(str(config.get("model_type", "")))
    family = FAMILIES.get(name or "")
    if family is None:
        return Layers()
    signal = None
    if family.mla:
        signal = "only a slice of each head rotates"
    elif _has_layers_without_rotation(config, name or ""):
        signal = "some layers do not rotate"
    return Layers(window_of_layer_type(config, layer_type), signal)


def layers_of_positions(positions: Positions, rope: RopeConfig) -> Layers:
    """Return the layers of a model with this rope."""
    windows = [window for own, window in zip(positions.ropes, positions.sliding_windows, strict=True) if own == rope]
    known = [window for window in windows if window is not None]
    return Layers(
        max(known) if known and len(known) == len(windows) else None,
        "some layers do not rotate" if None in positions.ropes else None,
    )


def _has_layers_without_rotation(config: Mapping[str, Any], name: str) -> bool:
    """Return whether layers of this model have no rotation."""
    flags = config.get("no_rope_layers")
    if isinstance(flags, list | tuple) and flags:
        return 0 in flags
    if name == "smollm3":  # its class leaves out every fourth layer's by default
        return True
    try:
        return None in ropes_of_layer_types(config).values()
    except RopeError:
        return False


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

    - `written`: the block's own keys. `config`: the whole text config. `nested`: whether it is one of several blocks,
      keyed by layer type.
    - `rope`: None if RopeConfig does not support the config. `layers`: those with this rope. `target`: tokens.
    """

    config: Mapping[str, Any]
    written: Mapping[str, Any]
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


Trap = Callable[[Block], Finding | None]


def blocks(config: Mapping[str, Any]) -> Iterator[Block]:
    """Yield the rope blocks of a config: `rope_parameters` or `rope_scaling`, flat or one for each layer type."""
    text = text_part(config)
    written = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(written, Mapping):
        written = {}
    nested = {key: value for key, value in written.items() if isinstance(value, Mapping)}
    if not nested:
        yield Block(config=text, written=written)
    for layer_type, inner in nested.items():
        yield Block(config=text, written=inner, layer_type=layer_type, nested=True)
