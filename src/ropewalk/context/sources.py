"""Where the doctor's material comes from: the config behind a name, without its weights, and the text to measure on."""

from __future__ import annotations

import dataclasses
import gzip
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from ropewalk.context.audit import Audit, audit
from ropewalk.context.findings import Finding, text_config
from ropewalk.context.lint import lint
from ropewalk.errors import RopeError
from ropewalk.models.checkpoint import find, read_config, write_config
from ropewalk.models.files import read_json
from ropewalk.models.native import NATIVE
from ropewalk.rope.config import RopeConfig

DEFAULT_TEXT = "moby_dick"


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

    def findings(self, target: int) -> list[Finding]:
        """The lint of the config."""
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
        names = [None] if len(distinct) == 1 else [f"rope {index}" for index in range(len(distinct))]
        return Source(name=name, config=config, ropes=dict(zip(names, distinct, strict=True)))
    return Source(name=name, config=config, ropes=ropes_of(config))


def ropes_of(config: Mapping[str, Any]) -> dict[str | None, RopeConfig]:
    """Each rope of a Hugging Face config by layer type; {None: rope} where it has one. Raises as `from_hf`."""
    text = text_config(config)
    written = text.get("rope_parameters") or text.get("rope_scaling") or {}
    nested = [key for key, value in written.items() if isinstance(value, Mapping)] if written else []
    if not nested:
        try:
            return {None: RopeConfig.from_hf(dict(config))}
        except RopeError:
            if not {"rope_local_base_freq", "local_rope_theta"} & set(text):
                raise
        nested = sorted(set(text.get("layer_types") or ("full_attention", "sliding_attention")))
    found: dict[str | None, RopeConfig] = {key: RopeConfig.from_hf(dict(config), layer_type=key) for key in nested}
    return {None: next(iter(found.values()))} if len(set(found.values())) == 1 else found


def read_text(path: Path | None) -> tuple[str, str]:
    """The name and the contents of a text file (UTF-8, or the same gzipped); None is the packaged Moby Dick."""
    try:
        if path is None:
            stored = resources.files("ropewalk.context").joinpath("text", f"{DEFAULT_TEXT}.txt.gz").read_bytes()
        else:
            stored = path.read_bytes()
        content = gzip.decompress(stored) if stored[:2] == b"\x1f\x8b" else stored
        return (DEFAULT_TEXT if path is None else path.name), content.decode("utf-8")
    except (OSError, EOFError, ValueError) as error:
        raise RopeError(
            "read_text: the text cannot be read.",
            facts={"text": str(path or DEFAULT_TEXT), "error": str(error)},
            cure="Give --text a UTF-8 text file, plain or gzipped.",
        ) from error
