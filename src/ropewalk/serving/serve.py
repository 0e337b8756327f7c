"""Configure an engine to serve a model under a method: its commands, files and caveats."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import read_json
from ropewalk.checkpoints.gguf_copy import GGUFRope
from ropewalk.checkpoints.sources import find, is_hub_name
from ropewalk.errors import RopeError, shell_command
from ropewalk.families import family_named
from ropewalk.methods import Reach, method_named, why_no_effect
from ropewalk.records import checked, malformed
from ropewalk.rope.values import check_field, check_whole
from ropewalk.serving.engines import ENGINES, RUNNERS
from ropewalk.serving.plan import ServeConfig, gguf_keys, serving_plan
from ropewalk.serving.served import Served

_INSTEAD = {
    "keep": "Use the model unchanged; no files are needed.",
    "cut": "Pass the model only the last tokens, up to its trained length; no files are needed.",
    "unfit": "Measure on a text that the model can predict: ropewalk doctor MODEL --text FILE.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
    """The parts of a doctor's record that are needed to apply its answer. Lengths are in tokens.

    - `action`, `method`, `length`, `next`: of the verdict; if it has two, of that for engines. `facts`: its headlines.
    - `audits`: of the model's ropes.
    """

    trained_length: int
    target: int
    action: str
    method: str | None
    length: int | None
    facts: Mapping[str, str]
    next: str | None
    audits: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, record: str | os.PathLike[str] | Mapping[str, Any]) -> Recorded:
        """Load a record: a file of `ropewalk doctor --json`, or its content. Raises `RopeError` for anything else."""
        content = record if isinstance(record, Mapping) else read_json(Path(record))
        with checked(content):
            verdict, facts = content["verdict"], dict[str, str]()
            if verdict.get("engine") == "python" and verdict.get("beside") is not None:
                facts, verdict = {"in Python": str(verdict["headline"])}, verdict["beside"]  # the answer for engines
            action, method = str(verdict["action"]), verdict["method"]
            trained, target = int(content["trained_length"]), int(content["target"])
            length = None if verdict["length"] is None else int(verdict["length"])
            found = cls(
                trained_length=trained,
                target=target,
                action=action,
                method=method,
                length=length,
                facts={"action": action, "verdict": str(verdict["headline"]), **facts},
                next=verdict["next"],
                audits=tuple(content["inspection"].get("audits") or [content["inspection"]["audit"]]),
            )
        if not (1 <= trained <= target and (length is None or trained < length <= target)):
            raise malformed(content, f"lengths {trained}, {target}, {length}")
        if not isinstance(method, str | None):
            raise malformed(content, "the method")
        return found

    def recommended(self, command: str) -> str:
        """Return the recommended method; raise `RopeError` if the answer is not to extend. `command`: for the error."""
        if self.action == "extend" and self.method is not None:
            return self.method
        engines = " for engines" if "in Python" in self.facts else ""
        reason = f"{command}: the doctor does not recommend extending this model{engines}."
        cure = "To extend it anyway, leave out --from and pass --method and --target."
        cure = _INSTEAD.get(self.action) or (f"Measure more: {self.next}" if self.next else cure)
        raise RopeError(reason, facts=self.facts, cure=cure)

    def check(self, source: Served) -> None:
        """Raise `RopeError` if none of the record's ropes is the model's; equal ropes of two models pass."""
        measured = {(one["head_dim"], one["pairs"], one["theta"]) for one in self.audits if "pairs" in one}
        ropes = source.own.present_ropes
        own = {(one.head_dim, one.pairs, None if one.inv_freq is not None else one.ladders[0].theta) for one in ropes}
        if measured and not measured & own:
            raise RopeError(
                "serve-config: the record belongs to a different model.",
                facts={
                    "(head_dim, pairs, theta) of the record": sorted(measured, key=str),
                    "of the model": sorted(own, key=str),
                },
                cure="Pass the record of this model, or measure it: ropewalk doctor MODEL --json FILE.",
            )


def serve_config(
    model: str | os.PathLike[str],
    engine: str,
    *,
    method: str | None = None,
    target: int | None = None,
    factor: float | None = None,
    length: int | None = None,
    trained_length: int | None = None,
    record: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> ServeConfig:
    """Return the commands, flags and files to serve a model under a method, and the engine's caveats.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, OWNER/NAME of the hub, or "tiny"; its weights are not loaded.
    - `engine`: one of `ropewalk.serving.engines.ENGINES`.
    - `method`: its name. None: that of the record, or "as-is" without one.
    - `target`: tokens; None: `factor` times the trained length, the record's target, or four times the trained length.
    - `length`: tokens of the engine's context, if less than the target; None: the length of the record's verdict, or
      the target.
    - `trained_length`: tokens, if the config does not contain it.
    - `record`: of the doctor, a file or `Diagnosis.to_json()`.

    **Returns:** a `ServeConfig`.
    **Raises:** `RopeError` for a method that the engine cannot apply, with the reason, and for a malformed record.

    >>> serve_config("tiny", "ollama", method="yarn", target=1024).file
    File(name='Modelfile', content='FROM ./longer.gguf\\nPARAMETER num_ctx 1024\\n')
    """
    check_whole("serve-config", target=target, length=length, trained_length=trained_length)
    if factor is not None:
        check_field("serve-config", "factor", factor)
    _check_engine("serve-config", engine, ENGINES)
    recorded = None if record is None else Recorded.read(record)
    if recorded is not None:
        method = method or recorded.recommended("serve-config")
        if target is None and factor is None:
            target = recorded.target if method_named(method).extends else None
            length = recorded.length if length is None and recorded.method == method else length
            trained_length = trained_length or recorded.trained_length
    chosen = method or "as-is"
    extends, source = method_named(chosen).extends, Served.open(model, trained_length)
    if recorded is not None:
        recorded.check(source)
    if target is None and factor is not None:
        target = math.ceil(source.trained * factor)
        check_whole("serve-config", target=target)
    if not extends and target is not None:
        raise RopeError(
            f"serve-config: `{chosen}` does not extend, so the target would be ignored.",
            facts={"method": chosen, "target": target},
            cure="Pass a method, such as --method yarn, or leave out --target.",
        )
    done = required_plan(f"serve-config: {engine} does not run `{chosen}`", source, engine, chosen, target, length)
    return dataclasses.replace(done, model=str(model))


def _check_engine(where: str, engine: str, known: tuple[str, ...]) -> None:
    if engine not in known:
        raise RopeError(f"{where}: unknown engine.", facts={"engine": engine}, cure=f"Choose from {', '.join(known)}.")


def required_plan(
    refusal: str, source: Served, engine: str, method: str, target: int | None, length: int | None
) -> ServeConfig:
    """Return the plan for a target, four times the trained length if None; raise `RopeError` with the refusal."""
    extends = method_named(method).extends
    reach = Reach(source.trained, (target or 4 * source.trained) if extends else source.trained)
    if length is not None and not extends:
        raise RopeError(
            f"extend: `{method}` does not extend, so the length would be ignored.",
            facts={"length": length},
            cure="Omit it.",
        )
    if length is not None and not reach.trained < length <= reach.target:
        raise RopeError(
            "extend: the length must be above the trained length and at most the target.",
            facts={"length": length, "trained length": reach.trained, "target": reach.target},
            cure="Pass a length in between, or omit it for the target.",
        )
    planned = serving_plan(source, engine, method, reach, length)
    if isinstance(planned, ServeConfig):
        return planned
    raise RopeError(
        f"{refusal}: {planned.reason}.",
        facts={"model": source.name, **planned.facts},
        cure=planned.cure or _cure(source, engine, method, reach, length),
    )


def _cure(source: Served, engine: str, method: str, reach: Reach, length: int | None) -> str:
    """Return the first alternative to a refused method that works: another one, Python, or the unchanged model."""
    record, python = method_named(method), ""
    if not record.extends:
        return "Pass --engine transformers, which applies every config."
    family = family_named(source.model_type)
    with suppress(RopeError):
        no_effect = why_no_effect(source.own, record.positions(source.own, reach), reach.target)
        loads = not source.in_file or isinstance(source.as_folder, Served)
        if no_effect is None and loads and (family is None or family.module.looked_up is None):
            python = f"un it in Python: rw.attach(model, {method!r}, target={reach.target})."
    for other in dict.fromkeys((record.nearest, "yarn", "ntk")):
        if method_named(other).extends and isinstance(serving_plan(source, engine, other, reach, length), ServeConfig):
            return f"Pass --method {other}; or r{python}" if python else f"Pass --method {other}."
    return f"R{python}" if python else "Leave out --method, to serve the model unchanged."


def setting_command(
    engine: str | None,
    model: str | os.PathLike[str],
    method: str,
    *,
    target: int,
    trained_length: int | None = None,
    record: str | os.PathLike[str] | None = None,
    length: int | None = None,
) -> str:
    """Return the shell command, or the lines of Python, that set a method.

    `engine`: one of `RUNNERS`, or None to write a folder or file for any. `record`: the doctor's file with method and
    lengths. Lengths are in tokens: `trained_length`, if it had to be given; `length` to state, if below the target.

    >>> setting_command(None, "tiny", "yarn", target=1024)
    'ropewalk extend apply tiny --method yarn --target 1024 --out tiny-1024'
    >>> print(setting_command("python", "owner/name", "dca", target=8192))
    import ropewalk as rw
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained('owner/name')
    rw.attach(model, 'dca', target=8192)
    """
    _check_engine("engine", engine or "python", RUNNERS)
    place, extends = Path(model), method_named(method).extends
    name = str(place.absolute()) if place.exists() else str(model)
    if engine == "python":
        return _python(name, method, target if extends else None, trained_length)
    chosen = ["--method", method, *(["--target", str(target)] if extends else [])]
    chosen += ["--length", str(length)] if extends and length not in (None, target) else []
    chosen += [] if trained_length is None else ["--trained-length", str(trained_length)]
    chosen = chosen if record is None else ["--from", str(Path(record).absolute())]
    if engine not in (None, "transformers") or method_named(method).crops:
        return shell_command("ropewalk", "serve-config", Path(name), "--engine", engine or "transformers", *chosen)
    ending = ""
    if engine is None and place.suffix == ".gguf" and place.is_file():
        source = Served.open(place, trained_length)
        keys = gguf_keys(source, method, Reach(source.trained, target if extends else source.trained))
        ending = ".gguf" if isinstance(keys, GGUFRope) else ""
    written = f"{place.absolute().name.removesuffix('.gguf')}-{(length or target) if extends else method}{ending}"
    return shell_command("ropewalk", "extend", "apply", Path(name), *chosen, "--out", Path(written))


def _python(model: str, method: str, target: int | None, trained_length: int | None) -> str:
    """Return the lines of Python that load a model and apply a method to `model`."""
    path = None if is_hub_name(model) and not Path(model).exists() else find(model)
    place, imports = repr(str(path or model)), ["import ropewalk as rw"]
    if path is not None and not Path(model).exists():  # in the package: its folder differs between machines
        imports += ["from importlib.resources import files"]
        place = f'files("ropewalk") / "builtin" / {model!r}'
    if path is not None and path.is_file():  # transformers ignores some of the file's keys
        imports += ["from ropewalk.checkpoints.opening import load_gguf"]
        load = f"model, tokenizer = load_gguf({place})"
    else:
        imports += ["from transformers import AutoModelForCausalLM"]
        load = f"model = AutoModelForCausalLM.from_pretrained({place})"
    if target is None and method != "plain":
        return "\n".join([*imports, load])
    settings = [] if target is None else [f"target={target}"]
    settings += [] if trained_length is None else [f"trained_length={trained_length}"]
    return "\n".join([*imports, load, f"rw.attach({', '.join(['model', repr(method), *settings])})"])
