"""Every rotary class of the installed transformers, and the config that each is built from."""

from __future__ import annotations

import ast
import copy
import importlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ropewalk.families import FAMILIES, SOURCES

_NAME = re.compile("Rotary|RoPE|Rope")
_CLASS = re.compile(r"^class (\w+).*?(?=^[\w@#]|\Z)", re.MULTILINE | re.DOTALL)  # to parse whole files takes seconds
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5, "mrope_section": [8, 12, 12]}
_COMPASS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [24, 20, 20]}
# Defaults that do not fit themselves, or that turn the rotation off, by model_type.
CHANGES: dict[str, dict[str, Any]] = {
    "zamba2": {"use_mem_rope": True},
    "granitemoehybrid": {"position_embedding_type": "rope"},
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe_text": {"head_dim": 128, "rope_parameters": _SECTIONS},
    "glm4v_text": {"rope_parameters": _SECTIONS},
    "glm_image_text": {"rope_parameters": _SECTIONS},
    "glm_ocr_text": {"head_dim": 64},
    "qwen2_5_vl_vision": {"hidden_size": 1280},
    "qwen3_omni_moe_text": {"head_dim": 128},
    "qwen3_omni_moe_talker_text": {"head_dim": 128},
    "qwen4_exp_text": {"rope_parameters": {**_SECTIONS, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10]}},
    "cohere_compass_text": {
        "rope_parameters": {"sliding_attention": _COMPASS, "full_attention": None},
        "layer_types": ["sliding_attention", "full_attention"] * 20,
    },
    "esm": {"position_embedding_type": "rotary"},
    "seamless_m4t": {"position_embeddings_type": "rotary"},
    "wav2vec2-bert": {"position_embeddings_type": "rotary"},
    "wav2vec2-conformer": {"position_embeddings_type": "rotary"},
}
# Classes that no config describes: the config that they are given is read as its text part.
UNREAD = {
    "MusicFlamingoRotaryEmbedding": "it turns audio features by angles that are products of two times; "
    "from_hf reads the text part of its config"
}
WITHOUT_CLASS = ("gptj", "codegen", "roformer")  # functions and no class: tests/rope has them
# Config classes without a model_type: the family that their numbers are read as.
READ_AS = {"SaProtConfig": "esm"}
# Classes whose annotation names a composite config, or none: the config that their model passes to them.
_CONFIGS: dict[str, str] = {
    "BltRotaryEmbedding": "BltLocalEncoderConfig",
    "ClvpRotaryPositionalEmbedding": "ClvpEncoderConfig",
    "DeepseekOcr2VisionRotaryEmbedding": "DeepseekOcr2VisionEncoderConfig",
    "Nemotron3DiarizationRotaryEmbedding": "Nemotron3DiarizationAudioConfig",
    "Qwen3OmniMoeRotaryEmbedding": "Qwen3OmniMoeTalkerCodePredictorConfig",
    "Qwen3OmniMoeTalkerRotaryEmbedding": "Qwen3OmniMoeTalkerTextConfig",
    "SeamlessM4TConformerRotaryPositionalEmbedding": "SeamlessM4TConfig",
    "Wav2Vec2BertRotaryPositionalEmbedding": "Wav2Vec2BertConfig",
    "Wav2Vec2ConformerRotaryPositionalEmbedding": "Wav2Vec2ConformerConfig",
}


@dataclass(frozen=True)
class Part:
    """A rotary class: the folder of its modeling file, its name, and the config class that its model passes to it."""

    folder: str
    name: str
    config: str | None

    @property
    def job(self) -> str:
        """Its name in the ledger."""
        return f"{self.folder}/{self.name}/{self.config}"

    @property
    def file(self) -> Any:
        """The modeling file."""
        package = f"transformers.models.{self.folder}"
        return importlib.import_module(f"{package}.{modeling_files()[self.folder][self.name]}")

    @property
    def cls(self) -> Any:
        """The class itself."""
        return getattr(self.file, self.name)


@cache
def modeling_files() -> dict[str, dict[str, str]]:
    """For each folder of transformers/models, the rotary classes that its modeling files define, and in which file."""
    import transformers

    found: dict[str, dict[str, str]] = {}
    for path in sorted((Path(transformers.__file__).parent / "models").glob("*/modeling_*.py")):
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            if _NAME.search(name):
                found.setdefault(path.parent.name, {})[name] = path.stem
    return found


def installed(parts: Iterable[Part]) -> list[Part]:
    """The parts whose class and config this transformers defines; no config is imported, which takes seconds."""
    import transformers

    configs = (Path(transformers.__file__).parent / "models").glob("*/configuration_*.py")
    names = {None, *re.findall(r"^class (\w+)", "\n".join(path.read_text("utf-8") for path in configs), re.MULTILINE)}
    return [part for part in parts if part.name in modeling_files().get(part.folder, ()) and part.config in names]


@cache
def rotary_classes() -> tuple[Part, ...]:
    """Every class with Rotary, RoPE or Rope in its name, in the order of folders; read without importing them."""
    import transformers

    root = Path(transformers.__file__).parent / "models"
    parts = []
    for folder, classes in modeling_files().items():
        for stem in dict.fromkeys(classes.values()):
            source = (root / folder / f"{stem}.py").read_text(encoding="utf-8")
            nodes = [ast.parse(found[0]).body[0] for found in _CLASS.finditer(source) if found[1] in classes]
            parts += [Part(folder, node.name, _config(root / folder, node)) for node in nodes]
    return tuple(parts)


def _config(folder: Path, node: Any) -> str | None:
    """The config class that `__init__` takes by its annotation; for a composite's name, the one of its text part."""
    if node.name in _CONFIGS:
        return _CONFIGS[node.name]
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            for argument in method.args.args:
                if "config" in argument.arg and argument.annotation is not None:
                    named = ast.unparse(argument.annotation)
                    text = named.removesuffix("Config") + "TextConfig"
                    files = [path.read_text(encoding="utf-8") for path in folder.glob("configuration_*.py")]
                    return text if any(f"class {text}(" in file for file in files) else named
    return None


@cache
def all_parts() -> tuple[Part, ...]:
    """Every rotary class, and once more those that other configs of the family table are given to."""
    from tests.rope.models import rotary_class

    parts = rotary_classes()
    folder_of = {part.name: part for part in parts}
    seen = {part.config for part in parts}
    for name in FAMILIES:
        cls = config_classes().get(name)
        if cls is None or cls.__name__ in seen or name in SOURCES or name in WITHOUT_CLASS:
            continue
        seen.add(cls.__name__)
        part = folder_of[rotary_class(default_config(cls)).__name__]
        parts += (Part(part.folder, part.name, cls.__name__),)
    return parts


@cache
def config_classes() -> dict[str, Any]:
    """Every config class of transformers by model_type, those inside composite configs included."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.utils import logging

    logging.set_verbosity_error()
    seen: dict[str, Any] = {}

    def walk(cls: Any) -> None:
        if not isinstance(cls, type) or cls.__name__ == "AutoConfig" or cls in seen.values():
            return
        if cls.model_type:
            seen.setdefault(cls.model_type, cls)
        for inner in (getattr(cls, "sub_configs", None) or {}).values():
            walk(inner)

    for model_type in CONFIG_MAPPING:
        walk(CONFIG_MAPPING[model_type])
    return seen


def default_config(cls: Any) -> Any:
    """A config class with its defaults, but where those do not fit themselves; of a composite the text part."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # its warnings are log records; what they are about is not under test here
    config = cls(**copy.deepcopy(CHANGES.get(cls.model_type, {})))
    if hasattr(config, "rope_parameters") or config.get_text_config() is config:
        return config
    text = type(config.get_text_config())  # by itself: a composite's defaults may state other numbers
    return text(**copy.deepcopy(CHANGES.get(text.model_type, {})))


def reading_of(config: Any) -> Any:
    """What we read of a config: itself, or its numbers under the family's name where its class has none."""
    name = READ_AS.get(type(config).__name__)
    return config if name is None else {**config.to_dict(), "model_type": name}


def config_of(part: Part) -> Any:
    """The config that a rotary class is built from, with the defaults of its class."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    if part.config is None:
        raise LookupError(f"{part.name}: its `__init__` does not say which config it takes")
    named = getattr(part.file, part.config, None)
    if named is None:
        named = next(cls for cls in config_classes().values() if cls.__name__ == part.config)
    return default_config(named)
