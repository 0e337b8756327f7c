"""The figures by name: each entry computes its numbers, draws them, and writes files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ropewalk.atomic_io import check_writable, write_whole
from ropewalk.comparison import convergence as curves_of
from ropewalk.comparison import summarise
from ropewalk.comparison.record import read_record
from ropewalk.errors import RopeError
from ropewalk.figures import results as draw_comparison
from ropewalk.figures.entry import Entry, Says, Value, known
from ropewalk.figures.model_numbers import HEADS_ENTRIES, PAIRING_ENTRIES
from ropewalk.figures.rope_numbers import (
    PRECISION_ENTRIES,
    REACH_ENTRIES,
    SCORES_ENTRIES,
    TABLES_ENTRIES,
    TURNING_ENTRIES,
)
from ropewalk.figures.style import render
from ropewalk.optional import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


COMPARISON_ENTRIES = (
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


ENTRIES: dict[str, Entry] = {
    entry.name: entry
    for entry in sorted(
        (
            *TURNING_ENTRIES,
            *REACH_ENTRIES,
            *TABLES_ENTRIES,
            *SCORES_ENTRIES,
            *PRECISION_ENTRIES,
            *HEADS_ENTRIES,
            *PAIRING_ENTRIES,
            *COMPARISON_ENTRIES,
        ),
        key=lambda entry: entry.order,
    )
}
"""Every figure by its name, in the order of the lesson."""


def draw(name: str, **settings: Value) -> Figure:
    """The figure of this name under these settings, as `ropewalk figure NAME --set key=value` draws it.

    `ENTRIES[name].parameters` are its settings with types, bounds and defaults. Raises `RopeError` for an unknown name
    or setting, or a bad value.

    >>> len(draw("waves", head_dim=128, pairs=(0, 16, 32)).axes)
    3
    """
    return known(ENTRIES, name).figure(**settings)


KINDS = ("png", "svg")


def targets(out: Path) -> list[Path]:
    """The files that `out` names: itself, or without a known ending both; checked before any work is done.

    A name such as "v1.2" has no known ending; another picture format is refused.
    """
    need("matplotlib", extra="figures")
    ending = out.suffix[1:].lower()
    if ending in ("pdf", "jpg", "jpeg", "eps", "ps", "webp", "gif", "tif", "tiff"):
        raise RopeError(
            "figure: a figure is a .png or an .svg file.",
            facts={"--out": str(out)},
            cure="Name one of these, or leave the ending out to have both.",
        )
    chosen = [out] if ending in KINDS else [out.with_name(f"{out.name}.{kind}") for kind in KINDS if out.name]
    for path in chosen or [out]:
        check_writable(path, new_folder=True)
    return chosen


def write(figure: Figure, paths: list[Path]) -> None:
    """The figure into every file, in the kind that its ending says."""
    for path, content in [(path, render(figure, path.suffix[1:].lower())) for path in paths]:
        write_whole(path, content)
