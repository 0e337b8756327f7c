"""A model to serve: its ropes and lengths, without its weights."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.attachment.config_keys import attention_keys, fields_under
from ropewalk.checkpoints.checkpoint import Checkpoint, has_weights
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_rope import PERMUTED
from ropewalk.checkpoints.load import open_safetensors
from ropewalk.checkpoints.sources import is_hub_name
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_named
from ropewalk.methods import Reach, is_unsettled, main_rope, settled_by_length
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.hugging_face import NESTED, text_part
from ropewalk.rope.model_ropes import ModelRopes

LENGTHS = (
    "max_position_embeddings", "model_max_length", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
    "max_seq_length", "seq_len",
)  # fmt: skip
"""The keys from which vLLM and SGLang take a model's length.

Source: vLLM 0.33.0's transformers_utils/model_arch_config_convertor.py (`derive_max_model_len_and_key`), SGLang
0.5.23's utils/hf_transformers/common.py (`CONTEXT_LENGTH_KEYS`). Both prefer `model_max_length`, as in Command R.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Served:
    """A checkpoint's ropes, without its weights.

    - `given`: the model as passed. `name`: its name for an engine. `path`: its location; None for a loaded model.
    - `own`: its ropes, one entry for each type of layers; of a .gguf file those of llama.cpp (`in_file`).
    - `rope`: the one with the longest reach. `trained`: the trained length in tokens. `stated_length`: the checkpoint's
      own value, or None. `given_length`: the trained length as passed, or None.
    - `stated`: the fields of the language model's config. `fields`: the same, with an empty block for each rope.
    - `parts`: the keys of config.json that lead to them. `arch`: of a .gguf file; None for a folder.
    """

    own: ModelRopes
    rope: RopeConfig
    trained: int
    stated_length: int | None
    given_length: int | None
    stated: Mapping[str, Any]
    fields: Mapping[str, Any]
    parts: tuple[str, ...]
    given: str = "model"
    name: str = "model"
    path: Path | None = None
    arch: str | None = None
    in_file: bool = False

    @classmethod
    def open(
        cls, model: str | os.PathLike[str], trained_length: int | None, opened: Checkpoint | None = None
    ) -> Served:
        """Return a checkpoint; raise `RopeError` as `Checkpoint.open`, and without a rope or a trained length."""
        opened = opened or Checkpoint.open(model)
        path, arch = opened.path, opened.arch
        if path is not None and path.is_dir() and not (path / "config.json").is_file():
            raise RopeError(
                "serving: the folder has Mistral's params.json, which no setting changes.",
                facts={"folder": str(path)},
                cure="Pass the model in Hugging Face's format, with config.json.",
            )
        given = str(path if path is not None and Path(model).is_dir() else model)  # a folder in it
        name = given if Path(given).exists() or is_hub_name(given) else str(path)
        ropes = opened.ropes if opened.ropes.types or arch else None  # None: ropewalk's own folders
        place = {"given": given, "name": name, "path": path, "arch": arch, "in_file": arch is not None}
        return cls.of(opened.config, trained_length, ropes, **place)

    @classmethod
    def of(
        cls, content: Mapping[str, Any], trained_length: int | None, ropes: ModelRopes | None = None, **place: Any
    ) -> Served:
        """Return the checkpoint of a config.json, or of the config of a loaded model.

        `ropes`: if they are known. `place`: the fields from `given` to `in_file`.
        """
        whole = (ropes or ModelRopes.from_hf(content)).of_types()
        before, own = main_rope(whole.ropes), settled_by_length(whole, trained_length)
        rope = main_rope(own.ropes)
        if rope is None:
            raise RopeError(
                "serving: this model has no rotary embedding, so there is no rope to set.",
                facts={"model": place.get("given", "model")},
                cure="Start the engine with the unchanged model.",
            )
        trained = trained_length or rope.trained_length
        if trained is None:
            raise RopeError(
                "serving: the config does not contain the trained length.",
                facts={"rope": rope},
                cure="Pass --trained-length TOKENS.",
            )
        stated = text_part(content)
        model_type = str(stated.get("model_type", ""))
        family = family_named(model_type)
        # Phi-3's class requires the fraction in a new block, also if it is 1.0
        kept = {} if family is None or family.partial is None or family.mla else {"partial_rotary_factor": 1.0}
        kept |= attention_keys(stated.get("rope_parameters") or {})
        block = dict.fromkeys(map(str, own.labels), kept) if own.nested else kept
        fields = {key: value for key, value in stated.items() if key != "rope_scaling"}
        return cls(
            own=own,
            rope=rope,
            trained=trained,
            stated_length=None if before is None or is_unsettled(before) else before.trained_length,
            given_length=trained_length,
            stated=stated,
            fields={**fields, "rope_parameters": None if family is not None and family.fixed else block},
            # Qwen2-VL's published files are flat, but its class nests them
            parts=parts_of(content) or (("text_config",) if f"{model_type}_text" in FAMILIES else ()),
            **place,
        )

    @functools.cached_property
    def as_folder(self) -> Served | RopeError:
        """Return the model of a .gguf file as transformers loads it, or the error if it does not."""
        from ropewalk.checkpoints.gguf import gguf_config

        place = {name: getattr(self, name) for name in ("given", "name", "path", "arch")}
        try:
            content = gguf_config(GGUFFile(self.path or self.name)).to_dict()
            folder = Served.of(content, self.given_length, **place)
        except RopeError as error:
            return error
        return dataclasses.replace(folder, stated_length=self.stated_length)

    @property
    def model_type(self) -> str:
        """Return the type of the language model."""
        return str(self.stated.get("model_type", ""))

    @property
    def is_scaled(self) -> bool:
        """Return whether any layer's rope has a scaling that was not used in training."""
        return any(rope.as_trained() != rope for rope in self.own.present_ropes)

    @property
    def repository(self) -> tuple[str, str]:
        """Return the model's name for an engine, and its revision on the hub, or ""."""
        name, _, revision = self.given.partition("@") if self.on_hub else (self.name, "", "")
        return name, revision

    @property
    def on_hub(self) -> bool:
        """Return whether the model was passed as OWNER/NAME of the hub."""
        return is_hub_name(self.given) and not Path(self.given).exists()

    @property
    def folder(self) -> Path:
        """Return the folder of the model's config.json; for a loaded model a folder of its name."""
        path = Path(self.name) if self.path is None else self.path
        return path.parent if path.is_file() else path

    @property
    def gguf_arch(self) -> str | None:
        """Return llama.cpp's architecture of this model; None if it is unknown."""
        if self.arch is not None:
            return self.arch
        arch = {"mistral": "llama", "ministral": "llama"}.get(self.model_type, self.model_type)
        windowed = any(window is not None for window in self.own.sliding_windows)  # those files have none
        return arch if arch in PERMUTED and not windowed else None

    @property
    def copied(self) -> bool:
        """Return whether ropewalk copies the model's .gguf file with other keys of the rope."""
        return self.gguf_arch in PERMUTED

    @property
    def lacks_mtp(self) -> bool:
        """Return whether llama.cpp's converter expects tensors of multi-token prediction that the folder lacks.

        Source: `_QwenMtpMixin` in conversion/qwen.py of llama-cpp-python 0.3.36; its families are listed here.
        """
        if self.path is None or not self.model_type.startswith(("qwen3_next", "qwen3_5")) or not has_weights(self.path):
            return False
        names: list[str] = []
        for path in self.path.glob("*.safetensors"):
            with open_safetensors(path) as file:
                names += file.keys()
        return not any(name.startswith(("mtp.", "model.mtp.")) for name in names)

    def under(self, method: str, reach: Reach, length: int | None = None) -> dict[str, Any] | str:
        """Return the keys of the config under a method, or the reason why there are none."""
        return fields_under(self.fields, self.own, method, reach, length, read_back=not self.in_file)

    def lengths(self, stated: int) -> dict[str, int]:
        """Return every key of the config that an engine reads as its length, with a number of tokens."""
        return {key: stated for key in LENGTHS if key == LENGTHS[0] or isinstance(self.fields.get(key), int)}


def spelling_of(fields: Mapping[str, Any]) -> str:
    """Return which spellings of the block a config has; see `ropewalk.serving.engines.Case`."""
    if not fields.get("rope_parameters"):
        return "rope_scaling"
    return "extend apply" if {"rope_theta", "rope_scaling"} & fields.keys() else "rope_parameters"


def parts_of(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys that lead to the language model's part of a config."""
    part = next((key for key in NESTED if isinstance(content.get(key), Mapping)), None)
    return () if part is None else (part, *parts_of(content[part]))


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the language model's part of a config itself, to change it."""
    for key in parts_of(config):
        config = config[key]
    return config
