"""What engines did with small models of many families: the record of `make engines` in short form.

`measured.json` is written by `make docs-tables`, with the tables of docs/engines.md, from
benchmarks/results/engines.json. For each engine it has the version, the date, and rows of a block, the spelling of the
config (or "any"), codes of what was wrong, and the families:

- `unscaled`, `theta`, `partial`, `window`: without the scaling, with a theta of its own, rotating every feature,
  without windows. `attention_factor`, `truncate`, `untruncated`: yarn without this key, with rounded or unrounded ends
  of the ramp. `long`: the long factors at every length. `sliding`: the attention factor on windowed layers, too.
  `queries`: not scaled by position. `nan`: no numbers beyond the original length.
- `not loaded`. `not the rope`: it differs as much with the plain rope. `unknown`.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _record() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files(__package__ or "") / "measured.json").read_text("utf-8"))
    return content


def about(engine: str) -> str:
    """Return an engine's name, version, and the date of its run."""
    own = _record()[engine]
    return f"{own['version']}, {own['date']}"


@cache
def _family(engine: str, family: str) -> dict[tuple[str, str], tuple[str, ...]]:
    rows = _record().get(engine, {"rows": ()})["rows"]
    return {(block, spelling): tuple(codes) for block, spelling, codes, families in rows if family in families.split()}


def measured(engine: str, family: str, block: str, spelling: str) -> tuple[str, ...] | None:
    """Return the codes of what an engine did wrong with a block; None if it was not run.

    A config with both spellings that was not run is read as the better one: each class reads one of them.

    >>> measured("mlx", "gemma2", "yarn", "extend apply")
    ('unscaled',)
    >>> measured("vllm", "llama", "yarn", "rope_scaling")
    ()
    """
    rows = _family(engine, family)
    own = rows.get((block, spelling), rows.get((block, "any")))
    if own is not None or spelling != "extend apply":
        return own
    either = [rows[block, one] for one in ("rope_scaling", "rope_parameters") if (block, one) in rows]
    return min(either, key=lambda codes: ("unscaled" in codes or "not loaded" in codes, len(codes)), default=None)
