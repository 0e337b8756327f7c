"""The figure of `ropewalk verify`: the misfit of every hypothesis."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ropewalk.figures.style import BLUE, QUIET, RED, caption, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 16  # hypotheses


def misfits(record: Mapping[str, Any]) -> Figure:
    """Draw the misfit of each hypothesis (mean absolute difference of log-probabilities in nats), total and by prompt.

    A line marks the engine's own error.

    **Arguments:**
    - `record`: the document of `ropewalk verify --json`.
    """
    from matplotlib.figure import Figure

    rows = [entry for entry in record["hypotheses"] if entry["misfit"] is not None][:SHOWN]
    with style():
        figure = Figure(figsize=(7.4, 1.4 + 0.26 * len(rows)))
        axes = figure.add_subplot()
        for place, entry in enumerate(rows):
            color = BLUE if entry["name"] == "as expected" else RED if place == 0 else QUIET
            each = [
                prompt["misfit"][entry["name"]] for prompt in record["prompts"] if entry["name"] in prompt["misfit"]
            ]
            axes.plot(each, [place] * len(each), linestyle="none", marker="|", color=color, alpha=0.6)
            axes.plot([entry["misfit"]], [place], linestyle="none", marker="o", color=color)
        if record["noise"]:
            axes.axvline(record["noise"], color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
        axes.set_xscale("log")
        axes.set_yticks(range(len(rows)), [entry["name"] for entry in rows])
        axes.invert_yaxis()
        axes.set_xlabel("misfit (nats): all prompts (dot), each prompt (stroke)")
        caption(figure, f"{record['model']} in {record['engine']}", textwrap.fill(record["verdict"]["sentence"], 100))
    return figure
