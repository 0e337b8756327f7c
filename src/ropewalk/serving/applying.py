"""Apply a method to a checkpoint: a folder with a changed config and the same other files, or a .gguf file."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import as_path, may_replace, read_json, whole_folder, write_json
from ropewalk.checkpoints.gguf_copy import GGUFRope, copy_gguf
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.families import family_named
from ropewalk.methods import Reach, method_named
from ropewalk.progress import Progress, SilentProgress
from ropewalk.rope.values import TRAINED_KEY
from ropewalk.serving.engines import READERS_OF_CONFIGS, Case, applied, flat_block
from ropewalk.serving.plan import Refused, ServingPlan, gguf_keys, serving_plan
from ropewalk.serving.recorded import Recorded
from ropewalk.serving.serve import check_model, cure_of
from ropewalk.serving.served import Served, parts_of, text_of
from ropewalk.serving.settings import ApplySettings, check_length
from ropewalk.shell import shell_command

CHOSEN = ("method", "target", "length", "trained_length")
"""The settings that a record contains."""
CARD = "ropewalk.md"


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The result of an export: the folder, and the content of its config.json.

    For a .gguf file `folder` is the file, and `config` contains its keys of the rope.
    """

    folder: Path
    config: Mapping[str, Any]


def apply(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    settings: ApplySettings | None = None,
    *,
    record: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Exported:
    """Apply an extension method to a checkpoint, and write a folder or a .gguf file.

    Only the config changes: its rope, and its keys of the length, also in tokenizer_config.json. All other files are
    copied as they are, and no weights are opened. The copy is made by the system, which shares the blocks of the disk
    where the file system can (btrfs, XFS), so that a change of one folder never changes the other. A .gguf file becomes
    a folder by conversion: its weights are written by transformers in float32.

    **Arguments:**
    - `model`: a Hugging Face folder, a .gguf file, OWNER/NAME of the hub, or "tiny"; it does not change.
    - `out`: the folder, or a file name with the ending .gguf, or .json for the config only, as trainers need it; it
      appears when it is complete. `overwrite`: replace an earlier export.
    - `record`: the doctor's record with the method and the lengths, a file or `Diagnosis.to_json()`.

    **Returns:** an `Exported`.
    **Raises:** `RopeError`, before any work, for settings that conflict with the model, methods that config.json (or
    llama.cpp) cannot express, and a record of a different model or without a recommendation to extend.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = apply("tiny", folder + "/longer", ApplySettings(method="ntk"))
    ...     done.config["max_position_embeddings"]
    1024
    """
    choice, chosen = None if record is None else Recorded.read(record), settings or ApplySettings()
    chosen = chosen if choice is None else _over(choice, chosen)
    place, method = as_path(out, "extend"), chosen.method or "yarn"
    source = Served.open(model, chosen.trained_length)
    if choice is not None:
        check_model(source, choice)
    extends = method_named(method).extends
    reach = Reach(source.trained, (chosen.target or 4 * source.trained) if extends else source.trained)
    check_length(chosen.length, method, reach)
    is_file = place.suffix == ".gguf"
    _check_out(source, place, is_file=is_file, overwrite=overwrite)
    engine = "ollama" if is_file else "transformers"
    planned = serving_plan(source, engine, method, reach, chosen.length)
    if method_named(method).crops:
        planned = Refused(str(method_named(method).not_in_config), "Pass --method plain, or let the client crop.")
    if isinstance(planned, Refused):
        raise RopeError(
            f"extend: `{method}` cannot be written: {planned.reason}.",
            facts={"model": source.name, **planned.facts},
            cure=planned.cure or cure_of(source, engine, method, reach, chosen.length),
        )
    if is_file:
        return _write_file(planned, place, progress or SilentProgress())
    if place.suffix == ".json":
        path = find(source.given, weights=False)
        written = read_json(path / "config.json" if path.is_dir() else path)
        write_json(place, _with_keys(planned, written) if planned.changed else written)
        return Exported(folder=place, config=written)
    with whole_folder(place, _names(place)) as staging:
        _write_files(source, place, staging)
        written = _write_config(planned, staging)
        (staging / CARD).write_text(card(place.name, method, written), encoding="utf-8")
    return Exported(folder=place, config=written)


def _over(record: Recorded, settings: ApplySettings) -> ApplySettings:
    """Return the settings with the record's method and lengths; raise `RopeError` if they contain one of these."""
    given = {f"--{name.replace('_', '-')}": getattr(settings, name) for name in CHOSEN}
    given = {option: value for option, value in given.items() if value is not None}
    if given:
        raise RopeError(
            "extend: --from and these options are mutually exclusive; the record contains the method and the lengths.",
            facts=given,
            cure="Leave out these options, or --from.",
        )
    lengths = {name: getattr(record, name) for name in CHOSEN if name != "method"}
    return dataclasses.replace(settings, method=record.recommended("extend"), **lengths)


def _check_out(source: Served, place: Path, *, is_file: bool, overwrite: bool) -> None:
    """Raise `RopeError` for an output that is the model itself, of a different kind, or not from an export."""
    facts: dict[str, object] = {"model": source.name, "out": str(place)}
    if is_file and source.arch is None:
        raise RopeError(
            "extend: a .gguf file is written only as a copy of a .gguf file with other keys of the rope.",
            facts=facts,
            cure="Convert the folder first, with llama.cpp: "
            + shell_command("python", "convert_hf_to_gguf.py", source.folder, "--outfile", place),
        )
    if place.exists() and place.resolve() in (source.folder.resolve(), find(source.given, weights=False).resolve()):
        raise RopeError("extend: --out is the model itself.", facts=facts, cure="Pass a different path.")
    if place.suffix == ".json" and (source.arch is not None or place.exists()):
        raise RopeError(
            "extend: --out must be a folder, or a new file for the config of a folder.",
            facts=facts,
            cure="Pass a new path.",
        )
    if place.is_dir() if is_file else place.is_file():
        raise RopeError(
            f"extend: --out must be a {'file' if is_file else 'folder'}.", facts=facts, cure="Pass a new path."
        )
    names = _names(place)
    if not overwrite and (names or (is_file and place.exists())):
        raise RopeError(
            "extend: the output exists already.",
            facts={**facts, "files": sorted(names)[:8]},
            cure="Pass a new path, or --overwrite to replace an earlier export.",
        )
    own = {CARD, "config.json", *(() if source.arch else (path.name for path in source.folder.iterdir()))}
    foreign = sorted(names - own) if source.arch is None else []
    if foreign or ((names or place.is_file()) and not may_replace(place if is_file else place / CARD)):
        raise RopeError(
            "extend: the output contains files that are not from an export of this model; they would be deleted.",
            facts={**facts, "files": foreign[:8] or sorted(names)[:8]},
            cure="Pass a new path.",
        )


def _names(place: Path) -> frozenset[str]:
    """Return the names in a folder; none for a missing one, and for a file."""
    return frozenset(path.name for path in place.iterdir()) if place.is_dir() else frozenset()


def _write_file(planned: ServingPlan, place: Path, progress: Progress) -> Exported:
    """Copy a .gguf file with the rope of a plan, its weights block by block."""
    source, arch = planned.source, planned.source.arch
    keys = gguf_keys(source, planned.method, planned.reach, planned.length)
    assert source.path is not None
    copy_gguf(GGUFFile(source.path), place, keys if planned.changed and isinstance(keys, GGUFRope) else None, progress)
    written: dict[str, Any] = {}
    if isinstance(keys, GGUFRope):
        written = {f"{arch}.{key}": value for key, value in keys.keys.items()}
        written |= {f"{name}.weight": list(divisors) for name, divisors in keys.divisors.items()}
    return Exported(folder=place, config=written)


def _write_files(source: Served, place: Path, staging: Path) -> None:
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


def _write_config(planned: ServingPlan, folder: Path) -> dict[str, Any]:
    """Put the rope and the length of a plan into the config.json of a folder, and the length into its tokenizer's."""
    content, path = read_json(folder / "config.json"), folder / "tokenizer_config.json"
    changed = planned.changed or planned.source.arch is not None
    if changed:
        _with_keys(planned, content)
    elif "rope_parameters" in (part := text_of(content)):  # else the keys are former ones
        _replace_former_keys(part, planned.source.model_type)
    if content != read_json(folder / "config.json"):
        write_json(folder / "config.json", content)
    if changed:
        stated, about = planned.keys["max_position_embeddings"], read_json(path) if path.is_file() else {}
        if isinstance(about.get("model_max_length"), int) and about["model_max_length"] < stated:
            write_json(path, {**about, "model_max_length": stated})
    return content


def _with_keys(planned: ServingPlan, content: dict[str, Any]) -> dict[str, Any]:
    """Put the rope and the length of a plan into the content of a config.json, and return it."""
    part, source = text_of(content), planned.source
    part |= {**planned.keys, **source.lengths(planned.keys["max_position_embeddings"])}
    _replace_former_keys(part, source.model_type)
    return content


def _replace_former_keys(part: dict[str, Any], model_type: str) -> None:
    """Put the block under the keys of transformers 4 as well, which ignores `rope_parameters`; remove former thetas."""
    family = family_named(model_type)
    thetas = () if family is None else (*family.top_thetas, *family.theta_keys.values())
    for key in ("rope_scaling", "rope_theta", *thetas):
        if not isinstance(part.get(key), list):  # one theta for each layer
            part.pop(key, None)
    block = flat_block(part["rope_parameters"]) if model_type == "olmo3" else part["rope_parameters"]
    thetas_of = {} if family is None else family.theta_keys
    if block is not None and block.keys() == thetas_of.keys():  # one for each layer type, as of Gemma 3
        rules = {label: one for label, one in block.items() if one["rope_type"] != "default"}
        if {*rules} <= {"full_attention"}:
            part |= {thetas_of[label]: one["rope_theta"] for label, one in block.items()}
            part |= {"rope_scaling": rules["full_attention"]} if rules else {}
        return
    if block is None or "rope_type" not in block:
        return
    part |= {key: block[key] for key in ("rope_theta", "partial_rotary_factor", TRAINED_KEY) if key in block}
    part |= {} if block["rope_type"] == "default" else {"rope_scaling": block}


def card(model: str, method: str, config: Mapping[str, Any]) -> str:
    """Return a note about an extension in Markdown, from the names of model and method and the written config."""
    for part in parts_of(config):
        config = config[part]
    block, name = config["rope_parameters"], plain_text(model)
    keys = {"rope_parameters": block, "max_position_embeddings": config["max_position_embeddings"]}
    lines = [
        f"# {name}",
        "",
        f"Made by `ropewalk extend`: {plain_text(method)}, in config.json. All other files are the model's own.",
        "",
        "```json",
        json.dumps(keys, indent=2),
        "```",
        "",
        "## Programs that load it",
        "",
        *_readers(config),
        "",
        "Nothing was measured. To measure it, run `ropewalk doctor`.",
    ]
    return "\n".join(lines) + "\n"


def _readers(config: Mapping[str, Any]) -> list[str]:
    """Return one line for each program that loads the folder, by the rule of `serve-config`."""
    case = Case(block=config["rope_parameters"], model_type=str(config.get("model_type", "")), converted=True)
    former = (
        "version 4 does not"
        if case.several and case.model_type != "olmo3"
        else "version 4 `rope_scaling` and `rope_theta`; the folder has both"
    )
    lines = [f"- transformers 5 applies `rope_parameters`, {former}."]
    for engine, title in READERS_OF_CONFIGS.items():
        answer = applied(engine, case)
        notes = [one.text for one in answer.caveats if one.effect == "differs" and one.before is None]
        lost = {"lost": f"not applied: {answer.reason}.", "unknown": f"{answer.reason}."}.get(answer.state)
        told = lost or " ".join(notes) or "the same frequencies and temperature."
        lines.append(f"- {title}: {told} ({answer.checked})")
    return lines


def plain_text(text: str) -> str:
    r"""Escape a name for one line of Markdown.

    >>> print(plain_text("a*b\n# <c>"))
    a\*b \# \<c\>
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(str(text).split()))
