"""The config behind a model's name, without its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json
from ropewalk.audit.audit import Audit, audit
from ropewalk.audit.findings import Finding, Layers, layers_of_config, layers_of_positions, text_config
from ropewalk.audit.traps import lint
from ropewalk.checkpoints.decoder_config import NATIVE
from ropewalk.checkpoints.gguf import foreign_config
from ropewalk.checkpoints.load import builds, read_config, write_config
from ropewalk.checkpoints.sources import display_name, find
from ropewalk.errors import RopeError
from ropewalk.families import DECODERS
from ropewalk.models.config import Positions
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig, ropes_of_layer_types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A model's name (of its file or folder), its config as it is written, and its ropes.

    `ropes` is keyed by layer type, by None where there is one rope; so is `layers`: what the layers of each see.
    `library`: what computes such a model, "ropewalk" or "transformers".
    """

    name: str
    config: Mapping[str, Any]
    ropes: Mapping[str | None, RopeConfig]
    layers: Mapping[str | None, Layers] = dataclasses.field(default_factory=dict)
    library: str = "ropewalk"

    def audits(self, *, trained_length: int | None = None, target: int | None = None) -> list[Audit]:
        """The audit of each rope, full attention's first: it reaches furthest. Lengths in tokens, as for `audit`.

        The lengths of the first, which the whole model has, are those of the others.
        """
        found: list[Audit] = []
        for layer_type, rope in sorted(self.ropes.items(), key=lambda item: item[0] != "full_attention"):
            one = audit(
                rope,
                trained_length=found[0].trained_length if found else trained_length,
                target=found[0].target if found else target,
                layer_type=layer_type,
                layers=self.layers.get(layer_type),
            )
            found.append(one)
        return found

    def known_from(self, reader: Reader) -> Source:
        """The same, with what the reader knows of the training of each rope (see `RopeConfig.trained`)."""
        return dataclasses.replace(self, ropes=_known(self.ropes, reader.positions))

    def findings(self, target: int) -> list[Finding]:
        """The lint of the config; nothing where no config is known."""
        if not self.config:
            return []
        return lint(self.config, ropes=self.ropes, layers=self.layers, target=target)


def read_source(source: str | Path) -> Source:
    """Find a model's rope configuration: a config.json, a Hugging Face folder, a .gguf (metadata only), or "tiny".

    Raises `RopeError` if nothing is there, the config cannot be understood, or the model has no rope in any layer.
    """
    path = find(source, weights=False)
    name = display_name(source, path) if path.name != "config.json" else str(source)
    if path.is_dir():
        path = path / "config.json"
    ours = path.suffix == ".gguf" and builds(path)
    if path.suffix == ".gguf":
        config = write_config(read_config(path)) if ours else foreign_config(path).to_dict()
    else:
        config = read_json(path)
    if config.get("model_type") == NATIVE:
        return _of_positions(name, config, read_config(config).positions)
    ropes: Mapping[str | None, RopeConfig] = ropes_of(config)
    if ours:  # what its metadata says of the training has no place in a config.json
        ropes = _known(ropes, read_config(path).positions)
    layers = {label: layers_of_config(text_config(config), label) for label in ropes}
    library = "ropewalk" if config.get("model_type") in DECODERS else "transformers"
    return Source(name=name, config=config, ropes=ropes, layers=layers, library=library)


def source_of(reader: Reader) -> Source:
    """The ropes of a model that is there already; its config as it was written is not known, so nothing is linted."""
    return _of_positions(reader.name, {}, reader.positions)


def _of_positions(name: str, config: Mapping[str, Any], positions: Positions) -> Source:
    """Each distinct rope of a model by its number. Raises `RopeError` where it has none."""
    distinct = list(dict.fromkeys(positions.present_ropes))
    if not distinct:
        raise RopeError(
            "inspect: this model has no rotary embedding in any layer.",
            facts={"source": name},
            cure="Choose a model with RoPE.",
        )
    ropes = _numbered(distinct)
    layers = {label: layers_of_positions(positions, rope) for label, rope in ropes.items()}
    return Source(name=name, config=config, ropes=ropes, layers=layers)


def _known(ropes: Mapping[str | None, RopeConfig], positions: Positions) -> dict[str | None, RopeConfig]:
    """The same ropes, with what these positions know of the training of each."""
    known = {rope: rope for rope in positions.present_ropes}
    return {label: known.get(rope, rope) for label, rope in ropes.items()}


def _numbered(distinct: Iterable[RopeConfig]) -> dict[str | None, RopeConfig]:
    """Ropes by number, where no layer type names them; {None: rope} for a single one."""
    ropes = list(distinct)
    return {None if len(ropes) == 1 else f"rope {index}": rope for index, rope in enumerate(ropes)}


def ropes_of(config: Mapping[str, Any]) -> dict[str | None, RopeConfig]:
    """Each rope of a Hugging Face config by layer type; {None: rope} where it has one. Raises as `from_hf`."""
    return {label: rope for label, rope in ropes_of_layer_types(config).items() if rope is not None}
