"""The rope blocks of a Hugging Face config, what its layers see of a distance, and findings about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ropewalk.errors import RopeError
from ropewalk.families import DECODERS, FAMILIES, family_name
from ropewalk.models.config import Positions
from ropewalk.rope.config import RopeConfig, ropes_of_layer_types
from ropewalk.rope.layer_types import window_of_layer_type


@dataclass(frozen=True)
class Layers:
    """The layers that have one rope.

    - `window`: tokens that each of them sees at most; None: all.
    - `beside`: why the rotation is not all that tells these tokens apart, in words; None: it is.
    """

    window: int | None = None
    beside: str | None = None


def layers_of_config(config: Mapping[str, Any], layer_type: str | None) -> Layers:
    """Those of a layer type of a Hugging Face config (its text part); None is the one rope of all layers."""
    name = family_name(str(config.get("model_type", "")))
    family = FAMILIES.get(name or "")
    if family is None:
        return Layers()
    window = window_of_layer_type(config, layer_type)
    beside = None
    if family.mla:
        beside = "only a slice of each head turns"
    elif _has_still_layers(config, name or ""):
        beside = "some layers do not rotate"
    return Layers(window, beside)


def layers_of_positions(positions: Positions, rope: RopeConfig) -> Layers:
    """Those of a model that is there."""
    windows = [window for own, window in zip(positions.ropes, positions.sliding_windows, strict=True) if own == rope]
    known = [window for window in windows if window is not None]
    return Layers(
        max(known) if known and len(known) == len(windows) else None,
        "some layers do not rotate" if None in positions.ropes else None,
    )


def _has_still_layers(config: Mapping[str, Any], name: str) -> bool:
    """Whether layers of this model have no rotation."""
    flags = config.get("no_rope_layers")
    if isinstance(flags, list | tuple) and flags:
        return 0 in flags
    if name in DECODERS and "no_rope_layers" in DECODERS[name].defaults:
        return True
    try:
        return None in ropes_of_layer_types(config).values()
    except RopeError:
        return False


Severity = Literal["error", "warning", "note"]
SEVERITIES = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One trap that a config falls into: what is the matter, and what to do."""

    code: str
    severity: Severity
    message: str
    cure: str
    layer_type: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One rope of a config as it is written: its keys, the text config around it, and its RopeConfig.

    `nested` says that the block is one of several, keyed by layer type; `written` holds the block's own keys,
    `config` the whole text config; `rope` is None where RopeConfig refused the config; `layers`: what the layers of
    this rope see.
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
        """The rule's name under either spelling; "default" when none is written."""
        return str(self.written.get("rope_type", self.written.get("type", "default")))

    @property
    def model_type(self) -> str:
        """The config's model_type, or an empty string."""
        return str(self.config.get("model_type", ""))

    @property
    def is_trained(self) -> bool:
        """Whether the scaling of this block is known to belong to the model."""
        return self.rope is not None and self.rope.scaling_is_trained is True

    @property
    def theta_is_written(self) -> bool:
        """Whether a theta stands anywhere, in any spelling; elsewhere the class's default is taken."""
        names = ("rope_theta", "rotary_emb_base", "global_rope_theta", "rope_local_base_freq", "default_theta")
        return any(name in self.written or name in self.config for name in names)

    def number(self, key: str) -> float | None:
        """A number from the block, or else from the config around it; None where it is absent or null."""
        for source in (self.written, self.config):
            value = source.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        return None

    def finding(self, code: str, severity: Severity, message: str, cure: str) -> Finding:
        """A finding about this block."""
        return Finding(code=code, severity=severity, message=message, cure=cure, layer_type=self.layer_type)


Trap = Callable[[Block], Finding | None]


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def blocks(config: Mapping[str, Any]) -> Iterator[Block]:
    """Each rope block of a config: `rope_parameters` or `rope_scaling`, flat or one for each layer type."""
    text = text_config(config)
    written = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if not isinstance(written, Mapping):
        written = {}
    nested = {key: value for key, value in written.items() if isinstance(value, Mapping)}
    if not nested:
        yield Block(config=text, written=written)
    for layer_type, inner in nested.items():
        yield Block(config=text, written=inner, layer_type=layer_type, nested=True)
