"""Configure an engine to serve a model under a method, or write the model with it: a folder, or a .gguf file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import as_path, may_replace, read_json, whole_folder, write_json
from ropewalk.checkpoints.gguf_copy import GGUFRope, copy_gguf
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.sources import find, is_hub_name
from ropewalk.errors import RopeError, shell_command
from ropewalk.families import family_named
from ropewalk.methods import Reach, method_named, why_no_effect
from ropewalk.progress import Progress, SilentProgress
from ropewalk.records import checked, malformed
from ropewalk.rope.values import TRAINED_KEY, check_field, check_whole
from ropewalk.serving.applied import flat_block
from ropewalk.serving.engines import ENGINES, RUNNERS
from ropewalk.serving.plan import ServeConfig, Served, gguf_keys, serving_plan, text_of

CARD = "ropewalk.md"
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
    if engine not in (None, "transformers"):
        return shell_command("ropewalk", "serve-config", Path(name), "--engine", str(engine), *chosen)
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


def apply(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    method: str | None = None,
    target: int | None = None,
    length: int | None = None,
    trained_length: int | None = None,
    record: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Apply an extension method to a checkpoint, and write a folder or a .gguf file.

    Only the config changes: its rope, and its keys of the length, also in tokenizer_config.json. All other files are
    copied as they are, and no weights are opened. The copy is made by the system, which shares the blocks of the disk
    where the file system can (btrfs, XFS), so that a change of one folder never changes the other. A .gguf file becomes
    a folder by conversion: its weights are written by transformers in float32.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, OWNER/NAME of the hub, or "tiny"; it does not change.
    - `out`: the folder, or a file name with the ending .gguf, or .json for the config only, as trainers need it; it
      appears when it is complete. `overwrite`: replace an earlier export.
    - `method`: its name; None: yarn. `target`: tokens, which set the frequencies; None: four times the trained length.
    - `length`: tokens to state in the config, if less. `trained_length`: tokens, if the config does not contain it.
    - `record`: the doctor's record with the method and the lengths, a file or `Diagnosis.to_json()`.

    **Returns:** the content of the written config.json, or of a .gguf file the keys of its rope.
    **Raises:** `RopeError`, before any work, for settings that conflict with the model or the record, methods that
    config.json (or llama.cpp) cannot express, and a record of a different model or without a recommendation to extend.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     apply("tiny", folder + "/longer", method="ntk")["max_position_embeddings"]
    1024
    """
    check_whole("extend", target=target, trained_length=trained_length, length=length)
    recorded = None if record is None else Recorded.read(record)
    if recorded is not None:
        given = {"method": method, "target": target, "length": length, "trained-length": trained_length}
        if facts := {f"--{name}": value for name, value in given.items() if value is not None}:
            both = "--from and these options are mutually exclusive; the record contains the method and the lengths"
            raise RopeError(f"extend: {both}.", facts=facts, cure="Leave out these options, or --from.")
        method, target, length = recorded.recommended("extend"), recorded.target, recorded.length
        trained_length = recorded.trained_length
    name, place = method_named(method or "yarn").name, as_path(out, "extend")
    source, is_file = Served.open(model, trained_length), place.suffix == ".gguf"
    if recorded is not None:
        recorded.check(source)
    _check_out(source, place, is_file=is_file, overwrite=overwrite)
    engine = "ollama" if is_file else "transformers"
    planned = required_plan(f"extend: `{name}` cannot be written", source, engine, name, target, length)
    if is_file:
        return _write_file(planned, place, progress or SilentProgress())
    keys = planned.keys if planned.changed or source.arch is not None else {}
    if place.suffix == ".json":
        path = find(source.given, weights=False)
        written = with_keys(source, keys, read_json(path / "config.json" if path.is_dir() else path))
        write_json(place, written)
        return written
    with whole_folder(place, _names(place)) as staging:
        _copy_files(source, place, staging)
        written = _write_config(source, keys, staging)
        (staging / CARD).write_text(_card(planned, written), encoding="utf-8")
    return written


def _check_out(source: Served, place: Path, *, is_file: bool, overwrite: bool) -> None:
    """Raise `RopeError` for an output that is the model itself, of a different kind, or not from an export."""
    names, files, cure = _names(place), list[str](), "Pass a new path."
    own = {CARD, "config.json", *(() if source.arch else (path.name for path in source.folder.iterdir()))}
    foreign = sorted(names - own) if source.arch is None else []
    if is_file and source.arch is None:
        problem = "a .gguf file is written only as a copy of a .gguf file with other keys of the rope"
        convert = shell_command("python", "convert_hf_to_gguf.py", source.folder, "--outfile", place)
        cure = f"Convert the folder first, with llama.cpp: {convert}"
    elif place.exists() and place.resolve() in (source.folder.resolve(), find(source.given, weights=False).resolve()):
        problem, cure = "--out is the model itself", "Pass a different path."
    elif (place.is_dir() if is_file else place.is_file()) or (place.suffix == ".json" and source.arch is not None):
        problem = "--out must be a folder, a .gguf file, or a new .json file for the config of a folder"
    elif not overwrite and (names or (is_file and place.exists())):
        problem, files = "the output exists already", sorted(names)
        cure = "Pass a new path, or --overwrite to replace an earlier export."
    elif foreign or ((names or place.is_file()) and not may_replace(place if is_file else place / CARD)):
        problem = "the output contains files that are not from an export of this model; they would be deleted"
        files = foreign or sorted(names)
    else:
        return
    shown = {"files": files[:8]} if files else {}
    raise RopeError(f"extend: {problem}.", facts={"model": source.name, "out": str(place), **shown}, cure=cure)


def _names(place: Path) -> frozenset[str]:
    """Return the names in a folder; none for a missing one, and for a file."""
    return frozenset(path.name for path in place.iterdir()) if place.is_dir() else frozenset()


def _write_file(planned: ServeConfig, place: Path, progress: Progress) -> dict[str, Any]:
    """Copy a .gguf file with the rope of a plan, its weights block by block, and return the keys of the rope."""
    source = planned.source
    found = gguf_keys(source, planned.method, planned.reach, planned.length)
    rope = found if isinstance(found, GGUFRope) else None
    assert source.path is not None
    copy_gguf(GGUFFile(source.path), place, rope if planned.changed else None, progress)
    keys = {f"{source.arch}.{key}": value for key, value in (rope.keys if rope else {}).items()}
    return keys | {f"{name}.weight": list(values) for name, values in (rope.divisors if rope else {}).items()}


def _copy_files(source: Served, place: Path, staging: Path) -> None:
    """Copy all files of a checkpoint, without hidden ones and earlier exports; convert those of a .gguf file."""
    if source.arch is not None:
        from ropewalk.checkpoints.opening import load_gguf, quietly

        assert source.path is not None
        model, tokenizer = load_gguf(source.path)
        with quietly():
            model.save_pretrained(staging)
        if tokenizer is not None:
            tokenizer.save(staging)
        return
    path, own = find(source.given), place.resolve()  # of the hub with its weights

    def left_out(folder: str, names: list[str]) -> list[str]:
        entries = [Path(folder, name) for name in names]
        return [one.name for one in entries if one.name[0] == "." or one.resolve() == own or (one / CARD).is_file()]

    if path.is_dir() or path.name == "config.json":
        folder = path if path.is_dir() else path.parent
        shutil.copytree(folder, staging, ignore=left_out, copy_function=shutil.copyfile, dirs_exist_ok=True)
    else:
        shutil.copyfile(path, staging / "config.json")


def _write_config(source: Served, keys: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Put the keys of the rope and the length into a folder's config.json, and the length into its tokenizer's."""
    file, tokenizer = folder / "config.json", folder / "tokenizer_config.json"
    written = with_keys(source, keys, read_json(file))
    if written != read_json(file):
        write_json(file, written)
    about = read_json(tokenizer) if keys and tokenizer.is_file() else {}
    if isinstance(about.get("model_max_length"), int) and about["model_max_length"] < keys["max_position_embeddings"]:
        write_json(tokenizer, {**about, "model_max_length": keys["max_position_embeddings"]})
    return written


def with_keys(source: Served, keys: Mapping[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Put the keys of the rope and the length into the content of the model's config.json, and return it.

    The block is also written under the keys of transformers 4, for engines that ignore `rope_parameters`, and former
    thetas are removed. Without keys, a config with only those of transformers 4 is left as it is.
    """
    part, family = text_of(content), family_named(source.model_type)
    part |= {**keys, **source.lengths(keys["max_position_embeddings"])} if keys else {}
    if not part.get("rope_parameters"):
        return content
    thetas = {} if family is None else family.theta_keys
    if keys:
        for key in ("rope_scaling", "rope_theta", *(() if family is None else family.top_thetas), *thetas.values()):
            if not isinstance(part.get(key), list):  # one theta for each layer
                part.pop(key, None)
    block, former = part["rope_parameters"], dict[str, Any]()
    block = flat_block(block) if source.model_type == "olmo3" else block
    if block is not None and block.keys() == thetas.keys():  # one for each layer type, as of Gemma 3
        rules = {label: one for label, one in block.items() if one.get("rope_type", "default") != "default"}
        if {*rules} <= {"full_attention"}:
            former = {thetas[label]: one["rope_theta"] for label, one in block.items() if "rope_theta" in one}
            former |= {"rope_scaling": rules["full_attention"]} if rules else {}
    elif block is not None and "rope_type" in block:
        former = {key: block[key] for key in ("rope_theta", "partial_rotary_factor", TRAINED_KEY) if key in block}
        former |= {} if block["rope_type"] == "default" else {"rope_scaling": block}
    for key, value in former.items():
        part[key] = value if keys or part.get(key) is None else part[key]
    return content


def _card(planned: ServeConfig, written: dict[str, Any]) -> str:
    """Return a note in Markdown about a folder with a plan in its config.json."""
    fields = {**planned.keys, **text_of(written)}
    keys = {key: fields[key] for key in ("rope_parameters", "max_position_embeddings")}
    return f"""# About this folder

Made by `ropewalk extend`: {planned.method}, in config.json. All other files are the model's own.

```json
{json.dumps(keys, indent=2)}
```

`ropewalk serve-config FOLDER --engine NAME` prints how a program loads it, and what it does differently.

Nothing was measured. To measure it, run `ropewalk doctor`.
"""
