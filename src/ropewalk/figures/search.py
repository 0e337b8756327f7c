"""A search in one picture: what its factors do to each pair beside the analytic methods, and how it got there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ropewalk.figures.style import INK, PALE, QUIET, caption, look_of, panel, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def search_figure(
    divisors: Mapping[str, Sequence[float]],
    attention_factors: Mapping[str, float],
    losses: Sequence[float | None],
    starts: Mapping[str, float],
    *,
    factor: float,
    title: str = "A search for the factors",
    note: str = "",
    axis: str = "loss beyond the trained length, nats per token",
    divided: str = "divisor of the frequency",
) -> Figure:
    """Two panels: each point's divisor for each pair ("searched" drawn last and thick), and the loss by evaluation.

    **Arguments:**
    - `divisors`, `attention_factors`: by name, the analytic methods in the order of their evaluation.
    - `factor`: target / trained length.
    - `losses`: nats per token of every evaluation in order, None where there was no number; `starts`: those of the
      analytic methods, by name. `axis` says what they are losses of, `divided` what the divisors are of.
    """
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

        figure = Figure(figsize=(12.0, 4.6))
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
        left.set_yscale("log", base=2)
        for name, values in sorted(divisors.items(), key=lambda item: item[0] == "searched"):
            look, own = look_of(name), name == "searched"
            left.plot(
                range(len(values)),
                values,
                color=look.color,
                linestyle=look.line,
                marker=look.marker,
                markersize=5 if own else 2.5,
                linewidth=2.6 if own else 1.2,
                zorder=5 if own else 3,
                label=f"{name} ({attention_factors[name]:.3g})",
            )
        left.axhline(factor, color=QUIET, linewidth=1, linestyle="--")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.yaxis.set_major_locator(LogLocator(base=2))
        left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        left.yaxis.set_minor_formatter(NullFormatter())
        left.set_xlabel("pair (fastest first)")
        left.set_ylabel(divided)
        panel(left, f"Divisor of each pair; dashed: {factor:g}, the ratio of lengths")

        shown = [(index, loss) for index, loss in enumerate(losses, 1) if loss is not None]
        right.plot(
            *zip(*shown, strict=True), linestyle="none", marker=".", markersize=4, color=PALE, label="evaluation"
        )
        best, lowest = [], float("inf")
        for _, loss in shown:
            lowest = min(lowest, loss)
            best.append(lowest)
        right.step([index for index, _ in shown], best, where="post", color=INK, linewidth=1.8, label="best so far")
        order = sorted(starts, key=lambda name: starts[name])
        places = {name: index for index, name in enumerate(divisors, 1)}
        for name in starts:
            look = look_of(name)
            right.plot(places[name], starts[name], color=look.color, marker=look.marker, linestyle="none", zorder=4)
        right.axhline(starts[order[0]], color=QUIET, linewidth=1, linestyle="--")
        low = min(best)
        near = sorted(loss for index, loss in shown if index >= len(divisors)) or [starts[order[0]]]
        top = max(near[int(0.9 * (len(near) - 1))], starts[order[min(2, len(order) - 1)]])
        height = (top - low) or 1.0
        right.set_ylim(low - 0.08 * height, top + 0.05 * height)
        right.xaxis.set_major_locator(MaxNLocator(integer=True))
        right.set_xlabel("evaluation")
        right.set_ylabel(axis)
        panel(right, f"Loss in the search; dashed: {order[0]}, the best method")
        handles = [*left.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
        figure.legend(
            handles=handles, title="(attention factor)", fontsize=8, title_fontsize=8, loc="outside right center"
        )
        caption(figure, title, note)
        return figure
