"""The docs page "Which models", made from the record."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

HEAD = """# Which models

Made from `benchmarks/results/parity.json` by `make parity`.

`RopeConfig.from_hf` is compared with every rotary class of transformers {transformers}, built from the defaults of its
config class: inverse frequencies and attention factor (relative error at most 1e-6), and the rotation of random queries
at random positions by the model's own function (absolute error at most 1e-5). Three wrong readings (the other pairing,
theta off by 1 %, one pair fewer) must give another rotation, or the row does not count. A config that states its sizes
alone must give the same rope, or be refused.

**{exact} of {classes} classes are exact, {refused} are refused with a reason{others}.** A refused config raises
`RopeError`; it is never read as something else.

A family is the `model_type` of the config that the class reads. For multi-head latent attention the width is that of
the slice that turns. Families whose code lies beside their weights (ChatGLM, InternLM and others) are tested apart, in
tests/rope/test_remote_code.py.
"""


def page(record: Path, random: Path) -> str:
    """The page of the two records."""
    content = json.loads(record.read_text(encoding="utf-8"))
    rows = content["classes"]
    count = Counter(by_class(rows).values())
    others = count["differs"]
    head = HEAD.format(
        transformers=content["transformers"],
        classes=count.total(),
        exact=count["exact"],
        refused=count["refused"],
        others=f", {others} differ" if others else "",
    )
    refused = [row for row in rows if row["status"] == "refused"]
    exact = [row for row in rows if row["status"] != "refused"]
    runs = json.loads(random.read_text(encoding="utf-8"))["runs"]
    return "\n".join(
        [head, *_random(runs), "", *_causal(content["causal"]), "", *_refused(refused), "", *_exact(exact), ""]
    )


def by_class(rows: list[dict[str, Any]]) -> dict[str, str]:
    """The status of each class: exact where every config that it takes is."""
    order = ["exact", "refused", "differs"]
    found: dict[str, str] = {}
    for row in rows:
        known = found.get(row["class"], "exact")
        found[row["class"]] = max(known, row["status"], key=order.index)
    return found


RANDOM = """## Random configs

Made from `benchmarks/results/parity_random.json`. Each family's configs are drawn at random: heads, widths (odd ones as
well), rope types with odd parameters, old and new spellings, fractions, thetas in each place, layer types. transformers
makes its own rotary module of the config, and the config is read from three sides: the raw JSON (file), the config
object, and the folder that `save_pretrained` writes. Equal: frequencies within 4e-6, the attention factor, and turned
queries within 2e-5, for rules that depend on the length on both sides of their switch. Where nothing turns, or
transformers itself makes no module of the config, there is nothing to compare. A difference would be shrunk to a
minimal config and written into the record.

| transformers | seed | families | configs drawn | not built there | differences |
|---|--:|--:|--:|--:|--:|
{runs}

| side | {versions} |
|---|{lines}|
{sides}

{changed}Why sides were refused with transformers {newest}:

| sides | families | why |
|--:|--:|---|
{reasons}"""


def _random(runs: list[dict[str, Any]]) -> list[str]:
    numbers = ("seed", "families", "drawn", "not built")
    sides = sorted({side for run in runs for side in run["sides"]})
    return [
        RANDOM.format(
            changed="".join(
                f"Not drawn with transformers {run['transformers']}, which computes another rope than the newest: "
                + "; ".join(f"`{name}` ({how})" for name, how in run["changed"].items())
                + ".\n\n"
                for run in runs
                if run["changed"]
            ),
            newest=runs[0]["transformers"],
            versions=" | ".join(run["transformers"] for run in runs),
            lines="|".join("--:" for _ in runs),
            runs="\n".join(
                f"| {run['transformers']} | {' | '.join(str(run[key]) for key in numbers)} | {len(run['differs'])} |"
                for run in runs
            ),
            sides="\n".join(
                f"| {side} | {' | '.join(str(run['sides'].get(side, 0)) for run in runs)} |" for side in sides
            ),
            reasons="\n".join(
                f"| {row['sides']} | {len(row['families'])} | {row['reason']} |" for row in runs[0]["refused"]
            ),
        )
    ]


CAUSAL = """## Causal language models under `rw.attach`

Each family that transformers builds, small and with random weights. Exact: under `rw.attach(model)` the logits are
those of the model within 1e-4 of the largest, greedy generation gives the same tokens, a reading with another theta or
width is refused, and after `detach` the logits are those before, bit for bit. The last columns say how far the logits
move where all positions are shifted by 1,000,000: of the model itself, and attached. Where they move as far attached,
the model uses positions outside the rotation as well, as Ministral 3's attention scale and DeepSeek-V4's compressed
entries do. RoFormer counts tokens itself and passes over `position_ids`, GPT-J and CodeGen have no rows that far.

**{exact} of {all} families are exact, {refused} are refused{others}.** The median shift is {before:.0e} before and
{after:.0e} attached.

| family | | largest difference of logits | shifted, the model itself | shifted, attached |
|---|---|--:|--:|--:|"""


def _causal(rows: list[dict[str, Any]]) -> list[str]:
    count = Counter(row["status"] for row in rows)
    exact = [row for row in rows if row["status"] == "exact"]
    moved = [(row["shift before"], row["shift"]) for row in exact if None not in (row["shift before"], row["shift"])]
    rest = [f"{count[status]} {status}" for status in ("differs", "not built") if count[status]]
    head = CAUSAL.format(
        exact=count["exact"],
        all=len(rows),
        refused=count["refused"],
        others="".join(f", {words}" for words in rest),
        before=median(before for before, _ in moved),
        after=median(after for _, after in moved),
    )
    return [head, *(_causal_row(row) for row in sorted(rows, key=lambda row: str(row["family"])))]


def _causal_row(row: dict[str, Any]) -> str:
    numbers = [row.get(key) for key in ("logits", "shift before", "shift")]
    shown = " | ".join("" if number is None else f"{number:.0e}" for number in numbers)
    reason = f": {row['reason']}" if "reason" in row else ""
    return f"| `{row['family']}` | {row['status']}{reason} | {shown} |"


def _refused(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["## Refused", "", "| family | class | why |", "|---|---|---|"]
    return lines + [f"| {_family(row)} | `{row['class']}` | {row['reason']} |" for row in _sorted(rows)]


def _exact(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Exact",
        "",
        "| family | class | what turns | error of frequencies | of rotation |",
        "|---|---|---|--:|--:|",
    ]
    for row in _sorted(rows):
        layers = row["layers"]
        turns = "; ".join(
            found["rope"] if name == "all" else f"{name}: {found['rope']}" for name, found in layers.items()
        )
        frequencies = [found["frequencies"] for found in layers.values() if "frequencies" in found]
        rotation = max(found["rotation"] for found in layers.values())
        shown = f"{max(frequencies):.0e}" if frequencies else ""
        note = "" if row["status"] == "exact" else "**differs** "
        lines.append(f"| {_family(row)} | `{row['class']}` | {note}{turns} | {shown} | {rotation:.0e} |")
    return lines


def _family(row: dict[str, Any]) -> str:
    return f"`{row['family']}`" if row["family"] else row["folder"]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["family"] or row["folder"], row["class"]))
