"""The docs page of models, made from the records."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

HEAD = """# Models

ropewalk has a table of model families: which features form a pair, how many rotate, which theta and scaling apply,
and which layers rotate. `RopeConfig.from_hf` uses it to read the config of a checkpoint. `rw.attach`, the doctor and
`ropewalk extend` use it to change a live model. This page lists every family of transformers {transformers} and how
exactly it was reproduced.

**{exact} of {classes} rotary classes and {causal} of {families} families of language models are exact. {refused}
classes and {causal_refused} families are refused with a reason{others}.** A refused config raises `RopeError`; it is
never read as something else.

transformers computes every family (`pip install '.[transformers]'` in a clone), with ropewalk's rotation. Our own
`Decoder`, of the lesson and of training from scratch, has Llama's layout.

A family is the `model_type` of a config. A model whose name is not listed often has the type of a different one:
Llama 3.1 is `llama`, and Ministral 3 is `ministral3`. Families whose code is stored with their weights (ChatGLM,
InternLM and others) are tested separately, in tests/rope/test_remote_code.py. For a family that is not listed, pass a
`RopeConfig` of your own.

## Language models

Each family was built small and with random weights. *Exact* means, under `rw.attach(model)`:

- the logits are those of the model within 1e-4 of the largest,
- greedy generation gives the same tokens,
- a rope with a different theta or width raises an error,
- after `detach` the logits are equal to those before, bit for bit.

The last two columns show how far the logits move after a shift of all positions by 1,000,000: in the model itself,
and attached. The medians are {before:.0e} and {after:.0e}. If they move as far when attached, the model also uses
positions outside the rotation, as Ministral 3's attention scale and DeepSeek-V4's compressed entries do.

"""


Rows = list[dict[str, Any]]


def page(record: Path, random: Path) -> str:
    """The page of the two records."""
    content = json.loads(record.read_text(encoding="utf-8"))
    count = Counter(by_class(content["classes"]).values())
    causal = Counter(row["status"] for row in content["causal"])
    moved = [(row["shift before"], row["shift"]) for row in content["causal"] if row["status"] == "exact"]
    moved = [pair for pair in moved if None not in pair]
    rest = ((count["differs"], "classes differ"), (causal["not built"], "not built"))
    head = HEAD.format(
        transformers=content["transformers"], classes=count.total(), exact=count["exact"], refused=count["refused"],
        causal=causal["exact"], families=causal.total(), causal_refused=causal["refused"],
        others="".join(f", {number} {words}" for number, words in rest if number),
        before=median(before for before, _ in moved), after=median(after for _, after in moved),
    )  # fmt: skip
    rows = sorted(content["classes"], key=lambda row: (row["family"] or row["folder"], row["class"]))
    named = [(f"`{row['family']}`" if row["family"] else row["folder"], f"`{row['class']}`", row) for row in rows]
    exact = [[family, name, *_numbers(row)] for family, name, row in named if row["status"] != "refused"]
    refused = [[family, name, row["reason"]] for family, name, row in named if row["status"] == "refused"]
    runs = json.loads(random.read_text(encoding="utf-8"))["runs"]
    classes = table(["family", "class", "what rotates", ">error of frequencies", ">of rotation"], exact)
    parts = [_causal(content["causal"]), EXACT + classes, REFUSED + table(["family", "class", "reason"], refused)]
    return head + "\n\n".join([*parts, _random(runs)]) + "\n"


def table(heads: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table; ">" opens the head of a column that is right-aligned."""
    names, rule = [head.lstrip(">") for head in heads], ["--:" if head[:1] == ">" else "---" for head in heads]
    lines = [f"| {' | '.join(names)} |".replace("|  |", "| |"), f"|{'|'.join(rule)}|"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def by_class(rows: Rows) -> dict[str, str]:
    """The status of each class: exact where every config that it takes is."""
    order = ["exact", "refused", "differs"]
    found: dict[str, str] = {}
    for row in rows:
        known = found.get(row["class"], "exact")
        found[row["class"]] = max(known, row["status"], key=order.index)
    return found


RANDOM = """## Random configs

Each family's configs are also drawn at random: heads, widths (also odd ones), rope types with odd parameters, old and
new spellings, fractions, thetas in each place, layer types. transformers makes its own rotary module from the config.
ropewalk reads the config in three forms: the raw JSON (file), the config object, and the folder that
`save_pretrained` writes. *Equal* means frequencies within 4e-6, the attention factor, and rotated queries within
2e-5. Rules that depend on the length are compared on both sides of their switch. A difference would be reduced to a
minimal config and written into the record.

{runs}

{sides}

{changed}Reasons for refused forms with transformers {newest}:

{reasons}

Both records are made by `make parity`: `benchmarks/results/parity.json` and `benchmarks/results/parity_random.json`."""


def _random(runs: Rows) -> str:
    """The section of the random configs."""
    numbers = ("seed", "families", "drawn", "not built")
    sides, versions = sorted({side for run in runs for side in run["sides"]}), [run["transformers"] for run in runs]
    changed = [
        f"Not drawn with transformers {run['transformers']}, which computes a different rope than the newest: "
        + "; ".join(f"`{name}` ({how})" for name, how in run["changed"].items()) + ".\n\n"
        for run in runs if run["changed"]
    ]  # fmt: skip
    heads = ["transformers", ">seed", ">families", ">configs drawn", ">not built there", ">differences"]
    return RANDOM.format(
        runs=table(heads, [[run["transformers"], *(run[key] for key in numbers), len(run["differs"])] for run in runs]),
        sides=table(["form", *(f">{one}" for one in versions)],
                    [[side, *(run["sides"].get(side, 0) for run in runs)] for side in sides]),
        changed="".join(changed), newest=versions[0],
        reasons=table([">forms", ">families", "reason"],
                      [[row["sides"], len(row["families"]), row["reason"]] for row in runs[0]["refused"]]),
    )  # fmt: skip


def _causal(rows: Rows) -> str:
    """The table of causal families."""
    heads = ["family", "", ">largest difference of logits", ">shifted, the model itself", ">shifted, attached"]
    cells = []
    for row in sorted(rows, key=lambda row: str(row["family"])):
        numbers = [row.get(key) for key in ("logits", "shift before", "shift")]
        status = row["status"] + (f": {row['reason']}" if "reason" in row else "")
        cells.append([f"`{row['family']}`", status, *("" if one is None else f"{one:.0e}" for one in numbers)])
    return table(heads, cells)


REFUSED = "## Refused classes\n\n"
EXACT = """## Rotary classes

Each class is built from the defaults of its config class and compared with `RopeConfig.from_hf`: inverse frequencies
and attention factor (relative error at most 1e-6), and the rotation of random queries at random positions by the
model's own function (absolute error at most 1e-5). Three wrong readings (the other pairing, theta off by 1 %, one
pair fewer) must give a different rotation, or the row does not count. A config that contains only its sizes must give
the same rope, or be refused. For multi-head latent attention the width is the rotating slice's.

"""


def _numbers(row: dict[str, Any]) -> list[str]:
    """What rotates in a class, and the errors of frequencies and of the rotation."""
    layers = row["layers"]
    turns = "; ".join(found["rope"] if name == "all" else f"{name}: {found['rope']}" for name, found in layers.items())
    frequencies = [found["frequencies"] for found in layers.values() if "frequencies" in found]
    rotation = max(found["rotation"] for found in layers.values())
    note = "" if row["status"] == "exact" else "**differs** "
    return [note + turns, f"{max(frequencies):.0e}" if frequencies else "", f"{rotation:.0e}"]
