"""Find a checkpoint: a path, a model in the package, or a model of the Hugging Face hub."""

from __future__ import annotations

import difflib
import os
import re
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from ropewalk.atomic_io import as_path, read_json
from ropewalk.errors import RopeError
from ropewalk.imports import need

NATIVE, CLASSIFIER = "ropewalk", "ropewalk-classifier"  # the model types of our own folders
_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?")
_WITHOUT_WEIGHTS = ("*.json", "tokenizer.model", "*.jinja", "merges.txt", "LICENSE*", "NOTICE*")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_SUFFIXES = (".gguf", ".json", ".safetensors", *_PICKLES)
_NEVER = ["*/*", "consolidated*"]  # folders hold other formats; Mistral's consolidated files repeat the weights


def is_hub_name(source: str) -> bool:
    """Return whether this is OWNER/NAME or OWNER/NAME@REVISION of the hub, not a path.

    >>> is_hub_name("google/gemma-3-1b-it@main"), is_hub_name("./model"), is_hub_name("models/config.json")
    (True, False, False)
    """
    owner, _, name = source.partition("@")[0].partition("/")
    plain = _NAME.fullmatch(source) is not None and not name.endswith(_SUFFIXES) and owner.strip(".") != ""
    return plain and not Path(owner).exists()


def _fetch(source: str, weights: bool) -> Path:
    """Return the folder of a model of the hub in its client's cache; only safetensors are fetched, never code."""
    client, errors, constants = map(need, ("huggingface_hub", "huggingface_hub.errors", "huggingface_hub.constants"))
    repo, _, revision = source.partition("@")
    wanted = [*_WITHOUT_WEIGHTS, *(["*.safetensors"] if weights else [])]
    facts: dict[str, object] = {"model": repo, **({"revision": revision} if revision else {})}
    try:
        folder = Path(
            client.snapshot_download(repo, revision=revision or None, allow_patterns=wanted, ignore_patterns=_NEVER)
        )
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.HFValidationError):
            rule = "load: no such file or folder, and no such model on the hub, or no access to it."
            cure = "Check the name; for a gated model accept its licence and run `hf auth login`."
        else:
            offline = "HF_HUB_OFFLINE is set, and the model is not in the cache"
            reason = offline if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
            rule = f"load: no such file or folder, and this model cannot be fetched: {reason}."
            cure = f"On a machine with network: hf download {repo} --local-dir DIR, then pass DIR."
            facts["cache"] = constants.HF_HUB_CACHE
        facts["error"] = str(error).strip().partition("\n")[0]
        raise RopeError(rule, facts=facts, cure=cure) from error
    lacking = [name for name in ("config.json", *(["*.safetensors"] if weights else [])) if not any(folder.glob(name))]
    if lacking:
        raise RopeError(
            "load: this model of the hub cannot be loaded: files are missing on the hub or in the cache.",
            facts={**facts, "missing": lacking, "folder": os.fspath(folder)},
            cure="Choose a model with safetensors. Of a GGUF file pass the path: hf download ... --local-dir DIR.",
        )
    return folder


_WAYS = 'Pass a Hugging Face folder, a .gguf file, a model of the hub as OWNER/NAME, or "tiny".'
_CONVERT = "transformers.AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")  # torch's zip files; pickle itself


def find(source: str | os.PathLike[str], *, weights: bool = True) -> Path:
    """Return the path of a checkpoint: an existing path, the folder of a built-in model, or a model of the hub.

    A model of the Hugging Face hub (OWNER/NAME or OWNER/NAME@REVISION) is downloaded into its client's cache, if
    `weights` is False without them.

    **Raises:** `RopeError` for a missing source, with similar names, and for unsupported files: pickles, a .safetensors
    file without its folder, an adapter, and files that are not checkpoints.
    """
    try:
        path = as_path(source, "load")
        if path.exists():
            _refuse_other_things(path)
            return path
    except OSError as error:  # a name that is too long for the system, a folder that may not be entered
        raise RopeError(
            "load: the source cannot be looked up.",
            facts={"source": str(source), "error": error.strerror},
            cure="Pass the path of a readable checkpoint.",
        ) from error
    if isinstance(source, str) and source.isidentifier():
        builtin = files("ropewalk") / "builtin" / source
        if isinstance(builtin, Path) and (builtin / "config.json").is_file():
            return builtin
    if isinstance(source, str) and is_hub_name(source):
        return _fetch(source, weights)
    raise _missing(str(source), path)


def no_safetensors(folder: Path) -> RopeError:
    """Return the error for a folder without safetensors; pickles are not supported, because they can run code."""
    pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
    rule, facts = "load: the folder has no safetensors weights", {"folder": str(folder)}
    if not pickles:
        return RopeError(f"{rule}.", facts=facts, cure="Fetch model.safetensors into the folder of config.json.")
    rule, cure = f"{rule}, only pickles, which can run any code.", f"If you trust them, convert them: {_CONVERT}."
    return RopeError(rule, facts={**facts, "pickles": pickles}, cure=cure)


def _refuse_other_things(path: Path) -> None:
    """Raise `RopeError` for an adapter's folder, a file of pickled or bare weights, and an empty file or a text."""
    adapter = path / "adapter_config.json"
    if adapter.is_file() and not (path / "config.json").exists():
        base = read_json(adapter).get("base_model_name_or_path")
        raise RopeError(
            "load: this folder contains a peft adapter, not a whole model.",
            facts={"folder": str(path), "its base model": base},
            cure="Merge it into its base model and pass the new folder:\n"
            "  peft.AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW_FOLDER)\n"
            "Save the base model's tokenizer there, too. In Python, rw.doctor and rw.attach accept peft's model.",
        )
    if not path.is_file():
        return
    if path.name.endswith((".safetensors", ".safetensors.index.json")):
        raise RopeError(
            "load: a safetensors file contains only weights, without config.json.",
            facts={"file": str(path)},
            cure=f"Pass the folder: {path.parent}",
        )
    with path.open("rb") as file:
        start = file.read(4096)
    if start.startswith(_PICKLE_STARTS) or (path.suffix in _PICKLES and not start.startswith(b"GGUF")):
        raise RopeError(
            "load: this is a file of pickled weights. Pickles are not supported, because loading one can run any code.",
            facts={"file": str(path)},
            cure="If you trust it, convert it to safetensors. With its config.json in the same folder:\n"
            f"  {_CONVERT}\n"
            "A state dict without a config:\n"
            '  safetensors.torch.save_file(torch.load(FILE, weights_only=True), "model.safetensors")\n'
            "and pass the folder of model.safetensors and config.json.",
        )
    if not (path.suffix in (".json", ".gguf") and start) and not start.lstrip().startswith((b"GGUF", b"{")):
        facts = {"file": str(path), "first bytes": start[:16]}
        raise RopeError("load: this file is not a checkpoint.", facts=facts, cure=f"{_WAYS} Pass a text with --text.")


def display_name(source: str | os.PathLike[str], path: Path) -> str:
    """Return the last part of a source that `find` located at `path`, for reports.

    >>> display_name("google/gemma-3-1b-it@main", Path("/cache/snapshots/3f2a"))
    'gemma-3-1b-it'
    """
    of_hub = isinstance(source, str) and is_hub_name(source)
    return str(source).partition("@")[0].partition("/")[2] if of_hub else path.resolve().name


def _missing(source: str, path: Path) -> RopeError:
    """Return the error for a missing source: a mistyped path, or a short name."""
    facts: dict[str, object] = {"source": source}
    rule, near = "load: no such file or folder.", list[str]()
    with suppress(OSError):
        near = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=3)
    if len(path.parts) == 1 and path.suffix not in _SUFFIXES:
        rule = "load: no such file or folder, and no built-in model of this name."
        builtin = [one.name for one in (files("ropewalk") / "builtin").iterdir() if (one / "config.json").is_file()]
        near += difflib.get_close_matches(source, builtin, n=1)
    elif not path.parent.is_dir():
        folder = next(parent for parent in (*path.parent.parents, Path()) if parent.is_dir())
        facts["the folder that exists"] = str(folder.absolute())
    if near:
        return RopeError(rule, facts={**facts, "similar names": near}, cure="Pass one of these, or correct the path.")
    return RopeError(rule, facts=facts, cure=_WAYS)
