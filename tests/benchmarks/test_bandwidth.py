"""The figures of the benchmarks: every point in its panel, and contenders that are told apart without colour."""

from __future__ import annotations

import pytest
from bandwidth import _LOOKS, copy_bandwidth

pytest.importorskip("matplotlib")
PANELS = {
    "float32": {"transformers": [(64, 0.1), (256, 0.05)], "ropewalk, in place": [(64, 1.1), (256, 1.5)]},
    "bfloat16": {"ropewalk, in place": [(64, 1.2), (256, 3.0)], "something new": [(256, 0.5)]},
}


def test_lines_are_the_shares() -> None:
    """Every point, in its panel; ours first in the legend, a contender without a look of its own too."""
    figure = copy_bandwidth(PANELS, note="a note")
    for axes, (name, curves) in zip(figure.axes, PANELS.items(), strict=True):
        assert axes.get_title(loc="left") == name
        drawn = {line.get_label(): line.get_xydata().tolist() for line in axes.lines
                 if not str(line.get_label()).startswith("_")}  # fmt: skip
        assert drawn == {contender: [list(point) for point in curve] for contender, curve in curves.items()}
        low, high = axes.get_ylim()
        assert low < 0.05
        assert high > 3.0
    assert [text.get_text() for text in figure.legends[0].texts] == [
        "ropewalk, in place", "transformers", "something new"
    ]  # fmt: skip


def test_contenders_are_told_apart_without_colour() -> None:
    """No two share line and marker."""
    assert len({(look.line, look.marker) for look in _LOOKS.values()}) == len(_LOOKS)
