"""The explorer: one HTML page of interactive pictures, and its numbers in the form of web/src/data.ts."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
import webbrowser
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from ropewalk.atomic_io import write_whole
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.errors import RopeError
from ropewalk.figures.explorer_model import packed_model
from ropewalk.figures.inline import css_look, embedded
from ropewalk.methods import METHODS
from ropewalk.methods.ropes import Reach
from ropewalk.methods.table import Method
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.extensions import Extension
from ropewalk.version import __version__

FACTORS = (2, 4, 8, 16, 32)
"""Factors of the tables of methods, which the page shows for a method that it cannot compute."""

LONGEST_OPENED = 131_072  # of a model that a command opens: one or two seconds


def preset_entries(source: Checkpoint, title: str, name: str, longest: int = LONGEST_OPENED) -> list[dict[str, Any]]:
    """Return an entry for each rope of a model, named by layer type if there are several.

    Tables of methods have targets up to `longest` tokens, and twice the trained length in any case.
    """
    several, entries = len(source.ropes.rotating) > 1, []
    for label, rope in source.ropes.rotating.items():
        if rope.num_axes > 1:
            continue
        length = rope.trained_length
        entry = {
            "id": f"{name}.{label}" if several else name,
            "title": f"{title}, {str(label).replace('_', ' ')}" if several else title,
            "headDim": rope.head_dim,
            "interleaved": rope.interleaved,
            "theta": rope.theta,
            "maxLength": rope.max_position_embeddings,
            "trainedLength": length,
            "plain": _numbers(dataclasses.replace(rope, scaling=None).columns_at(length)),
            "invFreq": _numbers(rope.as_trained().columns_at(length)),
            "rule": rule_of(rope),
            "methods": {} if length is None or not rope.can_be_extended else _methods(rope, length, longest),
        }
        entries.append(entry)
    return entries


def _methods(rope: RopeConfig, length: int, longest: int) -> dict[str, list[dict[str, Any]]]:
    """Return tables, by factor, of each method of frequencies that applies to this rope."""
    reaches = [Reach(length, by * length) for by in FACTORS if by == FACTORS[0] or by * length <= longest]
    methods = {name: method for name, method in METHODS.items() if method.scaling is not None}
    tables = {name: [_table(method, rope, reach) for reach in reaches] for name, method in methods.items()}
    return {name: found for name, each in tables.items() if (found := [one for one in each if one is not None])}


def _table(method: Method, rope: RopeConfig, reach: Reach) -> dict[str, Any] | None:
    """Return by how much the method multiplies each pair's frequency at the target; None if it does not apply."""
    try:
        extended = method.rope(rope, reach)
        after, before = extended.columns_at(reach.target), rope.as_trained().columns_at(reach.target)
    except RopeError:
        return None
    return {
        "factor": reach.factor,
        "ratio": _numbers([new / old if old else 1.0 for new, old in zip(after, before, strict=True)]),
        "attentionFactor": round(extended.attention_factor_at(reach.target), 6),
        "rule": rule_of(extended),
    }


def rule_of(rope: RopeConfig) -> dict[str, Any] | None:
    """Return the name and numbers of a rope's rule; None for plain RoPE and for a rule on top of another."""
    rule = rope.scaling
    if rule is None or rule.trained_part is not None:
        return None
    fields = {key: value for key, value in rule.to_dict().items() if key != "rule" and value is not None}
    return {"rope_type": rule.rope_type, **fields}


def _numbers(values: Any) -> list[float]:
    """Return the values with seven significant digits, which suffice for a picture."""
    return [float(f"{value:.7g}") for value in values]


SAMPLED_AT = 4096  # trained tokens at which relative positions are sampled
SAMPLES = 193


def method_entries() -> list[dict[str, Any]]:
    """Return an entry for each method, in the order of tables."""
    return [
        {
            "name": method.name,
            "changes": method.changes,
            "costs": method.costs,
            "config": method.config_note,
            "source": method.source,
            **css_look(method.look),
            "kind": "attention" if method.in_attention else "frequencies" if method.scaling is not None else "other",
            "forgets": method.crops,
            "positions": _positions(method),
        }
        for method in METHODS.values()
    ]


def _positions(method: Method) -> list[dict[str, Any]]:
    """Return the last query's relative position of each key, at each factor; [] if the method changes none."""
    tables = []
    for factor in FACTORS:
        reach = Reach(SAMPLED_AT, factor * SAMPLED_AT)
        extension = None if method.extension is None else method.extension(reach)
        if extension is not None and extension.remaps:
            tables.append({"factor": factor, "at": relative_positions(extension, reach)})
    return tables


def relative_positions(extension: Extension, reach: Reach) -> list[tuple[float, float | None]]:
    """Return (distance, relative position) in trained lengths for the last query; None for a key outside its view.

    >>> from ropewalk.rope.extensions import ReRoPE
    >>> relative_positions(ReRoPE(window=4), Reach(4, 16))[-1]
    (3.75, 1.0)
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


def explorer_data(source: Checkpoint | None = None) -> dict[str, Any]:
    """Return everything that the page reads, as JSON values; the ropes of `source`, a model, are the first presets.

    >>> sorted(explorer_data())[:2]
    ['encodings', 'heads']
    """
    own = [] if source is None else preset_entries(source, f"{source.name} (opened)", "opened")
    return {
        "version": __version__,
        **{name: numbers(name) for name in NUMBERS[1:]},
        "presets": [*own, *numbers("presets")],
        "methods": method_entries(),
        "opened": {"preset": own[0]["id"] if own else None},
    }


NUMBERS = ("presets", "encodings", "heads", "pairings")


def numbers(name: str) -> Any:
    """Return the content of one file of the folder `numbers`; `name`: one of `NUMBERS`."""
    return json.loads(resources.files("ropewalk.figures").joinpath("numbers", f"{name}.json").read_text("utf-8"))


_MARKS = re.compile(r"@@(DATA|MODEL)@@")


def explorer_page(data: Mapping[str, Any], model: str = "") -> str:
    """Return the page as one text, which requests no other file.

    **Arguments:**
    - `data`: the result of `explorer_data`. NaN and infinities become null.
    - `model`: the result of `packed_model`, which the picture of the built-in model decodes on demand.

    >>> "@@DATA@@" in explorer_page({})
    False
    """
    parts = {"DATA": embedded(data), "MODEL": model}
    return _MARKS.sub(lambda mark: parts[mark[1]], built_page())


def picture_page(name: str) -> str:
    """Return the page of one picture, for its still; `name`: its id."""
    data: dict[str, Any] = {"only": name, "opened": {"preset": None}}
    if (key := {"wavelengths": "presets", "pairing": "pairings"}.get(name, name)) in NUMBERS:
        data[key] = numbers(key)
    return explorer_page(data, packed_model() if name == "past" else "")


def built_page() -> str:
    """Return the page of `make web`, without numbers."""
    return resources.files("ropewalk.figures").joinpath("explorer.html").read_text(encoding="utf-8")


def page_of(source: str | None = None) -> str:
    """Return the page, with the ropes of a model first; raise `RopeError` if it cannot be read."""
    return explorer_page(explorer_data(None if source is None else Checkpoint.open(source)), packed_model())


def show(page: str) -> str:
    """Write the page into a new temporary folder, open it in a browser, and return the line to print.

    The file is not deleted: the browser may read it after this process ends.
    """
    path = Path(tempfile.mkdtemp(prefix="ropewalk-")) / "explorer.html"
    write_whole(path, page)
    opened = webbrowser.open(path.as_uri())
    return str(path) if opened else f"No browser could be opened. The page is here: {path}"
