"""Numbers of the figures about rival encodings: read from a record of `ropewalk compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ropewalk.comparison import convergence as curves_of
from ropewalk.comparison import summarise
from ropewalk.comparison.record import read_record
from ropewalk.errors import RopeError
from ropewalk.figures import comparison as draw_comparison
from ropewalk.gallery.entry import Entry, Says

RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"  # of a checkout
Record = Annotated[str, Says("a results.jsonl of `ropewalk compare`; none: this checkout's benchmarks/results")]


def recorded() -> Path | None:
    """Return the newest record `compare*.jsonl` of this checkout by name, or None."""
    return max(RESULTS.glob("compare*.jsonl"), default=None)


def has_record() -> bool:
    """Whether there is a record to draw without naming one."""
    return recorded() is not None


def comparison(record: Record = "") -> dict[str, Any]:
    """Loss by length of each encoding, and of rope under each scaling, each with its interval over seeds."""
    first, lines = _read(record)
    trained = first["settings"]["seq_len"]
    plain: dict[str, list[Any]] = {}
    scaled: dict[str, list[Any]] = {}
    for row in summarise(lines, trained):
        if row.loss is None:
            continue
        if row.scaling is None:
            plain.setdefault(row.encoding, []).append((row.length, row.loss, row.interval))
        elif row.encoding == "rope":
            scaled.setdefault(row.scaling, []).append((row.length, row.loss, row.interval))
    if scaled:
        start = [point for point in plain["rope"] if point[0] == trained]
        scaled = {"rope": plain["rope"], **{name: start + points for name, points in scaled.items()}}
    return {"encodings": plain, "scalings": scaled, "trained_length": trained, "note": _note(first)}


def convergence(record: Record = "") -> dict[str, Any]:
    """Validation loss of each encoding by tokens trained on."""
    first, lines = _read(record)
    curves = {
        curve.encoding: list(zip(curve.tokens, curve.loss, curve.intervals, strict=True)) for curve in curves_of(lines)
    }
    return {"curves": curves, "note": _note(first)}


def _read(record: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    path = Path(record) if record else recorded()
    if path is None:
        raise RopeError(
            "figure: there is no record of a comparison.",
            facts={"looked for": "benchmarks/results/compare*.jsonl"},
            cure="Make one: ropewalk compare --out FOLDER; then --set record=FOLDER/results.jsonl.",
        )
    return read_record(path)


def _note(first: dict[str, Any]) -> str:
    settings = first["settings"]
    tokens = settings["steps"] * settings["batch_size"] * settings["seq_len"] / 1e6
    seeds = len(settings["seeds"])
    bands = f", {seeds} seeds; bars: 95 % t interval over seeds" if seeds > 1 else ", one seed"
    return f"size {settings['size']}, trained on {tokens:.1f}M tokens at {settings['seq_len']} tokens{bands}"


ENTRIES = (
    Entry(
        100,
        "comparison",
        "loss against length for each encoding, and for each scaling",
        comparison,
        draw_comparison.loss_by_length,
        has_record,
    ),
    Entry(
        110,
        "convergence",
        "loss against training for each encoding",
        convergence,
        draw_comparison.convergence,
        has_record,
    ),
)
