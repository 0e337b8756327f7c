"""A checkpoint to serve: its ropes and lengths, without its weights."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json
from ropewalk.checkpoints.export import HubRope, hub_rope
from ropewalk.checkpoints.gguf import foreign_config, read_gguf_config
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_writer import WRITTEN, architecture_of
from ropewalk.checkpoints.load import builds, read_config
from ropewalk.checkpoints.sources import find, is_hub_name
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.measure.scaling import GIVEN
from ropewalk.methods import (
    ConfigForm,
    Reach,
    is_unsettled,
    main_rope,
    method_named,
    rope_parameters,
    settle,
    settled_by_length,
)
from ropewalk.models.config import Positions
from ropewalk.rope.config import RopeConfig, ropes_by_block
from ropewalk.rope.layer_types import window_of_layer_type
from ropewalk.serving.engines import why_not


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """A checkpoint's ropes, without its weights.

    - `rope`: the one with the longest reach. `ropes`: by layer type, if the config has a block for each; else empty.
    - `trained`: the trained length in tokens. `stated_length`: the checkpoint's own value, or None.
    - `windows`: attention window in tokens by layer type; None: all. `arch`: of a .gguf file; None for a folder.
    - `given`: the model as passed. `name`: its name for an engine. `path`: its location.
    - `branches`: whether blocks have the names of a layer's branches, not of layer types (DeepSeek-V4).
    """

    given: str
    name: str
    rope: RopeConfig
    ropes: Mapping[str, RopeConfig]
    windows: Mapping[str | None, int | None]
    trained: int
    stated_length: int | None
    arch: str | None
    composite: bool
    path: Path
    model_type: str
    branches: bool

    @classmethod
    def open(cls, model: str | os.PathLike[str], trained_length: int | None) -> Served:
        path, arch, composite, model_type = find(model, weights=False), None, False, ""
        ropes: dict[str | None, RopeConfig | None] = {}
        windows: dict[str | None, int | None] = {}
        nested = False
        is_gguf = path.is_file() and path.suffix != ".json"
        if is_gguf:
            arch = str(GGUFFile(path).metadata.get("general.architecture"))
        if is_gguf and builds(path):
            ropes = {None: main_rope(read_gguf_config(path).ropes)}
        else:
            content = (
                foreign_config(path).to_dict()
                if is_gguf
                else read_json(path if path.is_file() else path / "config.json")
            )
            ropes, nested = ropes_by_block(content)
            text = content.get("text_config")
            composite = isinstance(text, Mapping)
            inner = {**content, **text} if isinstance(text, Mapping) else content
            model_type = str(content.get("model_type", ""))
            windows = {label: window_of_layer_type(inner, label) for label in inner.get("layer_types") or ropes}
        own = main_rope(tuple(ropes.values()))
        if trained_length is not None:
            ropes = {label: None if rope is None else _settled(rope, trained_length) for label, rope in ropes.items()}
        rope = main_rope(tuple(ropes.values()))
        if rope is None:
            raise RopeError(
                "serve-config: this model has no rotary embedding, so there is no rope to set.",
                facts={"model": str(model)},
                cure="Start the engine with the unchanged model.",
            )
        named = Path(model).exists() or is_hub_name(str(model))
        trained = trained_length or rope.trained_length
        if trained is None:
            raise RopeError(
                "serve-config: the config does not contain the trained length.",
                facts={"rope": rope},
                cure="Pass --trained-length TOKENS.",
            )
        family = FAMILIES.get(family_name(model_type) or "")
        of_types = {str(label): one for label, one in ropes.items() if one is not None} if nested else {}
        return cls(
            given=str(model),
            name=str(model) if named else str(path),
            rope=rope,
            ropes=of_types,
            windows=windows,
            trained=trained,
            stated_length=None if own is None or is_unsettled(own) else own.trained_length,
            arch=arch,
            composite=composite,
            path=path,
            model_type=model_type,
            branches=family is not None and bool(family.block_of),
        )

    @property
    def windows_share(self) -> bool:
        """Return whether layers with a short window share a block with others, so an engine scales them too."""
        return not self.ropes and any(window is not None and window <= self.trained for window in self.windows.values())

    @property
    def is_scaled(self) -> bool:
        """Return whether any layer's rope has a scaling that was not used in training."""
        return any(rope.as_trained() != rope for rope in (self.rope, *self.ropes.values()))

    @property
    def gguf_arch(self) -> str | None:
        """Return llama.cpp's architecture of this model; the family's own name if ropewalk writes no file of it."""
        if self.arch is not None:
            return self.arch
        try:
            return architecture_of(read_config(self.path))
        except RopeError:
            return f"{self.model_type} (not written)"

    def writes_file(self, method: str, reach: Reach) -> bool:
        """Return whether ropewalk writes a .gguf file of this model under a method."""
        try:
            hub, blocks = self.under(method, reach)
        except RopeError:
            return False
        block = hub.parameters if blocks is None else blocks
        return self.gguf_arch in WRITTEN and why_not("llama.cpp", method, block, arch=self.gguf_arch) is None

    def under(self, method: str, reach: Reach, length: int | None = None) -> tuple[HubRope, dict[str, Any] | None]:
        """Return the furthest-reaching rope under a method, and the block of each layer type, or None."""
        if not self.ropes:
            rope = method_named(method).rope(self.rope, reach)
            return hub_rope((rope,), method, reach, length=length), None
        labels, ropes = tuple(self.ropes), tuple(self.ropes.values())
        own = Positions(ropes, (None,) * len(labels), tuple(self.windows.get(label) for label in labels))
        extended = method_named(method).positions(own, reach).ropes
        main = hub_rope((main_rope(extended),), method, reach, length=length)
        blocks = rope_parameters(
            ConfigForm(names=labels, ropes=self.ropes),
            ropes,
            extended,
            lambda rope: hub_rope((rope,), method, reach, length=length).parameters,
        )
        return main, blocks


def _settled(rope: RopeConfig, trained_length: int) -> RopeConfig:
    """Return the rope; a given trained length settles whether the model was trained with its scaling."""
    answer = settled_by_length(rope, trained_length) if is_unsettled(rope) else None
    return rope if answer is None else settle(rope, answer, GIVEN)
