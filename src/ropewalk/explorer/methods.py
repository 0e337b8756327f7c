"""Every registered method as the explorer describes and draws it; a new method's file is all that a new one needs."""

from __future__ import annotations

from typing import Any

import torch

from ropewalk.attention.extensions import Extension
from ropewalk.explorer.presets import FACTORS
from ropewalk.methods import METHODS
from ropewalk.methods.method import Method
from ropewalk.methods.reach import Reach
from ropewalk.report.interactive import css_look

SAMPLED_AT = 4096  # trained tokens at which relative positions are sampled
SAMPLES = 193


def method_entries() -> list[dict[str, Any]]:
    """One entry for each method, in the order of tables."""
    return [_entry(method) for method in METHODS.values()]


def _entry(method: Method) -> dict[str, Any]:
    kind = "attention" if method.in_attention else "frequencies" if method.scaling is not None else "other"
    return {
        "name": method.name,
        "changes": method.changes,
        "costs": method.costs,
        "config": method.config_note,
        "source": method.source,
        **css_look(method.look),
        "kind": kind,
        "needsTuning": method.needs_tuning,
        "forgets": method.forgets,
        "positions": _positions(method),
    }


def _positions(method: Method) -> list[dict[str, Any]]:
    """The relative position at which the last query meets each key, at each factor; [] where none is changed."""
    found = []
    for factor in FACTORS:
        reach = Reach(SAMPLED_AT, factor * SAMPLED_AT)
        extension = None if method.extension is None else method.extension(reach)
        if extension is not None and extension.remaps:
            found.append({"factor": factor, "at": relative_positions(extension, reach)})
    return found


def relative_positions(extension: Extension, reach: Reach) -> list[tuple[float, float | None]]:
    """Pairs of (distance, relative position) in trained lengths for the last query; None where a key is not seen.

    >>> from ropewalk.attention.extensions import StreamingLLM
    >>> relative_positions(StreamingLLM(window=4, sinks=0), Reach(4, 16))[-1]
    (3.75, None)
    """
    last = torch.tensor(reach.target - 1)
    count = min(SAMPLES, reach.target)
    distances = torch.linspace(0, reach.target - 1, count, dtype=torch.float64).round().long()
    keys = last - distances
    at = torch.full((count,), torch.nan, dtype=torch.float64)
    for region in extension.regions():
        inside = (keys >= region.low(last)) & (keys < region.high(last))
        relative = region.query(last) - (torch.zeros_like(keys) if region.key is None else region.key(keys))
        at = torch.where(inside, relative.double(), at)
    pairs = zip(distances.tolist(), at.tolist(), strict=True)
    return [(round(d / reach.trained, 5), None if p != p else round(p / reach.trained, 5)) for d, p in pairs]
