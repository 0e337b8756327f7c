"""Can this engine run this method for this model? The one answer: a plan with its commands and files, or a refusal.

`Served` is the model: its ropes and lengths, without its weights.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ropewalk.attachment.config_keys import attention_keys, block_of, fields_under
from ropewalk.checkpoints.checkpoint import Checkpoint, has_weights
from ropewalk.checkpoints.gguf_copy import GGUFRope, gguf_rope
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_rope import PERMUTED
from ropewalk.checkpoints.load import open_safetensors
from ropewalk.checkpoints.sources import is_hub_name
from ropewalk.errors import RopeError, shell_command
from ropewalk.families import FAMILIES, family_named
from ropewalk.families.llama_cpp import ARCHITECTURES
from ropewalk.methods import Reach, is_unsettled, main_rope, method_named, settled_by_length
from ropewalk.records import document
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.hugging_face import NESTED, text_part
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.serving.applied import Case, Deviation, applied, blocks_of
from ropewalk.serving.engines import MULTIPLIES_LENGTH, NOT_MULTIPLIED, ROPE_KEYS, TABLE

LONGER = "longer.gguf"
_INTERNAL: Any = {"json": False}
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


def _refused(reason: str, cure: str = "", **facts: object) -> RopeError:
    """Return why an engine cannot run a method: the reason as a clause, facts, and a cure if only one is possible."""
    return RopeError(f"serving: {reason}.", facts=facts, cure=cure)


class File(NamedTuple):
    """A file to write before the commands."""

    name: str
    content: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """How an engine serves a model under a method: the commands and files.

    - `length`: tokens of its context. `block`: the `rope_parameters` to apply, or a block for each layer type of a
      model with several ropes.
    - `steps`: shell commands, in order. `file`: a file to write first, or None.
    - `caveats`: known deviations of the engine that concern these steps, first the one that matters most.
    - `checked`: how that is known: the version that was run, or the version and the function that were read.
    - `source`: the model. `reach`: the lengths of the method. `keys`: those of the language model's config under it,
      `rope_parameters` and the length. `changed`: whether the rope differs from the checkpoint's own.
    """

    engine: str
    model: str
    method: str
    length: int
    block: Mapping[str, Any]
    steps: tuple[str, ...] = ()
    file: File | None = None
    caveats: tuple[Deviation, ...] = ()
    checked: str = ""
    source: Served = dataclasses.field(metadata=_INTERNAL)
    reach: Reach = dataclasses.field(metadata=_INTERNAL)
    keys: Mapping[str, Any] = dataclasses.field(metadata=_INTERNAL)
    changed: bool = dataclasses.field(metadata=_INTERNAL)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return document(self, kind="serve-config")

    def apply(self, source: str | Path, out: str) -> str:
        """Return the command that writes the model, from the checkpoint or from a file made of it."""
        given, options = self.source.given_length, ["--target", str(self.reach.target)] if self.reach.extends else []
        options += ["--method", self.method]
        options += ["--length", str(self.length)] if self.reach.extends and self.length != self.reach.target else []
        options += [] if given in (None, self.source.stated_length) else ["--trained-length", str(given)]
        return shell_command("ropewalk", "extend", "apply", source, *options, "--out", out)

    def with_steps(self, *steps: str, file: File | None = None, **how: Any) -> ServeConfig | RopeError:
        """Return the plan with its commands; refuse it if the engine does not apply the rope as measured.

        `how`: the fields of `Case` that say how the engine gets the rope.
        """
        source, own = self.source, self.source.is_scaled and not self.changed
        case = Case(
            block=self.block, model_type=source.model_type, arch=source.gguf_arch or "", extends=self.changed,
            scaled=own or method_named(self.method).extends, interleaved=source.rope.interleaved,
            windowed=any(window is not None for window in source.own.sliding_windows), **how,
        )  # fmt: skip
        answer = applied(self.engine, case)
        if answer.state == "unknown":
            tried = self.apply(Path(source.given), "longer")
            cure = f"Leave out --method, or try it: {tried}; ropewalk verify longer --engine {self.engine}"
            return _refused(str(answer.reason), cure)
        if answer.state == "lost":
            return _refused(str(answer.reason), source=answer.source)
        return dataclasses.replace(self, steps=steps, file=file, caveats=answer.caveats, checked=answer.checked)


def serving_plan(
    source: Served, engine: str, method: str, reach: Reach, length: int | None = None
) -> ServeConfig | RopeError:
    """Return how an engine serves a model under a method, or why it does not run the method as measured.

    **Arguments:**
    - `engine`: one of `ropewalk.serving.engines.ENGINES`. `method`: its name.
    - `length`: tokens of the context, if less than the target.

    **Raises:** `RopeError` for an unknown method, and for a target that does not exceed the trained length.
    """
    record = method_named(method)
    if source.in_file and not TABLE[engine].gguf:
        folder = source.as_folder
        if isinstance(folder, RopeError):
            return folder
        source = folder
    if record.extends and is_unsettled(source.rope):
        return _refused(
            "it is unknown whether the model was trained with the scaling in its config",
            "Pass --trained-length TOKENS, or leave out --method to serve it unchanged.",
            scaling=source.rope.scaling,
        )
    family = family_named(source.model_type)
    if record.extends and family is not None and family.block_of and engine != "transformers":
        return _refused(
            "the model's blocks are for branches of its layers, and engines' support is unknown",
            f"Write a folder for transformers: ropewalk extend apply MODEL --method {method} --out DIR.",
            blocks=source.own.labels,
        )
    if record.crops:
        cure = f"Pass --method plain, and let the client send only the last {source.trained:,} tokens of a longer text."
        return _refused(record.not_in_config, cure)
    keys = source.under(method, reach, length)
    if isinstance(keys, str):
        return _refused(keys)
    bare = ServeConfig(
        engine=engine,
        model=source.given,
        method=method,
        length=(length or reach.target) if record.extends else keys["max_position_embeddings"],
        block=keys["rope_parameters"],
        source=source,
        reach=reach,
        keys=keys,
        changed=record.extends or (not record.keeps_own and source.is_scaled),
    )
    return _for_files(bare) if TABLE[engine].gguf else _for_folders(bare)


def gguf_keys(source: Served, method: str, reach: Reach, length: int | None = None) -> GGUFRope | str:
    """Return the keys and divisors of a .gguf copy under a method, or the reason why there are none."""
    if source.gguf_arch is None or not source.copied:
        return "ropewalk copies no .gguf file of this architecture"
    rope = method_named(method).positions(source.own, reach).present_ropes[0]  # all that rotate are alike
    return gguf_rope(rope, source.gguf_arch, method, reach, length=length)


def _for_folders(bare: ServeConfig) -> ServeConfig | RopeError:
    """Return the plan of an engine that loads Hugging Face folders."""
    source, engine, (name, revision) = bare.source, bare.engine, bare.source.repository
    spelling, row = spelling_of(source.stated), TABLE[bare.engine]
    writes = source.arch is not None or (bare.changed and (row.only_run or _would_survive(bare)))
    # neither has an option for the revision, and most classes of mlx-lm read no theta from `rope_parameters`
    writes |= row.only_run and (bool(revision) or (engine == "mlx" and spelling == "rope_parameters"))
    steps, override = list[str](), bare.changed and not writes
    if writes:
        steps, name, revision = [bare.apply(Path(source.given), "longer")], "longer", ""
    done: dict[str, Any] = {"override": override}
    done |= {} if bare.changed or writes else {"spelling": spelling}
    if engine == "transformers":
        return bare.with_steps(*steps, file=File("serve.py", _script(bare, name, revision, override)), **done)
    if engine == "onnx":
        place = ("-m", name) if source.on_hub and not writes else ("-i", Path(name))
        build = ("python", "-m", "onnxruntime_genai.models.builder", *place, "-o", "model-onnx")
        return bare.with_steps(*steps, shell_command(*build, "-p", "fp32", "-e", "cpu"), **done)
    chosen = [row.length[0], str(bare.length)] if row.length else []
    chosen += ["--revision", revision] if revision else []
    # vLLM prefers Mistral's params.json, which has no override (0.32.0's transformers_utils/config.py, line 826)
    chosen += ["--config-format", "hf"] if engine == "vllm" and (source.folder / "params.json").is_file() else []
    chosen += [row.over, json.dumps(_override(bare))] if override else []
    return bare.with_steps(*steps, shell_command(*row.starts, Path(name), *chosen), **done)


def _would_survive(bare: ServeConfig) -> bool:
    """Return whether an engine that merges an override into the config's block would keep other keys of it."""
    source = bare.source
    if bare.engine == "sglang":  # Qwen3-Next's class also takes theta from outside of the block
        return bool(source.parts) or source.rope.scaling is not None or source.model_type == "qwen3_next"
    old = source.stated.get("rope_parameters") or source.stated.get("rope_scaling") or {}
    return bare.engine == "vllm" and bool(source.parts) and not _covers(bare.block, old)


def _covers(new: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    """Return whether a block has every key of a different one, at every depth."""
    return all(
        key in new and (not isinstance(value, Mapping) or _covers(new[key], value)) for key, value in old.items()
    )


def _override(bare: ServeConfig) -> dict[str, Any]:
    """Return the keys to override in the config: the whole block with theta, because it replaces the config's."""
    source, rule = bare.source, blocks_of(bare.block)[0]["rope_type"]
    former = bare.engine == "sglang" and not source.own.nested
    keys: dict[str, Any] = {"rope_scaling" if former else "rope_parameters": bare.block}
    # vLLM's tables of the other layers have as many rows (0.32.0's models/modernbert.py, line 104)
    if rule not in MULTIPLIES_LENGTH or NOT_MULTIPLIED in source.model_type or source.own.nested:
        keys |= source.lengths(bare.keys["max_position_embeddings"])
    for part in reversed(source.parts):
        keys = {part: keys}
    return keys


def _script(bare: ServeConfig, name: str, revision: str, override: bool) -> str:
    """Return a script for transformers that changes the config before it builds the model."""
    kind = "AutoModelForMultimodalLM" if bare.source.parts else "AutoModelForCausalLM"
    place = repr(name) + (f", revision={revision!r}" if revision else "")
    if not override:
        return f"from transformers import {kind}\n\nmodel = {kind}.from_pretrained({place})\n"
    config = "config.get_text_config()" if bare.source.parts else "config"
    return (
        f"from transformers import AutoConfig, {kind}\n\n"
        f"config = AutoConfig.from_pretrained({place})\n"
        f"{config}.rope_parameters = {bare.block!r}\n"
        f"{config}.max_position_embeddings = {bare.keys['max_position_embeddings']}\n"
        f"model = {kind}.from_pretrained({place}, config=config)\n"
    )


def _for_files(bare: ServeConfig) -> ServeConfig | RopeError:
    """Return the plan of an engine that loads a .gguf file: flags where they suffice, else a copy with other keys."""
    source, steps, file = bare.source, list[str](), Path(bare.source.name)
    flags = _llama_flags(bare) if bare.changed and bare.engine == "llama.cpp" else None
    copied = gguf_keys(source, bare.method, bare.reach, bare.length) if bare.changed and flags is None else None
    if isinstance(copied, str) and (source.copied or source.arch is not None):
        return _refused(copied, architecture=source.gguf_arch)
    if source.arch is None:
        folder, file = source.folder, Path("model.gguf")
        if source.on_hub:
            folder, (name, revision) = Path("model"), source.repository
            chosen = ["--revision", revision] if revision else []
            steps = [shell_command("hf", "download", name, *chosen, "--local-dir", folder)]
        if isinstance(copied, str):  # only the converter writes this family
            steps, folder, file = [bare.apply(Path(source.given), "longer")], Path("longer"), Path(LONGER)
        no_mtp = ["--no-mtp"] if source.lacks_mtp else []
        steps.append(shell_command("python", "convert_hf_to_gguf.py", folder, "--outfile", file, *no_mtp))
    if isinstance(copied, GGUFRope):
        steps, file = [*steps, bare.apply(Path(source.given) if source.arch else file, LONGER)], Path(LONGER)
    converted = source.arch is None and (not bare.changed or isinstance(copied, str))
    if bare.engine == "llama.cpp":
        row = TABLE["llama.cpp"]
        serve = shell_command(*row.starts, file, row.length[0], str(bare.length), *(flags or ()))
        return bare.with_steps(*steps, serve, converted=converted)
    place = str(file) if file.is_absolute() else f"./{file}"
    if not place.isprintable() or place != place.rstrip():
        return _refused("a Modelfile cannot name this path", "Rename the file or folder.", path=place)
    lines = f"FROM {place}\nPARAMETER num_ctx {bare.length}\n"
    create = shell_command("ollama", "create", "longer", "-f", "Modelfile")
    return bare.with_steps(*steps, create, file=File("Modelfile", lines), converted=converted)


def _llama_flags(bare: ServeConfig) -> list[str] | None:
    """Return llama-server's flags for a file without scaling; None if only keys of the file can express the rope."""
    source, ropes = bare.source, set(method_named(bare.method).positions(bare.source.own, bare.reach).present_ropes)
    row = ARCHITECTURES.get(source.gguf_arch or "")
    if row is None or not row.scales_by_flags or source.rope.scaling is not None or len(ropes) > 1:
        return None
    block = block_of(ropes.pop()) or {}  # no name for the rule
    known = {"partial_rotary_factor", *(key for key, _ in ROPE_KEYS.values())}
    if block.get("rope_type") not in ("default", "linear", "yarn") or not block.keys() <= known:
        return None
    same = {"rope_type": "default", "rope_theta": source.rope.theta}
    given = {flag: block[key] for flag, (key, _) in ROPE_KEYS.items() if block.get(key) not in (None, same.get(key))}
    words = [word for flag, one in given.items() for word in (flag, one if isinstance(one, str) else f"{one:.10g}")]
    return ["--override-kv", f"{source.gguf_arch}.context_length=int:{bare.length}", *words]
