"""The doctor's record: the types of its JSON document, and functions that read and search it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

from ropewalk.atomic_io import read_json
from ropewalk.errors import RopeError
from ropewalk.statistics import difference

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
    command: str | None
    sentence: str


class BesideEntry(TypedDict):
    """The best method that only Python can run, next to the one that the verdict names."""

    method: str
    length: int
    sentence: str
    call: str | None


class _OfSomeVerdicts(TypedDict, total=False):
    """The entries of a verdict that records of earlier versions lack; `reach_use` is only in those."""

    call: str | None
    length: int | None
    reach_copies: int | None
    reach_use: int | None
    engine: str | None
    beside: BesideEntry | None
    stopped: str | None


class VerdictEntry(_OfSomeVerdicts):
    """The verdict; see `ropewalk.diagnosis.verdict.Verdict`. `action` is None for records that contain no verdict."""

    action: str | None
    headline: str
    reasons: list[str]
    sentence: str
    method: str | None
    config: dict[str, Any] | None
    reach_loss: int | None
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
    crop_difference_by_block: list[float] | None
    crop_difference_by_block_ci: list[Pair | None] | None


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


CopyRow = TypedDict(
    "CopyRow",
    {
        "method": str,
        "length": int,
        "from": int,
        "to": int,
        "distance": float,
        "gain": float,
        "interval": Pair | None,
        "spans": int,
        "windows": int,
        "decides": bool,
        "result": str,
    },
)
"""The gain of spans that lie `from` to `to` tokens before the end of a context of `length` tokens."""


class CopiesEntry(TypedDict):
    """What was copied; gains in nats per token, lengths and distances in tokens.

    - `control`: the gain at the trained length, {gain, interval, spans, windows}; None in a record that lacks it.
    - `bound`: the gain that counts as copying; None if the model does not copy at its trained length.
    """

    trained_length: int
    control: dict[str, Any] | None
    bound: float | None
    rows: list[CopyRow]
    notes: list[str]
    sentences: list[str]


class MeasuredEntry(TypedDict):
    """A mean and its interval."""

    mean: float
    interval: Pair | None


class LookEntry(TypedDict):
    """What was concluded after a planned number of windows."""

    windows: int
    seconds: float | None
    action: str
    method: str | None
    length: int | None
    headline: str
    crop_difference: dict[str, MeasuredEntry]
    copies: dict[str, MeasuredEntry]


class _OldUse(TypedDict):
    """A row of the test of use that records of earlier versions contain."""

    method: str
    test: str
    distance: int
    gain: float
    interval: Pair | None


class _OfSomeDocuments(TypedDict, total=False):
    """The entries that a document has if they were measured, and that records of earlier versions lack."""

    audits: list[dict[str, Any]]
    environment: dict[str, Any]
    left_out: list[str]
    stopped: str | None
    copies: CopiesEntry | None
    looks: list[LookEntry]
    use: list[_OldUse]
    use_details: dict[str, Any]
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
    if wrong is None and content.get("copies") is None and content.get("use"):
        complete["copies"] = copies_of_use(content)
        wrong = next(_mismatches(complete, Document, ""), None)
    if wrong is not None:
        raise RopeError(
            "report: the record lacks something, or holds it in another form.",
            facts={"model": str(content.get("model")), "entry": wrong},
            cure="Write it again with this version: ropewalk doctor MODEL --json FILE.",
        )
    return cast("Document", complete)


OLD_TEST = "Measured by an earlier version: blocks of random words, written into the window and repeated at its end."


def copies_of_use(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the copies of a record whose earlier test repeated blocks of random words; other old tests are left out.

    The copy test's control and threshold become those of the copies.
    """
    trained, rows = content["trained_length"], []
    for row in sorted((row for row in content["use"] if row["test"] == "copy"), key=lambda row: row["distance"]):
        needed, interval, within = row.get("needed"), row["interval"], bool(row.get("control"))
        if interval is None or needed is None or interval[0] <= needed <= interval[1]:
            result = "open"
        else:
            result = "shown" if interval[0] > needed else "refuted"
        length = trained if within else content["target"]
        same = {key: row[key] for key in ("method", "distance", "gain", "interval")}
        counts = {"spans": row.get("tokens", 0), "windows": row.get("windows", 1)}
        place = {"length": length, "from": row["distance"], "to": row["distance"]}
        rows.append({**same, **place, **counts, "decides": not within, "result": result})
    return {
        "trained_length": trained,
        "control": None,
        "bound": next((row["needed"] for row in content["use"] if row.get("needed") is not None), None),
        "rows": rows,
        "notes": [OLD_TEST],
        "sentences": list((content.get("use_details") or {}).get("summary") or []),
    }


def crop_differences(document: Mapping[str, Any]) -> dict[str, tuple[list[float], list[Pair | None]]]:
    """Return for each label the loss minus crop's in each block, paired by window, with intervals; {} without crop.

    A record of an earlier version lacks them: they are computed from its windows. Windows that a method lacks, because
    it was refuted before, are left out of its pairs.
    """
    entries = {method["name"]: method for method in document["methods"]}
    found: dict[str, tuple[list[float], list[Pair | None]]] = {}
    if "crop" not in entries:
        return found
    against = entries["crop"]["loss_by_window_and_block"]
    for name, label in labels(document).items():
        values = entries[name].get("crop_difference_by_block")
        if values is not None:
            intervals = entries[name].get("crop_difference_by_block_ci") or [None] * len(values)
            found[label] = (list(values), list(intervals))
            continue
        pairs = list(zip(entries[name]["loss_by_window_and_block"], against, strict=False))
        apart = [
            difference([own[block] for own, _ in pairs], [other[block] for _, other in pairs])
            for block in range(len(document["blocks"]))
        ]
        found[label] = ([mean for mean, _ in apart], [None if band is None else list(band) for _, band in apart])
    return found


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
    document = read_json(path, "report", "Give a file of `ropewalk doctor MODEL --json FILE`.")
    missing = [key for key in NEEDED if key not in document]
    if missing:
        raise RopeError(
            "report: this is not a record of the doctor's measurement.",
            facts={"file": str(path), "missing": missing},
            cure="Give a file of `ropewalk doctor MODEL --json FILE` (`ropewalk inspect` measures nothing).",
        )
    return document


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


def stated_length(document: Mapping[str, Any]) -> int | None:
    """Return the length that a record's verdict extends to; None: the target, as in records of earlier versions."""
    length = document["verdict"].get("length")
    return None if length is None or int(length) == int(document["target"]) else int(length)


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


def labels(document: Mapping[str, Any]) -> dict[str, str]:
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
