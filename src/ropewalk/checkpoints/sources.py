"""Find a checkpoint: a path, a model in the package, or a model of the Hugging Face hub."""

from __future__ import annotations

import difflib
import os
import re
from importlib.resources import files
from pathlib import Path

from ropewalk.atomic_io import read_json
from ropewalk.errors import RopeError
from ropewalk.optional import need

_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_BESIDE = ("*.json", "tokenizer.model", "*.jinja", "merges.txt", "LICENSE*", "NOTICE*")
_WEIGHTS = ("*.safetensors",)
_NEVER = ("*/*", "consolidated*")  # folders hold other formats; Mistral's consolidated files repeat the weights


def is_hub_name(source: str) -> bool:
    """Whether this reads as OWNER/NAME or OWNER/NAME@REVISION of the hub, and not as a path.

    >>> is_hub_name("google/gemma-3-1b-it@main"), is_hub_name("./model"), is_hub_name("models/config.json")
    (True, False, False)
    """
    owner, _, name = source.partition("@")[0].partition("/")
    a_file = name.endswith((".gguf", ".json", ".safetensors", ".bin", ".pt", ".pth", ".ckpt"))
    plain = _NAME.fullmatch(source) is not None and not a_file and owner.strip(".") != ""
    return plain and not Path(owner).exists()


def fetch(source: str, *, weights: bool = True) -> Path:
    """The folder of a model of the hub, downloaded into the client's cache where it is not there yet.

    - `source`: OWNER/NAME, or OWNER/NAME@REVISION. `weights`: False fetches config and tokenizer alone.

    Only safetensors are fetched, never pickles and never code. Raises `RopeError` where the hub or the model cannot be
    reached, nothing is cached while HF_HUB_OFFLINE is set, and where a model has no safetensors.
    """
    client, errors = need("huggingface_hub"), need("huggingface_hub.errors")
    repo, _, revision = source.partition("@")
    wanted = (*_BESIDE, *(_WEIGHTS if weights else ()))
    facts: dict[str, object] = {"model": repo, **({"revision": revision} if revision else {})}
    try:
        found = client.snapshot_download(
            repo, revision=revision or None, allow_patterns=list(wanted), ignore_patterns=list(_NEVER)
        )
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise RopeError(
            "load: no such file or folder, and no such model on the hub, or it needs an access that is missing.",
            facts={**facts, "error": _first_line(error)},
            cure="Check the name; for a gated model accept its licence and run `hf auth login`.",
        ) from error
    except (errors.LocalEntryNotFoundError, errors.HfHubHTTPError, OSError, ValueError) as error:
        offline = bool(need("huggingface_hub.constants").HF_HUB_OFFLINE)
        reason = "HF_HUB_OFFLINE is set, and the cache does not hold it" if offline else "the hub cannot be reached"
        raise RopeError(
            f"load: no such file or folder, and this model cannot be fetched: {reason}.",
            facts={**facts, "cache": need("huggingface_hub.constants").HF_HUB_CACHE, "error": _first_line(error)},
            cure=f"Where there is a network: hf download {repo} --local-dir DIR, then pass DIR.",
        ) from error
    folder = Path(found)
    lacking = [name for name in ("config.json",) if not (folder / name).is_file()]
    lacking += [] if not weights or any(folder.glob("*.safetensors")) else ["*.safetensors"]
    if lacking:
        raise RopeError(
            "load: this model of the hub cannot be read: files are missing there, or in the cache.",
            facts={**facts, "missing": lacking, "folder": os.fspath(folder)},
            cure="Pickled weights are refused; a GGUF file is passed by its path: hf download ... --local-dir DIR.",
        )
    return folder


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SUFFIXES = (".gguf", ".json", ".safetensors", *_PICKLES)
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # torch's zip files; pickle itself


def find(source: str | os.PathLike[str], *, weights: bool = True) -> Path:
    """The path of a checkpoint: one that exists, the folder of the built-in model of that name, or one of the hub.

    A name OWNER/NAME or OWNER/NAME@REVISION of the Hugging Face hub is downloaded into its client's cache; `weights`
    False leaves the weights out. Raises `RopeError` for what is not there, with the names beside it that are nearest,
    and for files that hold weights which are not read as they are: pickles, and a .safetensors file without its folder.
    """
    try:
        path = as_path(source, "load")
        if path.exists():
            refuse_bare_weights(path)
            _refuse_other_things(path)
            return path
    except OSError as error:  # a name that is too long for the system, a folder that may not be entered
        raise RopeError(
            "load: the source cannot be looked up.",
            facts={"source": str(source), "error": error.strerror},
            cure="Pass the path of a checkpoint that can be read.",
        ) from error
    if isinstance(source, str) and source.isidentifier():
        builtin = files("ropewalk.builtin") / source
        if isinstance(builtin, Path) and (builtin / "config.json").is_file():
            return builtin
    if isinstance(source, str) and is_hub_name(source):
        return fetch(source, weights=weights)
    raise _missing(str(source), path)


def refuse_bare_weights(path: Path) -> None:
    """Raise `RopeError` for a file of weights that cannot be read without more: the message says how to get there."""
    if not path.is_file():
        return
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        raise RopeError(
            "load: a safetensors file holds weights alone; the model is its folder, with config.json.",
            facts={"file": str(path)},
            cure=f"Pass the folder: {path.parent}",
        )
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(_PICKLE_STARTS) or (path.suffix in _PICKLES and start != b"GGUF"):
        raise RopeError(
            "load: this is a file of pickled weights, and pickles are refused: reading one can run any code.",
            facts={"file": str(path)},
            cure="Convert it to safetensors where you trust it. With its config.json beside it:\n"
            "  transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)\n"
            "A state dict alone:\n"
            '  safetensors.torch.save_file(torch.load(FILE, weights_only=True), "model.safetensors")\n'
            "and pass the folder that holds model.safetensors and config.json.",
        )


def _refuse_other_things(path: Path) -> None:
    """Raise `RopeError` for the folder of an adapter, and for a file that is empty or a text."""
    adapter = path / "adapter_config.json"
    if adapter.is_file() and not (path / "config.json").exists():
        base = read_json(adapter).get("base_model_name_or_path")
        raise RopeError(
            "load: this folder holds a peft adapter, not a whole model.",
            facts={"folder": str(path), "its base model": base},
            cure="Merge it into its base model and pass the new folder:\n"
            "  peft.AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW_FOLDER)\n"
            "Save the base model's tokenizer there, too. In Python, rw.doctor and rw.attach take peft's model itself.",
        )
    if not path.is_file():
        return
    with path.open("rb") as file:
        start = file.read(4096)
    if not start:
        raise RopeError(
            "load: the file is empty.", facts={"file": str(path)}, cure="Pass a checkpoint; fetch this one again."
        )
    try:
        is_text = b"\0" not in start and bool(start.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        is_text = b"\0" not in start and error.start > len(start) - 4  # a character cut by the end of the sample
    if path.suffix == ".json" or start.startswith(b"GGUF") or start.lstrip().startswith(b"{"):
        return
    if is_text:
        raise RopeError(
            "load: this file is a text, not a checkpoint.",
            facts={"file": str(path)},
            cure="Pass a checkpoint as MODEL. A text belongs to --text.",
        )
    if path.suffix != ".gguf":
        raise RopeError(
            "load: this file is not a checkpoint.",
            facts={"file": str(path), "first bytes": start[:8]},
            cure='Pass a Hugging Face folder, a .gguf file, a model of the hub as OWNER/NAME, or "tiny".',
        )


def display_name(source: str | os.PathLike[str], path: Path) -> str:
    """What reports call a source that `find` found at `path`: its last part.

    >>> display_name("google/gemma-3-1b-it@main", Path("/cache/snapshots/3f2a"))
    'gemma-3-1b-it'
    """
    of_hub = isinstance(source, str) and not Path(source).exists() and is_hub_name(source)
    return str(source).partition("@")[0].partition("/")[2] if of_hub else path.resolve().name


def as_path(source: object, where: str) -> Path:
    """A path that names something: an empty one would quietly be the current folder, which is called "."."""
    if not isinstance(source, str | os.PathLike) or not str(source):
        raise RopeError(
            f"{where}: a path is a string or a pathlib.Path, and not empty.",
            facts={"path": source},
            cure='The current folder is ".".',
        )
    return Path(source)


def similar_names(path: Path) -> list[str]:
    """The names in the folder of `path` that are nearest to its own; none where the folder cannot be read."""
    try:
        there = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return []
    return difflib.get_close_matches(path.name, there, n=3)


def _missing(source: str, path: Path) -> RopeError:
    """What to say of a source that is not there: a path that was mistyped, or a short name."""
    facts: dict[str, object] = {"source": source}
    if len(path.parts) > 1 or path.suffix in _SUFFIXES:
        near, rule = similar_names(path), "load: no such file or folder."
        if not path.parent.is_dir():
            folder = next(parent for parent in (*path.parent.parents, Path()) if parent.is_dir())
            facts["the folder that exists"] = str(folder.absolute())
    else:
        near, rule = similar_names(path), "load: no such file or folder, and no built-in model of that name."
        near += difflib.get_close_matches(source, _builtin_names(), n=1)
    if near:
        return RopeError(rule, facts={**facts, "similar names": near}, cure="Pass one of these, or correct the path.")
    return RopeError(
        rule,
        facts=facts,
        cure='Pass a Hugging Face folder, a .gguf file, a model of the hub as OWNER/NAME, or "tiny".',
    )


def _builtin_names() -> list[str]:
    """The models in the package."""
    return [entry.name for entry in files("ropewalk.builtin").iterdir() if (entry / "config.json").is_file()]
