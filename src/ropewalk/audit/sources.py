"""The config behind a model's name, without its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json
from ropewalk.audit.audit import Audit, audit
from ropewalk.audit.findings import Finding
from ropewalk.audit.lint import lint
from ropewalk.checkpoints.load import read_config, write_config
from ropewalk.checkpoints.ropewalk_config import NATIVE
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.ropes import ropes_of_layer_types


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A model's name (of its file or folder), its config as it is written, and its ropes.

    `ropes` is keyed by layer type; by None where there is one rope.
    """

    name: str
    config: Mapping[str, Any]
    ropes: Mapping[str | None, RopeConfig]

    def audits(self, *, trained_length: int | None = None, target: int | None = None) -> list[Audit]:
        """The audit of each rope, full attention's first: it reaches furthest. Lengths in tokens, as for `audit`."""
        return [
            audit(rope, trained_length=trained_length, target=target, layer_type=layer_type)
            for layer_type, rope in sorted(self.ropes.items(), key=lambda item: item[0] != "full_attention")
        ]

    def known_from(self, reader: Reader) -> Source:
        """The same, with what the reader knows of the training of each rope (see `RopeConfig.trained`)."""
        known = {rope: rope for rope in reader.positions.present_ropes}
        return dataclasses.replace(self, ropes={label: known.get(rope, rope) for label, rope in self.ropes.items()})

    def findings(self, target: int) -> list[Finding]:
        """The lint of the config; nothing where no config is known."""
        if not self.config:
            return []
        return lint(self.config, ropes=self.ropes, target=target)


def read_source(source: str | Path) -> Source:
    """Find a model's rope configuration: a config.json, a Hugging Face folder, a .gguf (metadata only), or "tiny".

    Raises `RopeError` if nothing is there, the config cannot be understood, or the model has no rope in any layer.
    """
    path = find(source)
    name = path.resolve().name if path.name != "config.json" else str(source)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".gguf":
        config: Mapping[str, Any] = write_config(read_config(path))
    else:
        config = read_json(path)
    if config.get("model_type") == NATIVE:
        distinct = dict.fromkeys(rope for rope in read_config(config).ropes if rope is not None)
        if not distinct:
            raise RopeError(
                "inspect: this model has no rotary embedding in any layer.",
                facts={"source": str(source)},
                cure="Choose a model with RoPE.",
            )
        return Source(name=name, config=config, ropes=_numbered(distinct))
    return Source(name=name, config=config, ropes=ropes_of(config))


def source_of(reader: Reader) -> Source:
    """The ropes of a model that is there already; its config as it was written is not known, so nothing is linted."""
    return Source(name=reader.name, config={}, ropes=_numbered(dict.fromkeys(reader.positions.present_ropes)))


def _numbered(distinct: Iterable[RopeConfig]) -> dict[str | None, RopeConfig]:
    """Ropes by number, where no layer type names them; {None: rope} for a single one."""
    ropes = list(distinct)
    return {None if len(ropes) == 1 else f"rope {index}": rope for index, rope in enumerate(ropes)}


def ropes_of(config: Mapping[str, Any]) -> dict[str | None, RopeConfig]:
    """Each rope of a Hugging Face config by layer type; {None: rope} where it has one. Raises as `from_hf`."""
    return {label: rope for label, rope in ropes_of_layer_types(config).items() if rope is not None}
