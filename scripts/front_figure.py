"""Draw the figure of the README and of the site's first page from a record of the doctor.

    python scripts/front_figure.py [RECORD.json]

How many facts does a model find, by how far back they were told? Files:
docs/assets/front-{wide,narrow}-{light,dark}.svg,
without a background. Text is drawn as outlines. Each file's description, for screen readers, contains every number; a
test compares it with the record.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ropewalk.diagnosis.evidence import Mean
from ropewalk.diagnosis.facts import CHANCE
from ropewalk.diagnosis.page import found_by_distance
from ropewalk.diagnosis.plan import CROP
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.figures.inline import night_colors
from ropewalk.figures.style import QUIET, length_ticks, look_of, mark_trained_length, render, style

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "doctor-smollm2-16k.json"
TO = ROOT / "docs" / "assets"
SIZES = {"wide": (8.4, 3.4), "narrow": (4.3, 3.6)}  # inches
NIGHT = {f"#{day}": night for day, night in re.findall(r"--c-(\w{6}): (#\w{6});", night_colors())}
NAMES = {"plain": "unchanged", "yarn": "YaRN", "dca": "dual chunk attention (Python only)"}


def described(mean: Mean | None) -> str:
    """Return a mean difference in words."""
    return "not measured" if mean is None else f"{mean.value:+.2f} nats per token"


def description(found: Diagnosis) -> str:
    """Return every drawn number in words."""
    parts = []
    for name, standing in found.evidence.standings.items():
        if name == CROP:
            continue
        bins = found_by_distance(found, name)
        counts = ", ".join(f"{right} of {asked} at {at:,.0f}" for at, right, asked in bins) or "given up"
        parts.append(f"{name}: {counts}; loss less crop's {described(standing.loss)}")
    return (
        f"Trained length {found.trained_length:,} tokens, windows of {found.target:,}. Facts found by their distance "
        f"in tokens. {'. '.join(parts)}. Chance is one in four."
    )


def draw(found: Diagnosis, size: str) -> bytes:
    """Return the SVG in the colours of a light page."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with style(), rc_context({"svg.fonttype": "path", "figure.facecolor": "none", "savefig.facecolor": "none"}):
        figure = Figure(figsize=SIZES[size])
        axes = figure.subplots()
        axes.set_facecolor("none")
        for name, standing in found.evidence.standings.items():
            if name == CROP:
                continue
            bins, look = found_by_distance(found, name), look_of(name)
            label = NAMES.get(name, name) + (": given up, its loss broke down" if standing.broken and not bins else "")
            axes.plot([at for at, _, _ in bins], [right / asked for _, right, asked in bins], look.line,
                      color=look.color, marker=look.marker, label=label)  # fmt: skip
        axes.axhline(CHANCE, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate("chance", (1, CHANCE), xycoords=("axes fraction", "data"), xytext=(-3, 3), ha="right",
                      textcoords="offset points", fontsize=9, color=QUIET)  # fmt: skip
        axes.set(xlim=(0, found.target), ylim=(0, 1.03), xlabel="tokens between the fact and the question",
                 ylabel="share of facts found")  # fmt: skip
        axes.set_title("Does it find what it was told?")
        axes.set_xticks(range(0, found.target + 1, found.target // 4))
        length_ticks(axes)
        mark_trained_length(axes, found.trained_length, found.target)
        figure.legend(loc="outside lower center", ncols=3 if size == "wide" else 1)
        return render(figure, "svg")


def main() -> int:
    found = Diagnosis.read(sys.argv[1] if len(sys.argv) > 1 else RECORD)
    text = f"<title>Facts that SmolLM2-135M finds, by distance</title>\n <desc>{description(found)}</desc>"
    for size in SIZES:
        light = re.sub(r" <metadata>.*?</metadata>", f" {text}", draw(found, size).decode(), count=1, flags=re.DOTALL)
        light = light.replace("fill: #ffffff", "fill: none")
        dark = re.sub(r"#[0-9a-f]{6}\b", lambda found: NIGHT.get(found[0], found[0]), light)
        for name, content in (("light", light), ("dark", dark)):
            (TO / f"front-{size}-{name}.svg").write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
