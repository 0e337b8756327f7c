"""What a figure shows, for the tests of figures."""

from __future__ import annotations

from typing import Any

from ropewalk.figures.style import style

# words that say an axis' unit, or that it has none
UNITS = ("token", "radian", "no unit", "nats", "patches", "index", "fastest first", "√head_dim", "/ length", "feature")


def axes_of(figure: Any) -> list[Any]:
    """Every visible pair of axes, those of subfigures too."""
    return [axes for axes in figure.get_axes() if axes.axison]


def lines(axes: Any) -> dict[str, list[float]]:
    """The y values of the labelled lines."""
    return {
        str(line.get_label()): [float(y) for y in line.get_ydata()]
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def check_units(figure: Any) -> None:
    """Every axis that has tick labels is named, here or on the panel that it shares, with a unit; there is a title."""
    with style():
        figure.draw_without_rendering()
    shared_y = figure.get_supylabel() if hasattr(figure, "get_supylabel") else ""
    said = [axes.get_xlabel() for axes in axes_of(figure)] + [axes.get_ylabel() for axes in axes_of(figure)]
    said += [shared_y]
    written = [text for text in said if text]
    assert written
    assert [text for text in written if not any(unit in text for unit in UNITS)] == []
    for axes in axes_of(figure):
        own = axes.get_subplotspec() is None or axes.get_subplotspec().is_last_row()
        words = [tick.get_text() for tick in axes.get_xticklabels() if tick.get_visible()]
        if own and any(words) and not axes.get_xlabel():
            assert any(word.isalpha() for word in words)  # names of models stand there, not numbers
        first = axes.get_subplotspec() is not None and axes.get_subplotspec().is_first_col()
        words = [tick.get_text() for tick in axes.get_yticklabels() if tick.get_visible()]
        if first and any(words) and not axes.get_ylabel() and not shared_y:
            assert any("theta" in word for word in words)
    assert figure.get_suptitle() or any(sub.get_suptitle() for sub in figure.subfigs)
