"""The doctor's JSON document: reading it, and looking up its methods."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError

Document = Mapping[str, Any]
NEEDED = ("model", "trained_length", "target", "audit", "lint", "protocol", "blocks", "methods", "recommendation")


def read_record(path: Path) -> dict[str, Any]:
    """Read a document of `ropewalk doctor --json` or --report; raise `RopeError` if the file contains none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RopeError(
            "report: the record cannot be read.",
            facts={"file": str(path), "error": str(error)},
            cure="Give a file of `ropewalk doctor MODEL --json FILE`.",
        ) from error
    missing = [key for key in NEEDED if not isinstance(document, dict) or key not in document]
    if missing:
        raise RopeError(
            "report: this is not a record of the doctor's measurement.",
            facts={"file": str(path), "missing": missing},
            cure="Give a file of `ropewalk doctor MODEL --json FILE` (`ropewalk inspect` measures nothing).",
        )
    return dict(document)


@contextmanager
def understood(document: Document) -> Iterator[None]:
    """Raise `RopeError` instead of the errors that reading a malformed document causes in the block."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RopeError):
            raise
        raise RopeError(
            "report: the record is incomplete or malformed.",
            facts={"model": str(document.get("model")), "error": f"{type(error).__name__}: {error}"},
            cure="Write it again with this version: ropewalk doctor MODEL --json FILE.",
        ) from error


def method_of(document: Document, name: str | None) -> dict[str, Any] | None:
    """Return one method's entry; None if it was not measured."""
    return next((method for method in document["methods"] if method["name"] == name), None)


def short_name(document: Document) -> str:
    """Return the model's name for titles: no folder, no .gguf, unprintable characters replaced.

    >>> short_name({"model": "models/SmolLM2.gguf"}), short_name({"model": "a\\x01b"})
    ('SmolLM2', 'a\\ufffdb')
    """
    name = printable(str(document["model"]))
    return Path(name).stem if name.endswith(".gguf") else Path(name).name


def printable(text: str) -> str:
    """Return the text with unprintable characters (control characters, broken bytes) replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def labels(document: Document) -> dict[str, str]:
    """Return for each measured method its name, joined with those of the methods that equal it.

    >>> labels({"methods": [{"name": "ntk", "same_as": None}, {"name": "dynamic", "same_as": "ntk"}]})
    {'ntk': 'ntk = dynamic'}
    """
    alike = {method["name"]: [method["name"]] for method in document["methods"] if not method["same_as"]}
    for method in document["methods"]:
        if method["same_as"]:
            alike[method["same_as"]].append(method["name"])
    return {name: " = ".join(names) for name, names in alike.items()}


def recommended_label(document: Document) -> str | None:
    """Return the label of the recommended method; None if there is none."""
    chosen = method_of(document, document["recommended"])
    return None if chosen is None else labels(document)[chosen["same_as"] or chosen["name"]]
