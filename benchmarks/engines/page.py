"""The record of the matrix as tables of docs/engines.md and in short form, for scripts/docs_records.py."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from typing import Any

TITLES = {"mlx": "mlx-lm", "llama.cpp": "llama.cpp", "onnx": "ONNX Runtime GenAI", "vllm": "vLLM",
          "sglang": "SGLang, from its rotary code, not from a running server"}  # fmt: skip
PACKAGES = {"llama.cpp": "xllamacpp "}
SPELLINGS = {"rope_parameters": "`rope_parameters` (transformers 5)", "rope_scaling": "`rope_theta`, `rope_scaling`",
             "extend apply": "`extend apply`"}  # fmt: skip
BLOCKS = ("plain", "linear", "dynamic", "yarn", "yarn, attention_factor 1.3", "yarn, truncate false",
          "yarn, betas 8 and 2", "yarn, mscale 0.7 and 0.5", "llama3", "longrope, long", "longrope, short",
          "proportional", "M-RoPE sections, default", "M-RoPE sections, yarn", "window", "window, yarn")  # fmt: skip
CODES = {
    "no scaling": "unscaled", "theta ": "theta", "partial factor ignored": "partial", "no window": "window",
    "attention_factor ignored": "attention_factor", "with rounded bounds": "truncate",
    "without rounded bounds": "untruncated", "the long factors": "long", "on sliding layers": "sliding",
    "queries not scaled": "queries", "NaN": "nan",
}  # fmt: skip
"""Parts of the names of wrong ropes, and their codes in src/ropewalk/serving/measured.json."""
Cell = dict[str, Any]


def said(cell: Cell) -> str:
    """Return the outcome of a cell in words."""
    if cell["outcome"] == "named":
        return re.sub(r" after \d+ tokens", " beyond the original length", cell["name"])
    return {"other": "not the rope", "not loaded": "does not load", "not expressed": "no form"}.get(
        cell["outcome"], cell["outcome"]
    )


def summary(cells: list[Cell]) -> str:
    """Return the outcomes of one block and spelling, the most frequent first, with the families of the others."""
    groups: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        groups[said(cell)].append(cell["family"])
    parts = []
    for place, (name, families) in enumerate(sorted(groups.items(), key=lambda one: (-len(one[1]), one[0]))):
        text = name if name == "equal" else f"**{name}**"
        which = f": {', '.join(sorted(families))}" if place and name != "no form" else ""
        parts.append(f"{text} ({len(families)}{which})")
    return "; ".join(parts)


def of_engine(name: str, about: Cell, cells: list[Cell]) -> str:
    """Return the section of one engine."""
    loaded = {cell["family"] for cell in cells if cell["outcome"] not in ("not loaded", "not expressed")}
    absent = {cell["family"] for cell in cells} - loaded
    shown = [cell for cell in cells if cell["family"] in loaded]
    spellings = [one for one in SPELLINGS if any(cell["spelling"] == one for cell in shown)]
    heads = ["GGUF by ropewalk"] if name == "llama.cpp" else [SPELLINGS[one] for one in spellings]
    lines = [f"| block | {' | '.join(heads)} |", "| --- |" + " --- |" * len(heads)]
    for block in BLOCKS:
        rows = [[cell for cell in shown if (cell["block"], cell["spelling"]) == (block, one)] for one in spellings]
        if any(rows):
            lines.append(f"| {block} | {' | '.join(summary(row) if row else '' for row in rows)} |")
    judged = [cell for cell in shown if cell["outcome"] not in ("not loaded", "not expressed")]
    unknown = sum(cell["outcome"] == "unknown" for cell in judged)
    counts = {kind: sum(cell["outcome"] == kind for cell in judged) for kind in ("equal", "named", "other")}
    kind = "configs" if name == "sglang" else "checkpoints"
    text = (
        f"{PACKAGES.get(name, '')}{about['version']}, {about['date']}: {len(loaded)} families, {len(judged)} {kind}; "
        f"{counts['equal']} equal, {counts['named']} with a wrong rope that is named, {counts['other']} that differ "
        f"for another reason, {unknown} unknown. {about['seconds'] / 60:.0f} minutes, with other work on the machine."
    )
    if absent:
        text += f" Not loaded: {', '.join(sorted(absent))}."
    return "\n".join([f"### {TITLES[name]}", "", *lines, "", text])


def drawn(record: Cell) -> str:
    """Return the tables of all engines."""
    cells = {name: [cell for cell in record["cells"] if cell["engine"] == name] for name in TITLES}
    return "\n\n".join(of_engine(name, record["engines"][name], of) for name, of in cells.items() if of)


def short(record: Cell) -> str:
    """Return src/ropewalk/serving/measured.json: what each engine did wrong with each block and spelling, by family."""
    engines = {}
    for name, about in record["engines"].items():
        if name == "sglang":  # its ropes without a running server: those that were read
            continue
        rows: dict[tuple[Any, ...], set[str]] = defaultdict(set)
        for cell in record["cells"]:
            if cell["engine"] != name or cell["outcome"] == "not expressed":
                continue
            named = cell["name"] if cell["outcome"] == "named" else ""
            codes = [code for part, code in CODES.items() if part in named]
            if cell["outcome"] not in ("equal", "named"):
                codes = ["not the rope" if cell["outcome"] == "other" else cell["outcome"]]
            elif (cell["outcome"] == "equal") == bool(codes):
                raise ValueError(f"no code for {cell}")
            rows[cell["block"], cell["spelling"], *codes].add(cell["family"])
        kinds: dict[tuple[str, str], set[tuple[str, ...]]] = defaultdict(set)  # of what was wrong, by family and block
        for (block, _, *codes), families in rows.items():
            for family in families:
                kinds[family, block].add(tuple(codes))
        if all(len(found) == 1 for found in kinds.values()):  # the spelling makes no difference
            joined: dict[tuple[Any, ...], set[str]] = defaultdict(set)
            for (block, _, *codes), families in rows.items():
                joined[block, "any", *codes] |= families
            rows = joined
        lines = [json.dumps([block, spelling, codes, " ".join(sorted(families))])
                 for (block, spelling, *codes), families in sorted(rows.items())]  # fmt: skip
        version = f"{PACKAGES.get(name, f'{TITLES[name]} ')}{about['version']}"
        head = f'"version": {json.dumps(version)}, "date": {json.dumps(about["date"])}'
        engines[name] = f'{json.dumps(name)}: {{{head}, "rows": [\n' + ",\n".join(lines) + "]}"
    return "{" + ",\n".join(engines[name] for name in sorted(engines)) + "}\n"
