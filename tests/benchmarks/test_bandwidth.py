"""The figures of the benchmarks: every point in its panel, and contenders that are told apart without colour."""

from __future__ import annotations

from typing import Any

import pytest
from bandwidth import _LOOKS, copy_bandwidth
from growth import _GROWTH_LOOKS, growth

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
    for looks in (_LOOKS, _GROWTH_LOOKS):
        assert len({(look.line, look.marker) for look in looks.values()}) == len(looks)


FACTS = {"model": "m.gguf", "text": "a novel", "device": "a machine", "date": "2026-11-22T16:00:00Z"}


def record(tokens: int, peak: float = 100.0, **seconds: float) -> dict[str, Any]:
    """A line of `forward.jsonl`; names with "_" for " "."""
    of = {name.replace("_", " "): value for name, value in seconds.items()}
    return {
        **FACTS, "tokens": tokens, "median_seconds": of, "operations": tokens * 1e9,
        "matrix_product_gflops": {"bfloat16": peak},
    }  # fmt: skip


RECORDS = [
    record(1024, ropewalk_bfloat16=9.0, transformers_float32=3.0),
    record(1024, ropewalk_bfloat16=2.0),
    record(2048, peak=200.0, ropewalk_bfloat16=4.0, other_float32=5.0),
]


def test_lines_are_the_records() -> None:
    """The last record of a length counts; a contender with one length is a point; the fastest product is the bound."""
    (time,) = growth(RECORDS).axes
    drawn = {line.get_label(): line.get_xydata().tolist() for line in time.lines}
    assert drawn == {
        "ropewalk bfloat16": [[1024, 2.0], [2048, 4.0]],
        "transformers float32": [[1024, 3.0]],
        "other float32": [[2048, 5.0]],
        "matrix product, bfloat16: 200 GFLOP/s": [[1024, 5.12], [2048, 10.24]],
    }
