"""Configure an engine to serve a model under a method: commands, files, caveats, and the method's cost."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ropewalk.checkpoints.gguf import PERMUTED
from ropewalk.checkpoints.sources import find, is_hub_name
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.methods import METHODS, Reach, is_unsettled, method_named
from ropewalk.rope.values import check_factor, check_whole
from ropewalk.serving.engines import (
    ENGINES,
    MULTIPLIES_LENGTH,
    NOT_MULTIPLIED,
    READS_GGUF,
    RUNNERS,
    Answer,
    Deviation,
    applied,
    blocks_of,
)
from ropewalk.serving.recorded import Cost, Recorded
from ropewalk.serving.served import Served
from ropewalk.serving.settings import check_length

CONVERTED, LONGER = "model.gguf", "longer.gguf"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The commands and files to serve a model with an engine.

    - `length`: tokens of its context. `block`: the `rope_parameters` to apply, or a block for each layer type of a
      model with several ropes.
    - `steps`: shell commands, in order. `file`: a file to write first (its name and its content), or None.
    - `note`: instructions for the client, or None.
    - `caveats`: known deviations of the engine that concern these steps, first the one that matters most.
    - `costs`: from the doctor's records.
    """

    engine: str
    model: str
    method: str
    length: int
    block: Mapping[str, Any]
    steps: tuple[str, ...]
    file: tuple[str, str] | None
    note: str | None
    caveats: tuple[Deviation, ...]
    costs: tuple[Cost, ...]

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        caveats = [{name: getattr(one, name) for name in ("text", "versions", "source")} for one in self.caveats]
        file = None if self.file is None else {"name": self.file[0], "content": self.file[1]}
        costs = [{**dataclasses.asdict(cost), "sentence": cost.sentence} for cost in self.costs]
        own = {name: getattr(self, name) for name in ("engine", "model", "method", "length", "block", "steps", "note")}
        return {
            "generator": "ropewalk",
            "kind": "serve-config",
            **own,
            "file": file,
            "caveats": caveats,
            "costs": costs,
        }


def serve_config(
    model: str | os.PathLike[str],
    engine: str,
    *,
    method: str | None = None,
    target: int | None = None,
    factor: float | None = None,
    length: int | None = None,
    trained_length: int | None = None,
    records: Sequence[str | os.PathLike[str] | Mapping[str, Any]] = (),
) -> ServeConfig:
    """Return the commands, flags and files to serve a model under a method, and the engine's caveats.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, OWNER/NAME of the hub, or "tiny"; its weights are not loaded.
    - `engine`: one of `ropewalk.serving.engines.ENGINES`.
    - `method`: its name. None: that of the first record, or "as-is" without records.
    - `target`: tokens; None: `factor` times the trained length, the record's target, or four times the trained length.
    - `length`: tokens of the engine's context, if less than the target; None: the length of the record's verdict, or
      the target.
    - `trained_length`: tokens, if the config does not contain it.
    - `records`: of `ropewalk doctor --json`; several, measured to several targets, give the cost by factor.

    **Returns:** a `ServeConfig`.
    **Raises:** `RopeError` for a method that the engine cannot apply, with the reason, and for a malformed record.

    >>> serve_config("tiny", "ollama", method="yarn", target=1024).file
    ('Modelfile', 'FROM ./longer.gguf\\nPARAMETER num_ctx 1024\\n')
    """
    check_whole("serve-config", target=target, length=length, trained_length=trained_length)
    if factor is not None:
        check_factor("serve-config", factor)
    if engine not in ENGINES:
        raise RopeError(
            "serve-config: unknown engine.", facts={"engine": engine}, cure=f"Choose from {', '.join(ENGINES)}."
        )
    measured = [Recorded.read(one) for one in records]
    if measured:
        method = method or measured[0].recommended("serve-config")
        if target is None and factor is None:
            target = measured[0].target if method_named(method).extends else None
            if length is None and measured[0].method == method:
                length = measured[0].length
            trained_length = measured[0].trained_length if trained_length is None else trained_length
    chosen = method or "as-is"
    extends = method_named(chosen).extends
    source = Served.open(model, trained_length)
    for one in measured:
        _check_model(source, one)
    if target is None and factor is not None:
        target = math.ceil(source.trained * factor)
        check_whole("serve-config", target=target)
    if not extends and target is not None:
        raise RopeError(
            f"serve-config: `{chosen}` does not extend, so the target would be ignored.",
            facts={"method": chosen, "target": target},
            cure="Pass a method, such as --method yarn, or leave out --target.",
        )
    if extends and is_unsettled(source.rope):
        raise RopeError(
            "serve-config: it is unknown whether the model was trained with the scaling in its config.",
            facts={"scaling": source.rope.scaling, "method": chosen},
            cure="Pass --trained-length TOKENS, or leave out --method to serve it unchanged.",
        )
    if source.branches and extends:
        raise RopeError(
            "serve-config: the model's blocks are for branches of its layers, and engines' support is unknown.",
            facts={"model": source.name, "blocks": source.labels},
            cure="Write a folder for transformers: ropewalk extend apply MODEL --method ... --out DIR.",
        )
    trained, crops = source.trained, method_named(chosen).crops
    reach = Reach(trained, trained if not extends else target or 4 * trained)
    check_length(length, chosen, reach)
    stated = None if trained_length == source.stated_length else trained_length
    try:
        plan = _Plan.of(engine, source, "plain" if crops else chosen, reach, length, stated)
        steps, file = plan.steps()
    except _Refused as refused:
        raise RopeError(
            f"serve-config: {engine} does not run `{chosen}`: {refused.reason}.",
            facts={"model": source.name, **refused.facts},
            cure=refused.cure or _cure(engine, source, chosen, reach, length, stated),
        ) from None
    answer = plan.answer("\n".join((*steps, *(file or ()))))
    return ServeConfig(
        engine=engine,
        model=str(model),
        method=chosen,
        length=plan.length,
        block=plan.block,
        steps=steps,
        file=file,
        note=f"Send only the last {plan.length:,} tokens of a longer text: the client crops it." if crops else None,
        caveats=answer.caveats,
        costs=tuple(one.costs[chosen] for one in measured if chosen in one.costs),
    )


class _Refused(Exception):
    """An engine that cannot run a method: the reason as a clause, facts, and a cure if only one is possible."""

    def __init__(self, reason: str, cure: str | None = None, **facts: object) -> None:
        self.reason, self.cure, self.facts = reason, cure, facts


def _cure(engine: str, source: Served, method: str, reach: Reach, length: int | None, stated: int | None) -> str:
    """Return the first alternative that works: another method, Python, or the unchanged model."""
    record, python = method_named(method), ""
    if not record.extends:
        return "Pass --engine transformers, which applies every config."
    family = FAMILIES.get(family_name(source.model_type) or "")
    with suppress(RopeError):
        changed = record.positions(source.own, reach)
        changes = any(changed.extensions) or changed.ropes != METHODS["plain"].positions(source.own, reach).ropes
        if changes and (family is None or family.looked_up is None):
            python = f"un it in Python: rw.attach(model, {method!r}, target={reach.target})."
    for other in dict.fromkeys((record.nearest, "yarn", "ntk")):
        with suppress(_Refused):
            if method_named(other).extends:
                _Plan.of(engine, source, other, reach, length, stated).steps()
                return f"Pass --method {other}; or r{python}" if python else f"Pass --method {other}."
    return f"R{python}" if python else "Leave out --method, to serve the model unchanged."


def _check_model(source: Served, record: Recorded) -> None:
    """Raise `RopeError` if a rope in a record's audit differs from the model's ropes.

    The weights are not loaded, so records of models with equal ropes are not distinguished.
    """
    measured = {(one["head_dim"], one["pairs"], one["theta"]) for one in record.audits if "pairs" in one}
    ropes = source.own.present_ropes
    own = {(rope.head_dim, rope.pairs, None if rope.inv_freq is not None else rope.ladders[0].theta) for rope in ropes}
    if measured and not measured & own:
        raise RopeError(
            "serve-config: the record belongs to a different model.",
            facts={
                "(head_dim, pairs, theta) of the record": sorted(measured, key=str),
                "of the model": sorted(own, key=str),
            },
            cure="Pass the record of this model, or measure it: ropewalk doctor MODEL --json FILE.",
        )


def setting_command(
    engine: str | None,
    model: str | os.PathLike[str],
    method: str,
    *,
    target: int,
    trained_length: int | None = None,
    record: str | os.PathLike[str] | None = None,
    length: int | None = None,
    out: str | os.PathLike[str] | None = None,
) -> str:
    """Return the shell command, or the lines of Python, that set a method.

    **Arguments:**
    - `engine`: one of `RUNNERS`. None: write a folder or file, for any engine.
    - `model`: its path or name on the command line. `method`: its name. `target`: tokens.
    - `trained_length`: tokens, if they had to be given.
    - `record`: the doctor's file, which contains method and lengths, or None.
    - `length`: the stated length in tokens, if less than the target.
    - `out`: the output; None: a name in the current folder, from the model and the length.

    **Raises:** `RopeError` for an unknown engine.

    >>> setting_command(None, "tiny", "yarn", target=1024)
    'ropewalk extend apply tiny --method yarn --target 1024 --out tiny-1024'
    >>> setting_command("vllm", "tiny", "yarn", target=1024, length=768)
    'ropewalk serve-config tiny --engine vllm --method yarn --target 1024 --length 768'
    >>> print(setting_command("python", "owner/name", "dca", target=8192))
    import ropewalk as rw
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained('owner/name')
    rw.attach(model, 'dca', target=8192)
    """
    if engine is not None and engine not in RUNNERS:
        raise RopeError("engine: unknown.", facts={"engine": engine}, cure=f"Choose from {', '.join(RUNNERS)}.")
    place = Path(model)
    name = str(place.absolute()) if place.exists() else str(model)
    extends = method_named(method).extends
    if engine == "python":
        return _python(name, method, target if extends else None, trained_length)
    chosen = ["--method", method, *(["--target", str(target)] if extends else [])]
    chosen += ["--length", str(length)] if extends and length is not None and length != target else []
    chosen += [] if trained_length is None else ["--trained-length", str(trained_length)]
    chosen = chosen if record is None else ["--from", str(Path(record).absolute())]
    if engine in (None, "transformers") and not method_named(method).crops:
        is_file = False
        if engine is None and place.suffix == ".gguf" and place.is_file():
            source = Served.open(place, trained_length)
            is_file = source.writes_file(method, Reach(source.trained, target if extends else source.trained))
        stem = place.absolute().name.removesuffix(".gguf")
        stated = (length or target) if extends else method
        written = f"{stem}-{stated}{'.gguf' if is_file else ''}" if out is None else str(out)
        return shlex.join(["ropewalk", "extend", "apply", name, *chosen, "--out", written])
    return shlex.join(["ropewalk", "serve-config", name, "--engine", engine or "transformers", *chosen])


def _python(model: str, method: str, target: int | None, trained_length: int | None) -> str:
    """Return the lines of Python that load a model and apply a method to `model`."""
    path = None if is_hub_name(model) and not Path(model).exists() else find(model)
    is_file = path is not None and path.is_file()
    imports, applied = ["import ropewalk as rw"], target is not None or method == "plain"
    place = repr(str(path or model))
    if path is not None and not Path(model).exists():  # in the package: its folder differs between machines
        imports += ["from importlib.resources import files"]
        place = f'files("ropewalk") / "builtin" / {model!r}'
    load = f"model = AutoModelForCausalLM.from_pretrained({place})"
    if is_file:  # transformers ignores some of the file's keys
        load = f"model, tokenizer = load_gguf({place})"
    source = "ropewalk.checkpoints.opening import load_gguf" if is_file else "transformers import AutoModelForCausalLM"
    imports += [f"from {source}"]
    settings = [] if target is None else [f"target={target}"]
    settings += [] if trained_length is None else [f"trained_length={trained_length}"]
    call = f"rw.attach({', '.join(['model', repr(method), *settings])})"
    return "\n".join([*imports, load, *([call] if applied else [])])


@dataclasses.dataclass(frozen=True)
class _Plan:
    """The model to serve with an engine.

    - `block`: the `rope_parameters` under `method`, or one for each layer type. `stated`: `max_position_embeddings`.
    - `length`: tokens of the context. `changed`: whether the rope differs from the checkpoint's own.
    - `trained_length`: if it differs from the checkpoint's.
    """

    engine: str
    source: Served
    method: str
    reach: Reach
    block: dict[str, Any]
    stated: int
    length: int
    changed: bool
    trained_length: int | None

    @classmethod
    def of(
        cls, engine: str, source: Served, method: str, reach: Reach, length: int | None, trained_length: int | None
    ) -> _Plan:
        """Return the plan; raise `_Refused` if no config expresses the method, or the engine does not apply it."""
        record, under = method_named(method), source.under(method, reach, length)
        if isinstance(under, str):
            raise _Refused(under)
        block, stated = under
        changed = record.extends or (method == "plain" and source.is_scaled)
        context = (length or reach.target) if record.extends else stated
        plan = cls(engine, source, method, reach, block, stated, context, changed, trained_length)
        answer = plan.answer()
        if answer.state == "lost":
            raise _Refused(str(answer.reason), source=answer.source)
        return plan

    def answer(self, command: str = "") -> Answer:
        """Return what the engine does with the block."""
        return applied(self.engine, self.source.case(self.block, self.length, changed=self.changed, command=command))

    @property
    def main(self) -> Mapping[str, Any]:
        """Return the block, or the first scaled one."""
        return blocks_of(self.block)[0]

    def steps(self) -> tuple[tuple[str, ...], tuple[str, str] | None]:
        """Return the commands, and the file that one of them uses."""
        source, length = self.source, self.length
        model = shlex.quote(source.name)
        if self.engine in READS_GGUF:
            return self._of_file()
        if source.arch is not None:  # a .gguf file: its weights and the rope become a folder
            folder = dataclasses.replace(source, arch=None, name="longer", given="longer")
            steps, file = dataclasses.replace(self, source=folder, changed=False).steps()
            return (self._apply("longer"), *steps), file
        if self.engine == "vllm":
            flag = f" --hf-overrides {_quoted(self._override('rope_parameters'))}" if self.changed else ""
            return (f"vllm serve {model} --max-model-len {length}{flag}",), None
        own_block = source.parts or source.rope.scaling is not None or source.model_type == "qwen3_next"
        if self.engine == "sglang" and self.changed and own_block:
            # An override is merged into the config's own block, whose other keys would survive, and Qwen3-Next's class
            # (0.5.23's models/qwen3_next.py, line 640) takes theta from outside of it.
            return (self._apply("longer"), f"{_SGLANG} longer --context-length {length}"), None
        if self.engine == "sglang":
            key = "rope_parameters" if source.nested else "rope_scaling"
            flag = f" --json-model-override-args {_quoted(self._override(key))}" if self.changed else ""
            return (f"{_SGLANG} {model} --context-length {length}{flag}",), None
        assert self.engine == "transformers", f"no command for {self.engine}"
        return (), ("serve.py", self._script())

    def _of_file(self) -> tuple[tuple[str, ...], tuple[str, str] | None]:
        """Return the commands of an engine that loads a .gguf file."""
        source, length = self.source, self.length
        flags = self._llama_flags()
        if flags is not None:
            return (f"llama-server -m {shlex.quote(source.name)} --ctx-size {length}{flags}",), None
        copies = source.gguf_arch in PERMUTED
        if self.changed and not copies and source.arch is not None:
            raise _Refused("ropewalk copies no files of this architecture", architecture=source.arch, known=[*PERMUTED])
        file, steps = source.name, list[str]()
        if source.arch is None:
            folder, file = str(source.path.parent if source.path.is_file() else source.path), CONVERTED
            if is_hub_name(source.given) and not Path(source.given).exists():
                folder, (name, _, revision) = "model", source.given.partition("@")
                chosen = ["--revision", revision] if revision else []
                steps = [shlex.join(["hf", "download", name, *chosen, "--local-dir", folder])]
            if self.changed and not copies:
                steps, folder, file = [self._apply("longer")], "longer", LONGER
            steps.append(f"python convert_hf_to_gguf.py {shlex.quote(folder)} --outfile {file}")
        if self.changed and copies:
            steps, file = [*steps, self._apply(LONGER, file)], LONGER
        if self.engine == "llama.cpp":
            return (*steps, f"llama-server -m {shlex.quote(file)} --ctx-size {length}"), None
        place = file if file.startswith(("/", ".")) else f"./{file}"
        lines = f"FROM {place}\nPARAMETER num_ctx {length}\n"
        return (*steps, "ollama create longer -f Modelfile"), ("Modelfile", lines)

    def _apply(self, out: str, source: str | None = None) -> str:
        """Return the command that writes the model, from the checkpoint or from a file made of it."""
        chosen = ["--method", self.method]
        if self.reach.extends:
            chosen = ["--target", str(self.reach.target), *chosen]
            chosen += ["--length", str(self.length)] if self.length != self.reach.target else []
        chosen += [] if self.trained_length is None else ["--trained-length", str(self.trained_length)]
        return shlex.join(["ropewalk", "extend", "apply", source or self.source.given, *chosen, "--out", out])

    def _override(self, key: str) -> dict[str, Any]:
        """Return the keys to override in the config: the whole block with theta, because it replaces the config's."""
        keys: dict[str, Any] = {key: self.block}
        if self.main["rope_type"] not in MULTIPLIES_LENGTH or NOT_MULTIPLIED in self.source.model_type:
            keys["max_position_embeddings"] = self.stated
        for part in reversed(self.source.parts):
            keys = {part: keys}
        return keys

    def _script(self) -> str:
        """Return a script for transformers that changes the config before it builds the model."""
        name = repr(self.source.name)
        if not self.changed:
            return (
                "from transformers import AutoModelForCausalLM\n\n"
                f"model = AutoModelForCausalLM.from_pretrained({name})\n"
            )
        config = "config.get_text_config()" if self.source.parts else "config"
        return (
            "from transformers import AutoConfig, AutoModelForCausalLM\n\n"
            f"config = AutoConfig.from_pretrained({name})\n"
            f"{config}.rope_parameters = {self.block!r}\n"
            f"{config}.max_position_embeddings = {self.stated}\n"
            f"model = AutoModelForCausalLM.from_pretrained({name}, config=config)\n"
        )

    def _llama_flags(self) -> str | None:
        """Return llama-server's YaRN flags for a file without scaling; None if only keys can express the rope."""
        block = self.block
        plain = {"rope_type", "rope_theta", "factor", "original_max_position_embeddings"}
        if not self.changed or self.engine != "llama.cpp" or self.source.arch is None or self.source.nested:
            return None
        if self.source.rope.scaling is not None or block["rope_type"] != "yarn" or not block.keys() <= plain:
            return None
        original = block["original_max_position_embeddings"]
        return f" --rope-scaling yarn --rope-scale {block['factor']:.10g} --yarn-orig-ctx {original}"


_SGLANG = "python -m sglang.launch_server --model-path"


def _quoted(content: Any) -> str:
    return shlex.quote(json.dumps(content))
