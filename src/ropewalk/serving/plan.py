"""Can this engine run this method for this model? The one answer: a plan with its commands and files, or a refusal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ropewalk.checkpoints.gguf_copy import GGUFRope, gguf_rope
from ropewalk.errors import RopeError, shell_command
from ropewalk.families import family_named
from ropewalk.families.llama_cpp import ARCHITECTURES
from ropewalk.methods import Reach, is_unsettled, method_named
from ropewalk.records import document
from ropewalk.serving.applied import Case, Deviation, applied, blocks_of
from ropewalk.serving.engines import MULTIPLIES_LENGTH, NOT_MULTIPLIED, ROPE_KEYS, TABLE
from ropewalk.serving.served import Served, spelling_of

LONGER = "longer.gguf"
_INTERNAL: Any = {"json": False}


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
    - `note`: instructions for the client, or None.
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
    note: str | None = None
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
        given, name = self.source.given_length, "plain" if method_named(self.method).crops else self.method
        options = ["--target", str(self.reach.target)] if self.reach.extends else []
        options += ["--method", name]
        options += ["--length", str(self.length)] if self.reach.extends and self.length != self.reach.target else []
        options += [] if given in (None, self.source.stated_length) else ["--trained-length", str(given)]
        return shell_command("ropewalk", "extend", "apply", source, *options, "--out", out)

    def case(self, **how: Any) -> Case:
        """Return the rope for an engine; `how`: the fields of `Case` that say how it gets it."""
        source, own = self.source, self.source.is_scaled and not self.changed
        return Case(
            block=self.block, model_type=source.model_type, arch=source.gguf_arch or "", extends=self.changed,
            scaled=own or method_named(self.method).extends, interleaved=source.rope.interleaved,
            windowed=any(window is not None for window in source.own.sliding_windows), **how,
        )  # fmt: skip

    def with_steps(self, *steps: str, file: File | None = None, **how: Any) -> ServeConfig | RopeError:
        """Return the plan with its commands; refuse it if the engine does not apply the rope as measured."""
        answer = applied(self.engine, self.case(**how))
        if answer.state == "unknown":
            tried = self.apply(Path(self.source.given), "longer")
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
    - `engine`: one of `ropewalk.serving.engines.ENGINES`. `method`: its name; `crop` is served as `plain`.
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
    keys = source.under("plain" if record.crops else method, reach, length)
    if isinstance(keys, str):
        return _refused(keys)
    context = (length or reach.target) if record.extends else keys["max_position_embeddings"]
    last = f"Send only the last {context:,} tokens of a longer text: the client crops it."
    bare = ServeConfig(
        engine=engine,
        model=source.given,
        method=method,
        length=context,
        block=keys["rope_parameters"],
        note=last if record.crops else None,
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
    block: dict[str, Any] = {}
    with suppress(RopeError):  # no name for the rule
        block = ropes.pop().to_hf()
    known = {"partial_rotary_factor", *(key for key, _ in ROPE_KEYS.values())}
    if block.get("rope_type") not in ("default", "linear", "yarn") or not block.keys() <= known:
        return None
    same = {"rope_type": "default", "rope_theta": source.rope.theta}
    given = {flag: block[key] for flag, (key, _) in ROPE_KEYS.items() if block.get(key) not in (None, same.get(key))}
    words = [word for flag, one in given.items() for word in (flag, one if isinstance(one, str) else f"{one:.10g}")]
    return ["--override-kv", f"{source.gguf_arch}.context_length=int:{bare.length}", *words]
