"""The figures by name: each entry computes its numbers from models and ropes and hands them to `ropewalk.figures`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.figures import comparison as draw_comparison
from ropewalk.figures import maps as draw_maps
from ropewalk.figures import pairing as draw_pairing
from ropewalk.figures import precision as draw_precision
from ropewalk.figures import reach as draw_reach
from ropewalk.figures import scores as draw_scores
from ropewalk.figures import tables as draw_tables
from ropewalk.figures import turning as draw_turning
from ropewalk.gallery import comparison, heads, pairing, precision, reach, scores, tables, turning
from ropewalk.gallery.entry import Entry, Value, known

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ENTRIES", "Entry", "draw"]

_ALL = (
    Entry("clocks", "one pair turning, and a clock for every pair", turning.clocks, draw_turning.clocks),
    Entry(
        "waves",
        "sine and cosine of each pair's angle by position, the trained length marked",
        turning.waves,
        draw_turning.waves,
    ),
    Entry(
        "tables", "the sinusoidal table, RoPE's angles and a trained learned table", tables.tables, draw_tables.tables
    ),
    Entry(
        "shift",
        "a score stays when query and key both move, and changes when one does",
        scores.shift,
        draw_scores.shift,
    ),
    Entry(
        "decay",
        "score against distance: q = k, random q and k, heads of a trained model",
        heads.decay,
        draw_scores.decay,
    ),
    Entry("maps", "attention maps with rotation, without it, and with all positions moved", heads.maps, draw_maps.maps),
    Entry("unseen", "angles never seen in training, before and after each scaling", reach.unseen, draw_reach.unseen),
    Entry("ratios", "each pair's frequency under every scaling, on real configs", reach.ratios, draw_reach.ratios),
    Entry(
        "wavelengths",
        "wavelengths of real models against their trained lengths",
        reach.wavelengths,
        draw_reach.wavelength_strips,
    ),
    Entry(
        "comparison",
        "loss against length for each encoding, and for each scaling",
        comparison.comparison,
        draw_comparison.loss_by_length,
        comparison.has_record,
    ),
    Entry(
        "convergence",
        "loss against training for each encoding",
        comparison.convergence,
        draw_comparison.convergence,
        comparison.has_record,
    ),
    Entry(
        "pairing", "interleaved and half-split, and what confusing them costs", pairing.pairing, draw_pairing.pairing
    ),
    Entry("axial", "axial 2D: one patch against all others", scores.axial, draw_scores.axial),
    Entry(
        "precision",
        "what 32-bit angles and 16-bit tables cost by position",
        precision.precision,
        draw_precision.precision,
    ),
)
ENTRIES: dict[str, Entry] = {entry.name: entry for entry in _ALL}
"""Every figure by its name, in the order of the lesson."""


def draw(name: str, **settings: Value) -> Figure:
    """The figure of this name under these settings, as `ropewalk figure NAME --set key=value` draws it.

    `ENTRIES[name].parameters` are its settings with types, bounds and defaults. Raises `RopeError` for an unknown name
    or setting, or a bad value.

    >>> len(draw("waves", head_dim=128, pairs=(0, 16, 32)).axes)
    3
    """
    return known(ENTRIES, name).figure(**settings)
