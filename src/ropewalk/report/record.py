"""The doctor's record: the types of its JSON document, and functions that read and search it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

from ropewalk.errors import RopeError

Pair = list[float]
"""The [low, high] of an interval."""


class ComparisonEntry(TypedDict):
    """One comparison of the verdict's evidence; see `ropewalk.diagnosis.verdict.Comparison`."""

    name: str
    method: str
    against: str
    where: str
    difference: float
    interval: Pair | None
    margin: float
    result: str


class NextRunEntry(TypedDict):
    """The run that would settle an open comparison."""

    windows: int
    seconds: float | None
    command: str
    sentence: str


class VerdictEntry(TypedDict):
    """The verdict; see `ropewalk.diagnosis.verdict.Verdict`. `action` is None for records that contain no verdict."""

    action: str | None
    headline: str
    reasons: list[str]
    sentence: str
    method: str | None
    config: dict[str, Any] | None
    reach_loss: int | None
    reach_use: int | None
    evidence: list[ComparisonEntry]
    next: NextRunEntry | None


class _OfSomeMethods(TypedDict, total=False):
    """The entries of a method that records of earlier versions lack."""

    extension: str | None
    at_run_time: str | None
    affordable: bool
    peak_rss_bytes: int | None
    inv_freq: list[float] | None
    inv_freq_unscaled: list[float] | None
    attention_factor: float


class MethodEntry(_OfSomeMethods):
    """The measurement of one method: losses in nats per token, times in seconds."""

    name: str
    rope_parameters: dict[str, Any] | None
    max_position_embeddings: int
    loss_by_block: list[float]
    ci_by_block: list[Pair | None]
    loss_within: float
    loss_beyond: float | None
    difference_within: float
    difference_within_ci: Pair | None
    difference_beyond: float | None
    difference_beyond_ci: Pair | None
    loss_by_window_and_block: list[list[float]]
    seconds: float
    same_as: str | None


class _OfSomeDocuments(TypedDict, total=False):
    """The entries that a document has if they were measured, and that records of earlier versions lack."""

    audits: list[dict[str, Any]]
    environment: dict[str, Any]
    left_out: list[str]
    use: list[dict[str, Any]]
    use_details: dict[str, Any]
    retrieval: Any  # rows; the first version had a table
    retrieval_details: dict[str, Any]
    scaling_reading: dict[str, Any] | None


class Document(_OfSomeDocuments):
    """The doctor's document; lengths are in tokens, `blocks` are [start, end) positions."""

    model: str
    trained_length: int
    target: int
    audit: dict[str, Any]
    lint: list[dict[str, Any]]
    protocol: dict[str, Any]
    blocks: list[list[int]]
    methods: list[MethodEntry]
    verdict: VerdictEntry
    recommended: str | None


NEEDED = ("model", "trained_length", "target", "audit", "lint", "protocol", "blocks", "methods")


def checked(content: Mapping[str, Any]) -> Document:
    """Return a document whose entries have the types of `Document`; a record of an earlier version gets a headline.

    Raises `RopeError` if an entry is missing or has a different type.
    """
    complete = {**content, "verdict": _verdict_of(content)}
    complete.setdefault("recommended", None)
    wrong = next(_mismatches(complete, Document, ""), None)
    if wrong is not None:
        raise RopeError(
            "report: the record lacks something, or holds it in another form.",
            facts={"model": str(content.get("model")), "entry": wrong},
            cure="Write it again with this version: ropewalk doctor MODEL --json FILE.",
        )
    return cast("Document", complete)


def _verdict_of(content: Mapping[str, Any]) -> Any:
    """Return the verdict with a headline, also of the records of versions that wrote one sentence, or no verdict."""
    verdict = content.get("verdict")
    if verdict is None:
        old = content.get("recommendation") or {}
        headline = "This record was made before the doctor gave verdicts."
        reasons = ["What it recommended then:", *(old[key] for key in ("reason", "crop_sentence") if old.get(key))]
        known = {"headline": headline, "reasons": reasons, "sentence": " ".join([headline, *reasons]), "evidence": []}
        return {**dict.fromkeys(get_type_hints(VerdictEntry)), **known, "method": content.get("recommended")}
    if isinstance(verdict, dict) and "headline" not in verdict and "sentence" in verdict:
        method = f" with {verdict['method']}" if verdict.get("method") else ""
        headline = f"{str(verdict.get('action')).capitalize()}{method}."
        return {**verdict, "headline": headline, "reasons": [verdict["sentence"]]}
    return verdict


def _mismatches(value: Any, hint: Any, where: str) -> Iterator[str]:
    """Yield the entries of a JSON value that lack or contradict their types."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if is_typeddict(hint) and isinstance(value, dict):
        for name, inner in get_type_hints(hint).items():
            if name in value:
                yield from _mismatches(value[name], inner, f"{where}.{name}".lstrip("."))
            elif name in hint.__required_keys__:
                yield f"{where}.{name} is missing".lstrip(".")
    elif len(kinds) > 1:
        found = [list(_mismatches(value, kind, where)) for kind in kinds]
        yield from min(found, key=len)
    elif get_origin(hint) is list and isinstance(value, list):
        for number, one in enumerate(value):
            yield from _mismatches(one, get_args(hint)[0], f"{where}[{number}]")
    elif hint is not Any:
        kind = get_origin(hint) or (dict if is_typeddict(hint) else hint)
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            yield f"{where} is no {kind.__name__}"


def read_record(path: Path) -> dict[str, Any]:
    """Return the document that `ropewalk doctor --json` (or --report) wrote. `checked` gives it its types.

    Raises `RopeError` if the file contains none.
    """
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
def understood(document: Mapping[str, Any]) -> Iterator[None]:
    """Raise `RopeError` instead of the errors that reading a malformed document causes in the block."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if isinstance(error, RopeError):
            raise
        raise RopeError(
            "report: the record is incomplete or malformed.",
            facts={"model": str(document.get("model")), "error": f"{type(error).__name__}: {error}"},
            cure="Write it again with this version: ropewalk doctor MODEL --json FILE.",
        ) from error


def method_of(document: Mapping[str, Any], name: str | None) -> MethodEntry | None:
    """Return one method's entry, or None if it was not measured."""
    return next((method for method in document["methods"] if method["name"] == name), None)


def short_name(document: Mapping[str, Any]) -> str:
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
