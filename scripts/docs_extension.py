"""Tables of methods and tuning, with the sentences about them; `docs_records.py` includes them."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

Record = dict[str, Any]
DRAWN = runpy.run_path(str(Path(__file__).with_name("docs_drawn.py")))
document, table, where = (DRAWN[name] for name in ("document", "table", "where"))


TITLES = {
    "transformers": "transformers",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llama.cpp": "llama.cpp",
    "ollama": "Ollama",
}
MEMORY = ("cache_bytes", "temporary_bytes")
FORGETS = "†"  # the mark of baselines in the table


def served(name: str) -> list[str]:
    """Return for each engine of TITLES whether it runs a method: yes, yes with a caveat of its own (\\*), or no."""
    from ropewalk.errors import RopeError
    from ropewalk.methods import METHODS
    from ropewalk.serving.serve import serve_config

    cells = []
    for engine in TITLES:
        try:
            settings = serve_config("tiny", engine, method=name, target=1024 if METHODS[name].extends else None)
        except RopeError:
            cells.append("no")
            continue
        own = any(caveat.rules and len(caveat.engines) == 1 for caveat in settings.caveats)
        cells.append("yes\\*" if own else "yes")
    return cells


def methods() -> str:
    """Return every method: effect, form in config.json, engines, cost relative to plain, source."""
    from ropewalk.methods import METHODS

    record = document("method-costs.json")
    plain, tokens = record["methods"]["plain"], record["tokens"]
    rows = []
    for name, method in METHODS.items():
        cost = record["methods"].get(name)
        cells = ["", "", ""]
        if cost is not None:
            memory = sum(cost[kind] for kind in MEMORY) / sum(plain[kind] for kind in MEMORY)
            cells = [f"{cost['decode']['ratio']:.2f}", f"{cost['prefill']['ratio']:.2f}", f"{memory:.2f}"]
        source = f"[{method.source}](https://arxiv.org/abs/{method.source})" if method.source else ""
        title = f"[`{name}`](#{name})" + (f" {FORGETS}" if method.forgets else "")
        rows.append([title, method.changes, method.config or "none", *served(name), *cells, source])
    heads = ["method", "effect", "in config.json", *TITLES.values(), "decode", "prefill", "memory",
             "arXiv"]  # fmt: skip
    drawn = table(heads, rows)
    mebibytes = sum(plain[kind] for kind in MEMORY) / 2**20
    return (
        f"{drawn}\n\n{FORGETS}: a baseline that forgets distant tokens; the doctor never recommends it. \\*: with a "
        "caveat of that engine for this rule, which `ropewalk serve-config` prints. Every method also runs in Python "
        f"(`rw.attach`).\n\nCost is relative to `plain`. Decode: one token after {tokens:,}. Prefill: {tokens:,} "
        f"tokens. Both are medians of processor time ({plain['decode']['p50']:,.0f} and "
        f"{plain['prefill']['p50'] / tokens:,.0f} microseconds a token for `plain`). Memory: cache and temporary "
        f"memory of a prefill in chunks of 1,024 tokens, without weights ({mebibytes:.0f} MiB for `plain`). Layers: "
        f"{record['layers']}, float32, {where(record)}, at a load of {record['load'][0]:g}. Methods of frequencies do "
        "the same work as `plain`, so the spread of their ratios is the error of the others."
    )


TABLES: dict[str, Callable[[], str]] = {"methods": methods}
