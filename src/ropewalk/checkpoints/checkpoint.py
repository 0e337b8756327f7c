"""The model as given, opened once: its config and its ropes, without its weights."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json
from ropewalk.checkpoints.decoder_config import NATIVE
from ropewalk.checkpoints.gguf import gguf_config
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.load import read_alpha, read_config
from ropewalk.checkpoints.sources import display_name, find
from ropewalk.errors import NoRotation
from ropewalk.families import Family, family_named
from ropewalk.rope.hugging_face import head_dim_of, text_part
from ropewalk.rope.model_ropes import ModelRopes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model as given, without its weights: a path, a name of the hub, or a loaded model.

    - `name`: of its file or folder, for reports. `path`: its location; None for a loaded model.
    - `config`: the content of its config.json, or an equivalent one for a GGUF file; empty for a loaded model.
    - `ropes`: of each layer. `arch`: of a GGUF file, as in its metadata; else None.
    - `alpha`: LeRoPE's learned logarithms, zeros without weights; None for other families.
    """

    name: str
    config: Mapping[str, Any]
    ropes: ModelRopes
    path: Path | None = None
    arch: str | None = None
    alpha: tuple[float, ...] | None = None

    @classmethod
    def open(cls, source: str | os.PathLike[str], *, rotates: bool = True) -> Checkpoint:
        """Open a config.json, a Hugging Face folder, a .gguf file (its metadata), OWNER/NAME of the hub, or "tiny".

        Raises `RopeError` if the source is missing, the config is not supported, or no layer of the model has a rope.
        With `rotates=False` a model without rotation has no layer in `ropes`.
        """
        path = find(source, weights=False)
        name = display_name(source, path) if path.name != "config.json" else str(source)
        file = path / "config.json" if path.is_dir() else path
        gguf = None if file.suffix == ".json" else GGUFFile(file)
        config = read_json(file) if gguf is None else gguf_config(gguf)
        arch = None if gguf is None else str(gguf.metadata.get("general.architecture"))
        try:
            if config.get("model_type") == NATIVE:
                own = cls.of_positions(name, read_config(config).positions)
                return dataclasses.replace(own, config=config, path=path, arch=arch)
            alpha = _alpha(config, path)
            ropes = ModelRopes.from_hf(config, alpha=alpha)
            return cls(name=name, config=config, ropes=ropes, path=path, arch=arch, alpha=alpha)
        except NoRotation:
            if rotates:
                raise
            return cls(name=name, config=config, ropes=ModelRopes((), (), ()), path=path, arch=arch)

    @classmethod
    def of_positions(cls, name: str, positions: ModelRopes) -> Checkpoint:
        """Return a model with these ropes; raise `RopeError` if there is none."""
        if not positions.present_ropes:
            raise NoRotation(
                "inspect: this model has no rotary embedding in any layer.",
                facts={"source": name},
                cure="Choose a model with RoPE.",
            )
        return cls(name=name, config={}, ropes=positions)

    def known_from(self, positions: ModelRopes) -> Checkpoint:
        """Return the same model with the training status of these ropes (see `RopeConfig.trained`)."""
        known = {rope: rope for rope in positions.present_ropes}
        return dataclasses.replace(self, ropes=self.ropes.mapped(lambda rope: known.get(rope, rope)))


def family_of(config: Mapping[str, Any]) -> Family | None:
    """Return the family of a config's text part, with or without a model_type; None if it is unknown."""
    return family_named(text_part(config).get("model_type"))


def has_weights(path: Path | None) -> bool:
    """Return whether this is a folder with safetensors."""
    return path is not None and path.is_dir() and any(path.glob("*.safetensors"))


def _alpha(config: Mapping[str, Any], path: Path) -> tuple[float, ...] | None:
    """Return LeRoPE's alpha from the weights in the folder, or zeros if there are none; None for other families."""
    family = family_of(config)
    if family is None or family.module.learned is None:
        return None
    return read_alpha(path) if has_weights(path) else (0.0,) * (head_dim_of(text_part(config), family, None) // 2)
