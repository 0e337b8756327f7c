"""The figure of `ropewalk classify` shows the numbers that it is given."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from ropewalk.figures.confusion import confusion


def cells(figure: Figure) -> dict[tuple[str, str], int]:
    """The numbers written in the matrix, by (true, predicted) class."""
    axes = figure.axes[0]
    columns, rows = ([tick.get_text() for tick in ticks] for ticks in (axes.get_xticklabels(), axes.get_yticklabels()))
    return {
        (rows[round(text.get_position()[1])], columns[round(text.get_position()[0])]): int(text.get_text())
        for text in axes.texts
    }


def test_few_classes_are_shown_whole() -> None:
    """Every count in its place, zeros left out; the pairs by name, most rows first."""
    figure = confusion([[8, 2, 0], [0, 9, 0], [3, 1, 6]], ["a", "b", "c"])
    assert cells(figure) == {
        ("a", "a"): 8, ("a", "b"): 2, ("b", "b"): 9, ("c", "a"): 3, ("c", "b"): 1, ("c", "c"): 6,
    }  # fmt: skip
    assert [tick.get_text() for tick in figure.axes[1].get_yticklabels()] == ["c\n→ a", "a\n→ b", "c\n→ b"]
    assert [text.get_text() for text in figure.axes[1].texts] == ["3", "2", "1"]
    assert [bar.get_width() for bar in figure.axes[1].patches] == [3, 2, 1]
    assert "23 of 29 rows right; the pairs hold 6 of 6 errors" in figure.get_supxlabel()
    shares = np.asarray(figure.axes[0].images[0].get_array())
    assert shares[0].tolist() == [0.8, 0.2, 0.0]


def test_of_many_classes_the_most_confused_are_shown() -> None:
    """Partners stand together; what went elsewhere is in the last column; each row still adds up."""
    counts = np.diag([30] * 40)
    counts[3, 17], counts[17, 3], counts[25, 3], counts[8, 30], counts[8, 39] = 9, 4, 5, 7, 1
    labels = [f"class {index}" for index in range(40)]
    figure = confusion(counts.tolist(), labels, most=5)
    shown = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert shown == ["class 3", "class 25", "class 17", "class 8", "class 30"]
    found = cells(figure)
    assert found["class 8", "other"] == 1
    assert sum(n for (true, _), n in found.items() if true == "class 8") == 38
    assert "5 of 40 classes; 1,200 of 1,226 rows right; the pairs hold 26 of 26 errors" in figure.get_supxlabel()


def test_long_names_are_numbered() -> None:
    """Columns are numbers, which the rows explain."""
    figure = confusion([[8, 2], [1, 9]], ["a name that is long", "another one of these"])
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["1", "2"]
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()][1] == "another one of these  2"


def test_without_an_error_there_are_no_pairs() -> None:
    """One pair of axes; nothing divided by zero, also where a class has no rows."""
    figure = confusion([[4, 0], [0, 0]], ["a", "b"])
    assert len(figure.axes) == 1
    assert figure.get_supxlabel() == "2 classes; 4 of 4 rows right"
