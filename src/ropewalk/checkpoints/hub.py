"""Checkpoints of the Hugging Face hub, through its own client: cache, progress and offline mode are the client's."""

from __future__ import annotations

import os
import re
from pathlib import Path

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
