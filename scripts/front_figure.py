"""Draw the figure of the README and of the site's first page from a record of the doctor.

    python scripts/front_figure.py [RECORD.json]

Two questions about one model: does the loss hold beyond the trained length, and does it copy from far back? Files:
docs/assets/front-{wide,narrow}-{light,dark}.svg, without a background. Text is drawn as outlines. Each file's
description, for screen readers, contains every number; a test compares it with the record.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from ropewalk.figures.style import QUIET, length_ticks, look_of, mark_trained_length, render, style
from ropewalk.report.inline import night_colors

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "benchmarks" / "results" / "doctor-smollm2-16k.json"
TO = ROOT / "docs" / "assets"
SIZES = {"wide": (9.4, 3.7), "narrow": (4.3, 6.4)}  # inches: side by side, and one above the other
NIGHT = {f"#{day}": night for day, night in re.findall(r"--c-(\w{6}): (#\w{6});", night_colors())}


def losses(record: dict[str, Any]) -> dict[str, list[float]]:
    """Return by method the mean loss of each block, in nats per token."""
    return {one["name"]: one["loss_by_block"] for one in record["methods"] if not one["same_as"]}


def copies(record: dict[str, Any]) -> dict[str, list[tuple[float, float, float, float]]]:
    """Return by method: tokens back, gain in nats per token, ends of its interval; crop is plain at its control."""
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for row in record["copies"]["rows"]:
        control = row["method"] == "plain" and row["length"] == record["trained_length"]
        if row["interval"] is not None and (control or row["length"] == record["target"]):
            of = found.setdefault("crop" if control else row["method"], [])
            of.append((row["distance"], row["gain"], *row["interval"]))
    return {name: sorted(rows) for name, rows in found.items()}


def description(record: dict[str, Any]) -> str:
    """Return every drawn number in words."""
    parts = [f"{name}: {', '.join(f'{value:.3f}' for value in values)}" for name, values in losses(record).items()]
    copied = []
    for name, rows in copies(record).items():
        gains = (f"{at:,.0f} back {gain:+.2f} [{low:+.2f}, {high:+.2f}]" for at, gain, low, high in rows)
        copied.append(f"{name}: {', '.join(gains)}")
    return (
        f"Trained length {record['trained_length']:,} tokens. Loss in nats per token by blocks of "
        f"{record['blocks'][0][1]:,} positions, {'; '.join(parts)}. Gain in nats per token of copied passages by "
        f"their distance, {'; '.join(copied)}."
    )


def draw(record: dict[str, Any], size: str) -> bytes:
    """Return the SVG in the colours of a light page."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    trained, last = record["trained_length"], record["blocks"][-1][1]
    names = {"plain": "unchanged", "crop": f"crop: only the last {trained // 1024}k tokens",
             "yarn": "YaRN", "dca": "dual chunk attention (Python only)"}  # fmt: skip
    with style(), rc_context({"svg.fonttype": "path", "figure.facecolor": "none", "savefig.facecolor": "none"}):
        figure = Figure(figsize=SIZES[size])
        losses_axes, copies_axes = figure.subplots(*((1, 2) if size == "wide" else (2, 1)))
        middles = [(start + end) / 2 for start, end in record["blocks"]]
        for axes, title, below in (
            (losses_axes, "Does the loss hold?", "position in the text (tokens)"),
            (copies_axes, "Does it copy distant passages?", "distance of the passage (tokens)"),
        ):
            axes.set_facecolor("none")
            axes.set_xlim(0, last)
            mark_trained_length(axes, trained, last)
            axes.set_title(title)
            axes.set_xlabel(below)
            axes.set_xticks(range(0, last + 1, last // 4))
            length_ticks(axes)
        for name, values in losses(record).items():
            look, above = look_of(name), 5 if name == "crop" else 3
            thick = 3.0 if name == record["recommended"] else 1.8
            shape = {"color": look.color, "linestyle": look.line, "zorder": above}
            losses_axes.plot(middles, values, linewidth=thick, label=names.get(name, name), **shape)
            rows = copies(record).get(name, [])
            reach = [[gain - low for _, gain, low, _ in rows], [high - gain for _, gain, _, high in rows]]
            copies_axes.errorbar([row[0] for row in rows], [row[1] for row in rows], yerr=reach, linewidth=thick,
                                 elinewidth=1, capsize=2, marker=look.marker, **shape)  # fmt: skip
        losses_axes.set_ylabel("loss (nats per token)")
        copies_axes.set_ylabel("gain (nats per token)")
        copies_axes.margins(y=0.12)  # space above the curves for the note on the trained length
        copies_axes.axhline(0.0, color=QUIET, linewidth=0.8)
        figure.legend(loc="outside lower center", ncols=3 if size == "wide" else 1)
        return render(figure, "svg")


def main() -> int:
    record = json.loads(Path(sys.argv[1] if len(sys.argv) > 1 else RECORD).read_text(encoding="utf-8"))
    text_of_figure = f"<title>SmolLM2-135M beyond its trained length</title>\n <desc>{description(record)}</desc>"
    for size in SIZES:
        light = re.sub(
            r" <metadata>.*?</metadata>", f" {text_of_figure}", draw(record, size).decode(), count=1, flags=re.DOTALL
        )
        light = light.replace("fill: #ffffff", "fill: none")
        dark = re.sub(r"#[0-9a-f]{6}\b", lambda found: NIGHT.get(found[0], found[0]), light)
        for name, text in (("light", light), ("dark", dark)):
            (TO / f"front-{size}-{name}.svg").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
