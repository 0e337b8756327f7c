"""The figures by name: each entry computes its numbers and draws them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ropewalk.comparison import convergence as curves_of
from ropewalk.comparison import summarise
from ropewalk.comparison.record import read_record
from ropewalk.errors import RopeError
from ropewalk.figures import model_numbers, results, rope_numbers, ropes, scores
from ropewalk.figures.entry import Entry, Meaning, Value, known

if TYPE_CHECKING:
    from matplotlib.figure import Figure


RESULTS = Path(__file__).resolve().parents[3] / "benchmarks" / "results"  # of a checkout
Record = Annotated[str, Meaning("a results.jsonl of `ropewalk compare`; none: this checkout's benchmarks/results")]


def recorded() -> Path | None:
    """Return the newest record `compare*.jsonl` of this checkout by name, or None."""
    return max(RESULTS.glob("compare*.jsonl"), default=None)


def comparison(record: Record = "") -> dict[str, Any]:
    """Return the loss by length of each encoding, and of rope under each scaling, with intervals over seeds."""
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
    """Return the validation loss of each encoding by training tokens."""
    first, lines = _read(record)
    curves = {
        curve.encoding: list(zip(curve.tokens, curve.loss, curve.intervals, strict=True)) for curve in curves_of(lines)
    }
    return {"curves": curves, "note": _note(first)}


def _read(record: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    path = Path(record) if record else recorded()
    if path is None:
        raise RopeError(
            "figure: this figure needs a record of a comparison, and there is none.",
            facts={"searched": "benchmarks/results/compare*.jsonl"},
            cure="Run ropewalk compare --out FOLDER, then pass --set record=FOLDER/results.jsonl.",
        )
    return read_record(path)


def _note(first: dict[str, Any]) -> str:
    settings = first["settings"]
    tokens = settings["steps"] * settings["batch_size"] * settings["seq_len"] / 1e6
    seeds = len(settings["seeds"])
    bands = f", {seeds} seeds; bars: 95 % t interval over seeds" if seeds > 1 else ", one seed"
    return f"size {settings['size']}, trained on {tokens:.1f}M tokens at {settings['seq_len']} tokens{bands}"


def _has_record() -> bool:
    return recorded() is not None


_ENTRIES = (
    Entry(
        "order",
        "attention weights of two sentences with the same words, without positions and with rotation",
        model_numbers.order,
        scores.order,
    ),
    Entry("clocks", "one pair rotating, and a clock for every pair", rope_numbers.clocks, ropes.clocks),
    Entry(
        "waves",
        "sine and cosine of each pair's angle by position, the trained length marked",
        rope_numbers.waves,
        ropes.waves,
    ),
    Entry(
        "tables",
        "the sinusoidal table, RoPE's angles and a trained learned table",
        rope_numbers.tables,
        ropes.tables,
    ),
    Entry("layer", "where an attention layer rotates, with shapes", model_numbers.layer, scores.layer),
    Entry(
        "shift",
        "a score is unchanged when query and key both move, and changes when one does",
        rope_numbers.shift,
        scores.shift,
    ),
    Entry(
        "decay",
        "score against distance: q = k, random q and k, heads of a trained model",
        model_numbers.decay,
        scores.decay,
    ),
    Entry(
        "maps",
        "attention maps with rotation, without it, and with all positions moved",
        model_numbers.maps,
        scores.maps,
    ),
    Entry(
        "unseen",
        "angles never seen in training, before and after each scaling",
        rope_numbers.unseen,
        ropes.unseen,
    ),
    Entry(
        "ratios",
        "each pair's frequency under every scaling, on real configs",
        rope_numbers.ratios,
        ropes.ratios,
    ),
    Entry(
        "wavelengths",
        "wavelengths of real models compared with their trained lengths",
        rope_numbers.wavelengths,
        ropes.wavelength_strips,
    ),
    Entry(
        "comparison",
        "loss against length for each encoding, and for each scaling",
        comparison,
        results.loss_by_length,
        _has_record,
    ),
    Entry("convergence", "loss against training for each encoding", convergence, results.convergence, _has_record),
    Entry(
        "pairing",
        "interleaved and half-split, and what confusing them costs",
        model_numbers.pairing,
        scores.pairing,
    ),
    Entry("axial", "axial 2D: one patch against all others", rope_numbers.axial, scores.axial),
    Entry(
        "cache",
        "the distance between query and cached key, and three mistakes that change it",
        rope_numbers.cache,
        scores.cache,
    ),
    Entry(
        "precision",
        "what 32-bit angles and 16-bit tables cost by position",
        rope_numbers.precision,
        scores.precision,
    ),
)
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
"""Every figure by its name, in the order of the lesson."""


def draw(name: str, **settings: Value) -> Figure:
    """Return the figure of `ropewalk figure NAME --set key=value`.

    **Arguments:**
    - `name`: a key of `ENTRIES`.
    - `settings`: values of `ENTRIES[name].parameters`, which contains types, bounds and defaults.

    **Raises:** `RopeError` for an unknown name or setting, or an invalid value.

    >>> len(draw("waves", head_dim=128, pairs=(0, 16, 32)).axes)
    3
    """
    return known(ENTRIES, name).figure(**settings)
