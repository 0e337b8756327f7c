"""Draw the figure of the README and of the site's first page from the record of the league.

    python scripts/front_figure.py

How many facts does a model find, by how far back they were told? Files: four docs/assets/front-*.svg,
without a background, and benchmarks/results/league.png, with one. Text is drawn as outlines. Each SVG's description,
for screen readers, contains every number.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.diagnosis.facts import CHANCE
from ropewalk.figures.inline import night_colors
from ropewalk.figures.style import QUIET, length_ticks, look_of, mark_trained_length, render, style

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "league.json"
TO = ROOT / "docs" / "assets"
BINS = 12
SIZES = {"wide": (8.4, 3.4), "narrow": (4.3, 3.6)}  # inches
NIGHT = {f"#{day}": night for day, night in re.findall(r"--c-(\w{6}): (#\w{6});", night_colors())}
NAMES = {
    "plain": "unchanged: given up, its loss broke down",
    "yarn": "YaRN",
    "dca": "dual chunk attention (Python only)",
    "lampe": "LaMPE (Python only)",
}


def by_distance(runs: dict[str, Any], method: str) -> list[tuple[float, int, int]]:
    """Return the mean distance, the facts found and the facts asked of each bin, the nearest first."""
    pairs = sorted(
        (distance, hit)
        for run in runs.values()
        for distance, hit in zip(run["distances"], run["rows"].get(method, {}).get("right", ()), strict=False)
    )
    parts = np.array_split(np.arange(len(pairs)), BINS) if pairs else []
    return [(float(np.mean([pairs[n][0] for n in part])), sum(pairs[n][1] for n in part), len(part)) for part in parts]


def description(runs: dict[str, Any], trained: int, target: int) -> str:
    """Return every drawn number in words."""
    parts = [
        f"{name}: "
        + (", ".join(f"{hit} of {asked} at {at:,.0f}" for at, hit, asked in by_distance(runs, name)) or "none")
        for name in NAMES
    ]
    return (
        f"Trained length {trained:,} tokens, windows of {target:,}. Facts found by their distance in tokens. "
        f"{'. '.join(parts)}. Chance is one in four."
    )


def draw(runs: dict[str, Any], trained: int, target: int, size: str, kind: str = "svg") -> bytes:
    """Return the picture in the colours of a light page."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    clear = {"figure.facecolor": "none", "savefig.facecolor": "none"} if kind == "svg" else {}
    with style(), rc_context({"svg.fonttype": "path", **clear}):
        figure = Figure(figsize=SIZES[size])
        axes = figure.subplots()
        if clear:
            axes.set_facecolor("none")
        for name, label in NAMES.items():
            points, look = by_distance(runs, name), look_of(name)
            axes.plot([at for at, _, _ in points], [hit / asked for _, hit, asked in points], look.line,
                      color=look.color, marker=look.marker, label=label)  # fmt: skip
        axes.axhline(CHANCE, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate("chance", (0, CHANCE), xycoords=("axes fraction", "data"), xytext=(4, -11),
                      textcoords="offset points", fontsize=9, color=QUIET)  # fmt: skip
        axes.set(xlim=(0, target), ylim=(0, 1.03), xlabel="tokens between the fact and the question",
                 ylabel="share of facts found")  # fmt: skip
        axes.set_title("Does it find what it was told?")
        axes.set_xticks(range(0, target + 1, target // 4))
        length_ticks(axes)
        mark_trained_length(axes, trained, target)
        figure.legend(loc="outside lower center", ncols=2 if size == "wide" else 1)
        return render(figure, kind)


def main() -> int:
    runs = json.loads(RECORD.read_text(encoding="utf-8"))["smollm2"]
    first = next(iter(runs.values()))
    lengths = first["trained_length"], first["target"]
    (RECORD.with_suffix(".png")).write_bytes(draw(runs, *lengths, "wide", "png"))
    text = f"<title>Facts that SmolLM2-135M finds, by distance</title>\n <desc>{description(runs, *lengths)}</desc>"
    for size in SIZES:
        svg = draw(runs, *lengths, size).decode()
        light = re.sub(r" <metadata>.*?</metadata>", f" {text}", svg, count=1, flags=re.DOTALL)
        light = light.replace("fill: #ffffff", "fill: none")
        dark = re.sub(r"#[0-9a-f]{6}\b", lambda found: NIGHT.get(found[0], found[0]), light)
        for name, content in (("light", light), ("dark", dark)):
            (TO / f"front-{size}-{name}.svg").write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
