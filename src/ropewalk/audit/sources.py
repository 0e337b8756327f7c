"""Configs and ropes of models, without their weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.atomic_io import finite, read_json
from ropewalk.audit.audit import Audit, audit
from ropewalk.audit.findings import Finding, Layers, layers_of_config, layers_of_positions, text_config
from ropewalk.audit.traps import lint
from ropewalk.checkpoints.decoder_config import NATIVE
from ropewalk.checkpoints.gguf import foreign_config
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.learned import read_alpha
from ropewalk.checkpoints.load import builds, read_config, write_config
from ropewalk.checkpoints.sources import display_name, find
from ropewalk.errors import RopeError
from ropewalk.families import DECODERS, FAMILIES, Family, family_name
from ropewalk.models.config import Positions
from ropewalk.rope.config import RopeConfig, indexer_rope, ropes_of_layer_types
from ropewalk.rope.dimensions import head_dim_of

if TYPE_CHECKING:
    from ropewalk.readers.reader import Reader


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A model's name (of its file or folder), its raw config, and its ropes.

    - `ropes`, `layers`: by layer type, or by None if there is one rope.
    - `library`: the library for the model, "ropewalk" or "transformers".
    - `further`: findings that are not about the config itself.
    - `dtype_note`: a sentence on the dtype of a live model (see `ropewalk.readers.adapters.fast_copy`), or None.
    """

    name: str
    config: Mapping[str, Any]
    ropes: Mapping[str | None, RopeConfig]
    layers: Mapping[str | None, Layers] = dataclasses.field(default_factory=dict)
    library: str = "ropewalk"
    dtype_note: str | None = None
    further: tuple[Finding, ...] = ()

    def audits(self, *, trained_length: int | None = None, target: int | None = None) -> list[Audit]:
        """Return the audit of each rope, that of full attention first, because it has the longest reach.

        Lengths are in tokens, as for `audit`. Those of the first audit apply to the whole model.
        """
        audits: list[Audit] = []
        for layer_type, rope in sorted(self.ropes.items(), key=lambda item: item[0] != "full_attention"):
            layers = self.layers.get(layer_type)
            audits.append(
                audit(rope, trained_length=trained_length, target=target, layer_type=layer_type, layers=layers)
            )
            trained_length, target = audits[0].trained_length, audits[0].target
        return audits

    def known_from(self, reader: Reader) -> Source:
        """Return the same source with the reader's training status of each rope (see `RopeConfig.trained`)."""
        return dataclasses.replace(self, ropes=_known(self.ropes, reader.positions))

    def findings(self, target: int) -> list[Finding]:
        """Return the lint of the config; no findings without a config."""
        if not self.config:
            return []
        return [*lint(self.config, ropes=self.ropes, layers=self.layers, target=target), *self.further]


def read_source(source: str | Path) -> Source:
    """Return a model's rope configuration from a config.json, a Hugging Face folder, a .gguf (metadata), or "tiny".

    Raises `RopeError` if the source is missing, the config is not supported, or no layer of the model has a rope.
    """
    path = find(source, weights=False)
    name = display_name(source, path) if path.name != "config.json" else str(source)
    folder = path if path.is_dir() else None
    if path.is_dir():
        path = path / "config.json"
    ours = path.suffix == ".gguf" and builds(path)
    if path.suffix == ".gguf":
        config = write_config(read_config(path)) if ours else foreign_config(GGUFFile(path)).to_dict()
    else:
        config = read_json(path)
    if config.get("model_type") == NATIVE:
        return _of_positions(name, config, read_config(config).positions)
    alpha, further = _learned_factors(config, folder)
    ropes: Mapping[str | None, RopeConfig] = ropes_of(config, alpha)
    if ours:  # config.json has no key for the training status in its metadata
        ropes = _known(ropes, read_config(path).positions)
    layers = {label: layers_of_config(text_config(config), label) for label in ropes}
    library = "ropewalk" if str(config.get("model_type")) in DECODERS else "transformers"
    further += _indexer(config, alpha)
    return Source(name=name, config=config, ropes=ropes, layers=layers, library=library, further=further)


def _family_of(config: Mapping[str, Any]) -> Family | None:
    """Return the family of a config's text part, with or without a model_type; None if it is unknown."""
    stated = text_config(config).get("model_type", config.get("model_type"))
    return FAMILIES.get(family_name(str(stated)) or "")


def _learned_factors(
    config: Mapping[str, Any], folder: Path | None
) -> tuple[tuple[float, ...] | None, tuple[Finding, ...]]:
    """Return LeRoPE's alpha from the weights in the folder, or zeros and a finding if there are no weights."""
    text, family = text_config(config), _family_of(config)
    if family is None or family.learned is None:
        return None, ()
    if folder is not None and any(folder.glob("*.safetensors")):
        return read_alpha(folder), ()
    finding = Finding(
        code="learned-factors",
        severity="warning",
        message="each frequency has a learned factor exp(alpha) (LeRoPE), in the weights only; these numbers "
        "are without factors.",
        cure="Pass the folder with config.json and the safetensors file with `rotary_emb.alpha` or `lerope.alpha`.",
    )
    return (0.0,) * (head_dim_of(text, family, None) // 2), (finding,)


def _indexer(config: Mapping[str, Any], alpha: Sequence[float] | None) -> tuple[Finding, ...]:
    """Return the note on the rope of sparse attention's indexer, if the model has a supported one."""
    family = _family_of(config)
    if family is None or family.indexer is None:
        return ()
    rope, offset = indexer_rope(config, alpha=alpha)
    pairing = {True: "interleaved", False: "half-split"}
    place = "last" if offset else "first"
    finding = Finding(
        code="indexer",
        severity="note",
        message=f"the indexer of sparse attention rotates the {place} {2 * rope.pairs} of {rope.head_dim} features, "
        f"{pairing[rope.interleaved]} (its attention: {pairing[family.interleaved]}), by the same frequencies.",
        cure="Run `ropewalk verify` to check the pairing of both in an engine.",
        layer_type=family.indexer.layer_type,
    )
    return (finding,)


def inspection(name: str, audits: Sequence[Audit], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the audit as a JSON document; `audit` is the first rope's, `audits` contains all if there are several."""
    document: dict[str, Any] = {
        "generator": "ropewalk",
        "model": name,
        "trained_length": audits[0].trained_length,
        "target": audits[0].target,
        "audit": audits[0].to_json(),
        "lint": [vars(finding) for finding in findings],
    }
    if len(audits) > 1:
        document["audits"] = [found.to_json() for found in audits]
    cleaned: dict[str, Any] = finite(document)
    return cleaned


def source_of(reader: Reader) -> Source:
    """Return the ropes of a loaded model; its raw config is unknown, so there is nothing to lint."""
    return _of_positions(reader.name, {}, reader.positions)


def _of_positions(name: str, config: Mapping[str, Any], positions: Positions) -> Source:
    """Return a source with each distinct rope of a model by its number; raise `RopeError` if there is none."""
    distinct = list(dict.fromkeys(positions.present_ropes))
    if not distinct:
        raise RopeError(
            "inspect: this model has no rotary embedding in any layer.",
            facts={"source": name},
            cure="Choose a model with RoPE.",
        )
    ropes = {None if len(distinct) == 1 else f"rope {index}": rope for index, rope in enumerate(distinct)}
    layers = {label: layers_of_positions(positions, rope) for label, rope in ropes.items()}
    return Source(name=name, config=config, ropes=ropes, layers=layers)


def _known(ropes: Mapping[str | None, RopeConfig], positions: Positions) -> dict[str | None, RopeConfig]:
    """Return the same ropes with the training status of these positions."""
    known = {rope: rope for rope in positions.present_ropes}
    return {label: known.get(rope, rope) for label, rope in ropes.items()}


def ropes_of(config: Mapping[str, Any], alpha: Sequence[float] | None = None) -> dict[str | None, RopeConfig]:
    """Return the ropes of a Hugging Face config by layer type, {None: rope} for one rope; raise as `from_hf`."""
    return {label: rope for label, rope in ropes_of_layer_types(config, alpha=alpha).items() if rope is not None}
