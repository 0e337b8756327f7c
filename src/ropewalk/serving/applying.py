"""Apply a method to a checkpoint: a folder with a changed config and the same other files, or a .gguf file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropewalk.atomic_io import as_path, may_replace, read_json, whole_folder, write_json
from ropewalk.checkpoints.gguf_copy import GGUFRope, copy_gguf
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError, shell_command
from ropewalk.families import family_named
from ropewalk.methods import method_named
from ropewalk.progress import Progress, SilentProgress
from ropewalk.rope.values import TRAINED_KEY, check_whole
from ropewalk.serving.applied import Case, applied, flat_block
from ropewalk.serving.engines import TABLE
from ropewalk.serving.plan import ServeConfig, gguf_keys
from ropewalk.serving.serve import Recorded, required_plan
from ropewalk.serving.served import Served, text_of

CARD = "ropewalk.md"


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
    chosen, place = method_named(method or "yarn"), as_path(out, "extend")
    source, is_file = Served.open(model, trained_length), place.suffix == ".gguf"
    if recorded is not None:
        recorded.check(source)
    _check_out(source, place, is_file=is_file, overwrite=overwrite)
    refusal = f"extend: `{chosen.name}` cannot be written"
    if chosen.crops:
        raise RopeError(
            f"{refusal}: {chosen.not_in_config}.",
            facts={"model": source.name},
            cure="Pass --method plain, or let the client crop.",
        )
    planned = required_plan(refusal, source, "ollama" if is_file else "transformers", chosen.name, target, length)
    if is_file:
        return _write_file(planned, place, progress or SilentProgress())
    if place.suffix == ".json":
        path = find(source.given, weights=False)
        written = read_json(path / "config.json" if path.is_dir() else path)
        written = with_keys(source, _new_keys(planned), written)
        write_json(place, written)
        return written
    with whole_folder(place, _names(place)) as staging:
        _copy_files(source, place, staging)
        written = _write_config(planned, staging)
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


def _write_config(planned: ServeConfig, folder: Path) -> dict[str, Any]:
    """Put the rope and the length of a plan into the config.json of a folder, and the length into its tokenizer's."""
    file, tokenizer = folder / "config.json", folder / "tokenizer_config.json"
    written = with_keys(planned.source, _new_keys(planned), read_json(file))
    if written != read_json(file):
        write_json(file, written)
    if _new_keys(planned):
        stated, about = planned.keys["max_position_embeddings"], read_json(tokenizer) if tokenizer.is_file() else {}
        if isinstance(about.get("model_max_length"), int) and about["model_max_length"] < stated:
            write_json(tokenizer, {**about, "model_max_length": stated})
    return written


def _new_keys(planned: ServeConfig) -> Mapping[str, Any]:
    return planned.keys if planned.changed or planned.source.arch is not None else {}


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
    former = "rope_parameters" not in text_of(written)
    case = planned.case(converted=True, spelling="rope_scaling" if former else "extend apply")
    readers = "\n".join(_reader(engine, case) for engine, one in TABLE.items() if not one.gguf)
    return f"""# About this folder

Made by `ropewalk extend`: {planned.method}, in config.json. All other files are the model's own.

```json
{json.dumps(keys, indent=2)}
```

## Programs that load it

{readers}

Nothing was measured. To measure it, run `ropewalk doctor`.
"""


def _reader(engine: str, case: Case) -> str:
    """Return a line about a program that loads the folder."""
    answer = applied(engine, case)
    notes = [one.text for one in answer.caveats if one.effect == "differs" or one.code == "not run"]
    lost = {"lost": f"not applied: {answer.reason}.", "unknown": f"{answer.reason}."}.get(answer.state)
    told = lost or " ".join(notes) or "the same frequencies and temperature."
    return f"- {TABLE[engine].title}: {told} ({answer.checked})"
