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
    names = [label for axes in axes_of(figure) for label in (axes.get_xlabel(), axes.get_ylabel()) if label]
    names += [figure.get_supylabel()] * bool(figure.get_supylabel())
    assert names
    assert [name for name in names if not any(unit in name for unit in UNITS)] == []
    for axes in axes_of(figure):
        place = axes.get_subplotspec()
        if (place is None or place.is_last_row()) and any(words := shown(axes.xaxis)) and not axes.get_xlabel():
            assert any(map(str.isalpha, words))  # names of models stand there, not numbers
        named = axes.get_ylabel() or figure.get_supylabel()
        if place is not None and place.is_first_col() and any(words := shown(axes.yaxis)) and not named:
            assert any("theta" in word for word in words)
    assert any(part.get_suptitle() for part in (figure, *figure.subfigs))


def shown(axis: Any) -> list[str]:
    """The labels of its visible ticks."""
    return [tick.get_text() for tick in axis.get_ticklabels() if tick.get_visible()]
