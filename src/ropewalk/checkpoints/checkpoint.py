"""The model as given, opened once: its config and its ropes, without its weights."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_rope import gguf_fields, gguf_ropes
from ropewalk.checkpoints.load import read_alpha
from ropewalk.checkpoints.sources import NATIVE, display_name, find
from ropewalk.errors import NoRotation, RopeError
from ropewalk.families import Family, family_named
from ropewalk.rope.hugging_face import head_dim_of, text_part
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.values import as_whole

PARAMS = "params.json"
_ORIGINAL = "original_max_position_embeddings"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A model as given, without its weights: a path, a name of the hub, or a loaded model.

    - `name`: of its file or folder, for reports. `path`: its location; None for a loaded model.
    - `config`: the content of its config.json; of a GGUF file its sizes and rope blocks under the same names; empty for
      a loaded model.
    - `ropes`: of each layer; those of a GGUF file are llama.cpp's, in the order of the file's rows. `arch`: of a GGUF
      file, as in its metadata; else None.
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

        Of a folder without config.json it opens Mistral's params.json, or the only folder in it that has one of both.

        Raises `RopeError` if the source is missing, the config is not supported, or no layer of the model has a rope.
        With `rotates=False` a model without rotation has no layer in `ropes`.
        """
        path = find(source, weights=False)
        name = display_name(source, path) if path.name != "config.json" else str(source)
        file = _file_of(path) if path.is_dir() else path
        path = file.parent if path.is_dir() else path
        gguf = None if file.suffix == ".json" else GGUFFile(file, rope_only=True)
        config, alpha, ropes = {} if gguf is not None else read_json(file), None, ModelRopes((), (), ())
        try:
            if gguf is not None:
                ropes = gguf_ropes(gguf)
            elif config.get("model_type") == NATIVE:
                from ropewalk.checkpoints.decoder_config import config_from_native

                ropes = cls.of_positions(name, config_from_native(config, str(file)).positions).ropes
            elif file.name == PARAMS:
                config = config_of_params(config, str(file))
                ropes = ModelRopes.from_hf(config).mapped(lambda rope: dataclasses.replace(rope, interleaved=True))
            else:
                alpha = _alpha(config, path)
                ropes = ModelRopes.from_hf(config, alpha=alpha)
        except NoRotation:
            if rotates:
                raise
        if gguf is None:
            return cls(name=name, config=config, ropes=ropes, path=path, alpha=alpha)
        arch = str(gguf.metadata["general.architecture"])
        return cls(name=name, config=gguf_fields(gguf, ropes), ropes=ropes, path=path, arch=arch)

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
        known = {rope.half_split: rope.trained for rope in positions.present_ropes}
        ropes = self.ropes.mapped(
            lambda rope: dataclasses.replace(rope, trained=known.get(rope.half_split, rope.trained))
        )
        return dataclasses.replace(self, ropes=ropes)


def _file_of(folder: Path) -> Path:
    """Return the file that describes the model of a folder: in the folder, else in the only folder in it with one."""
    here = [folder / name for name in ("config.json", PARAMS) if (folder / name).is_file()]
    inner = [] if here else sorted({*folder.glob("*/config.json"), *folder.glob(f"*/{PARAMS}")})
    places = {file.parent: file for file in reversed(inner)}  # config.json precedes params.json
    if len(places) > 1:
        raise RopeError(
            "load: the folder has no config.json, and several of its folders have one.",
            facts={"folder": str(folder), "folders": sorted(place.name for place in places)},
            cure="Pass one of these folders.",
        )
    return next(iter([*here, *places.values()]), folder / "config.json")


def config_of_params(params: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the content of a config.json for Mistral's params.json, whose weights rotate neighbouring features.

    **Raises:** `RopeError` for latent attention, and for Meta's files, whose scaling is in their code only.
    **Source:** vLLM 0.33.0's transformers_utils/configs/mistral.py; llama.cpp's conversion/mistral.py, b11549.
    """
    strange = sorted({"use_scaled_rope", "qk_rope_head_dim", "kv_lora_rank"} & params.keys())
    yarn, slope = (params.get(key) or {} for key in ("yarn", "llama_4_scaling"))
    objects = isinstance(yarn, Mapping) and isinstance(slope, Mapping)
    if strange or not objects or not {"dim", "n_layers", "n_heads"} <= params.keys():
        raise RopeError(
            "load: this params.json has no rope that its keys describe.",
            facts={"file": where, "keys": strange or sorted(params)[:8]},
            cure="Pass the config.json of the model in Hugging Face's format.",
        )
    names = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
             "n_kv_heads": "num_key_value_heads", "max_seq_len": "max_position_embeddings"}  # fmt: skip
    names |= {key: key for key in ("head_dim", "vocab_size", "max_position_embeddings")}
    block = {"rope_type": "yarn" if yarn else "default", "rope_theta": params.get("rope_theta", 10_000.0)}
    of_yarn = {"factor": "factor", "beta": "beta_fast", "alpha": "beta_slow", _ORIGINAL: _ORIGINAL}
    block |= {name: yarn[key] for key, name in of_yarn.items() if key in yarn}
    block |= {"attention_factor": 1.0} if yarn.get("apply_scale") is False else {}
    block |= {"llama_4_scaling_beta": slope["beta"], _ORIGINAL: slope.get(_ORIGINAL)} if "beta" in slope else {}
    return {
        "model_type": "ministral3" if yarn or slope else "mistral",
        **{name: params[key] for key, name in names.items() if params.get(key) is not None},
        "sliding_window": as_whole(params.get("sliding_window")),
        "rope_parameters": block,
    }


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
