"""Apply a method to a checkpoint: a folder with a changed config and the same other files, or a .gguf file."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import as_path, may_replace, read_json, whole_folder, write_json
from ropewalk.checkpoints.gguf_copy import GGUFRope, copy_gguf
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.families import family_named
from ropewalk.methods import method_named
from ropewalk.progress import Progress, SilentProgress
from ropewalk.rope.values import TRAINED_KEY, check_whole
from ropewalk.serving.engines import TABLE, applied, flat_block
from ropewalk.serving.plan import ServeConfig, gguf_keys
from ropewalk.serving.recorded import Recorded
from ropewalk.serving.serve import check_model, required_plan
from ropewalk.serving.served import Served, text_of
from ropewalk.shell import shell_command

CARD = "ropewalk.md"


@dataclass(frozen=True, kw_only=True)
class ApplySettings:
    """Settings of `serving.apply`: one method, and the lengths in tokens.

    - `target`: sets the frequencies. `length`: to state in the config; the frequencies are always those of the target.

    **Raises:** `RopeError` for settings that conflict.

    >>> ApplySettings(method="ntk", target=32768).length is None
    True
    """

    method: str | None = None
    target: int | None = None
    length: int | None = None
    trained_length: int | None = None

    def __post_init__(self) -> None:
        check_whole("extend", target=self.target, trained_length=self.trained_length, length=self.length)
        if self.method is not None:
            method_named(self.method)


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
    chosen = chosen if choice is None else _of_record(choice, chosen)
    place, method = as_path(out, "extend"), chosen.method or "yarn"
    source, is_file = Served.open(model, chosen.trained_length), place.suffix == ".gguf"
    if choice is not None:
        check_model(source, choice)
    _check_out(source, place, is_file=is_file, overwrite=overwrite)
    refusal, engine = f"extend: `{method}` cannot be written", "ollama" if is_file else "transformers"
    if method_named(method).crops:
        raise RopeError(
            f"{refusal}: {method_named(method).not_in_config}.",
            facts={"model": source.name},
            cure="Pass --method plain, or let the client crop.",
        )
    planned = required_plan(refusal, source, engine, method, chosen.target, chosen.length)
    if is_file:
        return _write_file(planned, place, progress or SilentProgress())
    if place.suffix == ".json":
        path = find(source.given, weights=False)
        written = read_json(path / "config.json" if path.is_dir() else path)
        write_json(place, with_keys(source, planned.keys, written) if planned.changed else written)
        return Exported(folder=place, config=written)
    with whole_folder(place, _names(place)) as staging:
        _write_files(source, place, staging)
        written = _write_config(planned, staging)
        (staging / CARD).write_text(_card(place.name, planned, written), encoding="utf-8")
    return Exported(folder=place, config=written)


def _of_record(record: Recorded, settings: ApplySettings) -> ApplySettings:
    """Return the record's method and lengths; raise `RopeError` if the settings contain one of these."""
    given = {f"--{name.replace('_', '-')}": value for name, value in vars(settings).items() if value is not None}
    if given:
        raise RopeError(
            "extend: --from and these options are mutually exclusive; the record contains the method and the lengths.",
            facts=given,
            cure="Leave out these options, or --from.",
        )
    return ApplySettings(
        method=record.recommended("extend"),
        target=record.target,
        length=record.length,
        trained_length=record.trained_length,
    )


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
    elif place.suffix == ".json" and (source.arch is not None or place.exists()):
        problem = "--out must be a folder, or a new file for the config of a folder"
    elif place.is_dir() if is_file else place.is_file():
        problem = f"--out must be a {'file' if is_file else 'folder'}"
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


def _write_file(planned: ServeConfig, place: Path, progress: Progress) -> Exported:
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


def _write_config(planned: ServeConfig, folder: Path) -> dict[str, Any]:
    """Put the rope and the length of a plan into the config.json of a folder, and the length into its tokenizer's."""
    content, path = read_json(folder / "config.json"), folder / "tokenizer_config.json"
    changed = planned.changed or planned.source.arch is not None
    if changed:
        with_keys(planned.source, planned.keys, content)
    elif not _is_former(content):
        _replace_former_keys(text_of(content), planned.source.model_type)
    if content != read_json(folder / "config.json"):
        write_json(folder / "config.json", content)
    if changed:
        stated, about = planned.keys["max_position_embeddings"], read_json(path) if path.is_file() else {}
        if isinstance(about.get("model_max_length"), int) and about["model_max_length"] < stated:
            write_json(path, {**about, "model_max_length": stated})
    return content


def with_keys(source: Served, keys: Mapping[str, Any], content: dict[str, Any]) -> dict[str, Any]:
    """Put the keys of the rope and the length into the content of the model's config.json, and return it."""
    part = text_of(content)
    part |= {**keys, **source.lengths(keys["max_position_embeddings"])}
    _replace_former_keys(part, source.model_type)
    return content


def _is_former(content: dict[str, Any]) -> bool:
    """Return whether the rope of a config.json has only the keys of transformers 4."""
    return "rope_parameters" not in text_of(content)


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


def _card(name: str, planned: ServeConfig, written: dict[str, Any]) -> str:
    """Return a note in Markdown about the folder of this name with a plan in its config.json."""
    fields = {**planned.keys, **text_of(written)}
    keys = {key: fields[key] for key in ("rope_parameters", "max_position_embeddings")}
    readers = "\n".join(_readers(planned, _is_former(written)))
    return f"""# {plain_text(name)}

Made by `ropewalk extend`: {planned.method}, in config.json. All other files are the model's own.

```json
{json.dumps(keys, indent=2)}
```

## Programs that load it

{readers}

Nothing was measured. To measure it, run `ropewalk doctor`.
"""


def _readers(planned: ServeConfig, former: bool) -> Iterator[str]:
    """Yield one line for each program that loads the folder; `former`: it has only the keys of transformers 4."""
    case = planned.case(converted=True, spelling="rope_scaling" if former else "extend apply")
    if former:
        yield "- transformers applies `rope_scaling` and `rope_theta`."
    elif case.several and case.model_type != "olmo3":
        yield "- transformers 5 applies `rope_parameters`, version 4 does not."
    else:
        both = "version 4 `rope_scaling` and `rope_theta`; the folder has both"
        yield f"- transformers 5 applies `rope_parameters`, {both}."
    for engine in (name for name, one in TABLE.items() if not one.gguf and name != "transformers"):
        answer = applied(engine, case)
        shown = (one for one in answer.caveats if one.effect == "differs" or one.code == "not run")
        notes = [one.text for one in shown if one.before is None]
        lost = {"lost": f"not applied: {answer.reason}.", "unknown": f"{answer.reason}."}.get(answer.state)
        told = lost or " ".join(notes) or "the same frequencies and temperature."
        yield f"- {TABLE[engine].title}: {told} ({answer.checked})"


def plain_text(text: str) -> str:
    r"""Escape a name for one line of Markdown.

    >>> print(plain_text("a*b\n# <c>"))
    a\*b \# \<c\>
    """
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(str(text).split()))
