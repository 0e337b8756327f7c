"""The doctor's JSON document, read back and looked through."""

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
    """The document that `ropewalk doctor --json` (or --report) wrote. Raises `RopeError` if the file holds none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RopeError(
            "report: the record cannot be read.",
            facts={"file": str(path), "error": str(error)},
            cure="Give a file that `ropewalk doctor --json FILE` wrote.",
        ) from error
    absent = [key for key in NEEDED if not isinstance(found, dict) or key not in found]
    if absent:
        raise RopeError(
            "report: this is not a record of the doctor's measurement.",
            facts={"file": str(path), "missing": absent},
            cure="Give a file that `ropewalk doctor --json FILE` wrote (`ropewalk inspect` measures nothing).",
        )
    return dict(found)


@contextmanager
def understood(document: Document) -> Iterator[None]:
    """Turn what a garbled document does to its reader into a RopeError."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RopeError):
            raise
        raise RopeError(
            "report: the record lacks something, or holds it in another form.",
            facts={"model": str(document.get("model")), "error": f"{type(error).__name__}: {error}"},
            cure="Write it anew with this version: ropewalk doctor MODEL --json FILE.",
        ) from error


def method_of(document: Document, name: str | None) -> dict[str, Any] | None:
    """One method's entry; None where it was not measured."""
    return next((method for method in document["methods"] if method["name"] == name), None)


def short_name(document: Document) -> str:
    """The model's name as a title shows it: no folder, no .gguf; what cannot be printed is replaced.

    >>> short_name({"model": "models/SmolLM2.gguf"}), short_name({"model": "a\\x01b"})
    ('SmolLM2', 'a\\ufffdb')
    """
    name = printable(str(document["model"]))
    return Path(name).stem if name.endswith(".gguf") else Path(name).name


def printable(text: str) -> str:
    """The text with what no page and no picture can hold (control characters, broken bytes) replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def labels(document: Document) -> dict[str, str]:
    """For each method that was measured on its own, its name and those of the methods that equal it.

    >>> labels({"methods": [{"name": "ntk", "same_as": None}, {"name": "dynamic", "same_as": "ntk"}]})
    {'ntk': 'ntk = dynamic'}
    """
    alike = {method["name"]: [method["name"]] for method in document["methods"] if not method["same_as"]}
    for method in document["methods"]:
        if method["same_as"]:
            alike[method["same_as"]].append(method["name"])
    return {name: " = ".join(names) for name, names in alike.items()}


def recommended_label(document: Document) -> str | None:
    """The label of the recommended method; None where nothing is recommended."""
    chosen = method_of(document, document["recommended"])
    return None if chosen is None else labels(document)[chosen["same_as"] or chosen["name"]]
