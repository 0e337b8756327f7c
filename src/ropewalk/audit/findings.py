"""The rope blocks of a Hugging Face config, and findings about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partialmethod
from typing import Any, Literal

from ropewalk.families import Family, family_named
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.hugging_face import NESTED, text_part
from ropewalk.rope.values import is_number

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
    - `rope`: None if RopeConfig does not support the config. `window`: of its layers in tokens, None for all tokens.
    """

    config: Mapping[str, Any]
    written: Mapping[str, Any]
    outer: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    layer_type: str | None = None
    nested: bool = False
    rope: RopeConfig | None = None
    window: int | None = None

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
