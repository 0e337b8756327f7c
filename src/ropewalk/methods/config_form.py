"""Where a model's config says its ropes: one block for all layers, or one for each layer type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.rope.config import RopeConfig


@dataclass(frozen=True, kw_only=True)
class ConfigForm:
    """Where a config says the rope of each layer.

    - `names`: of each layer's block, None for a layer without; None: one block describes all layers.
    - `ropes`: of each named block, also of one that no layer has.
    - `part`: the key of config.json under which the language model's keys lie; None: they lie at the top.
    """

    names: tuple[str | None, ...] | None = None
    ropes: Mapping[str, RopeConfig] = field(default_factory=dict)
    part: str | None = None

    def whole(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Keys of the language model as config.json holds them."""
        return dict(keys) if self.part is None else {self.part: dict(keys)}


def ropes_of_names(
    names: Sequence[str | None], own: Sequence[RopeConfig | None], ropes: Sequence[RopeConfig | None]
) -> dict[str | None, RopeConfig | None] | None:
    """The rope of each block; None where layers of one block have different ropes.

    - `names`: of each layer's block. `own`: each layer's rope before; a layer without one belongs to no block.

    >>> rope = RopeConfig(8, interleaved=False)
    >>> list(ropes_of_names(("full", "linear"), (rope, None), (rope, None)))
    ['full']
    """
    found: dict[str | None, RopeConfig | None] = {}
    for name, before, rope in zip(names, own, ropes, strict=True):
        if before is not None and found.setdefault(name, rope) != rope:
            return None
    return found


def rope_parameters(
    form: ConfigForm,
    own: Sequence[RopeConfig | None],
    ropes: Sequence[RopeConfig | None],
    block_of: Callable[[RopeConfig], Mapping[str, Any] | None],
) -> dict[str, Any] | None:
    """What `rope_parameters` must hold for the layers to have these ropes; None where it cannot.

    - `own`, `ropes`: of each layer, before and now. `block_of`: a rope's block, or None.

    With a block for each layer type the result has all of them: transformers reads DeepSeek-V4's together or not.

    >>> rope, other = RopeConfig(8, interleaved=False), RopeConfig(8, interleaved=False, theta=100.0)
    >>> rope_parameters(ConfigForm(), (rope, rope), (other, other), RopeConfig.to_hf)
    {'rope_type': 'default', 'rope_theta': 100.0}
    >>> both = ConfigForm(names=("near", "far"), ropes={"near": rope, "far": rope})
    >>> rope_parameters(both, (rope, rope), (rope, other), RopeConfig.to_hf)["far"]
    {'rope_type': 'default', 'rope_theta': 100.0}
    >>> rope_parameters(ConfigForm(), (rope, rope), (rope, other), RopeConfig.to_hf)
    """
    wanted = ropes_of_names(form.names or (None,) * len(ropes), own, ropes)
    if not wanted:
        return None
    for name, rope in form.ropes.items():
        wanted.setdefault(name, rope)
    blocks = {name: None if rope is None else block_of(rope) for name, rope in wanted.items()}
    if None in blocks.values() or (form.names and None in blocks):
        return None
    written = {name: dict(block or {}) for name, block in blocks.items()}
    return {str(name): block for name, block in written.items()} if form.names else written[None]
