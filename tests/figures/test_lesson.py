"""The figures of the lesson draw the numbers that they are given, and name every axis with its unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ropewalk.figures.ropes import _runs, clocks, ratios, tables, unseen, wavelength_strips, waves
from ropewalk.figures.scores import (
    _BARS,
    _MOVES,
    _PRECISION_LOOKS,
    axial,
    cache,
    decay,
    layer,
    maps,
    order,
    pairing,
    precision,
    shift,
)
from ropewalk.figures.style import MAP, render, style

pytest.importorskip("matplotlib")
SQUARE = np.arange(16.0).reshape(4, 4) / 16
LINE = np.linspace(0.0, 1.0, 5)


def _clocks() -> Any:
    return clocks(
        {0: ([1.0, 0.5], [0.0, 0.9]), 3: ([1.0, 0.9], [0.0, 0.1])},
        radians_per_token={0: 1.0, 3: 0.1},
        turns=[2.0, 1.0, 0.5, 0.1],
        hands=([1.0, 0.0, -1.0, 0.8], [0.0, 1.0, 0.0, 0.6]),
        position=12,
    )


def _waves() -> Any:
    return waves(LINE, {0: (LINE, -LINE), 2: (LINE**2, LINE)}, wavelengths={0: 6.3, 2: 63.0}, trained_length=1)


def _tables() -> Any:
    angles = np.outer(np.arange(20), [1.0, 0.1])
    return tables(
        SQUARE,
        angles=angles,
        learned=SQUARE - 0.5,
        learned_reach=0.4,
        alike=dict.fromkeys(("sinusoidal", "rope", "learned"), SQUARE),
    )


def _shift() -> Any:
    curves = {"both move": [1.0, 1.0], "only the query moves": [1.0, 0.3], "only the key moves": [1.0, 0.4]}
    return shift(SQUARE, start=(2, 1), shifts=[0, 1], curves=curves, spread=1e-7)


def _decay() -> Any:
    return decay(
        [0, 1, 2, 3, 4], equal=LINE, bound=LINE + 1, random_bands=[(0.9, -LINE, LINE)], random_mean=0 * LINE,
        random_examples=[LINE], heads={"a": LINE, "b": -LINE, "c": 0 * LINE}, falling="b", rising="a", rising_count=1,
        model="tiny",
    )  # fmt: skip


def _order() -> Any:
    changed = SQUARE[:2, :2] + [[0.0, 0.002], [0.1, 0.0]]
    rows = [("one", [((0, 1), SQUARE[:2, :2]), ((1, 0), changed)])]
    return order(rows, words=("dog", "bites"))


def _maps() -> Any:
    return maps([("one", [SQUARE, SQUARE.T]), ("two", [SQUARE, SQUARE])], columns=["with", "without: said"])


def _unseen() -> Any:
    cells = {"a": np.array([[False, True], [False, False]]), "b": np.zeros((2, 2), bool)}
    return unseen([0.0, 7.0], cells=cells, ratios={"a": np.ones(2), "b": np.array([1.0, 0.25])}, trained_length=4)


def _ratios() -> Any:
    panel = {"title": "one", "ratios": {"pi": [0.25, 0.25], "yarn": [1.0, 0.25]}, "own": "yarn", "factor": 4.0}
    return ratios([panel, {**panel, "own": None}], names={"pi": "PI", "yarn": "YaRN"})


def _strips() -> Any:
    return wavelength_strips([("one", np.array([6.0, 60.0, 600.0]), 100, 1e4), ("two", np.array([6.0]), 8, 1e6)])


def _pairing() -> Any:
    pairs = {"interleaved": [(0, 1), (2, 3)], "half-split": [(0, 2), (1, 3)]}
    bars = {"its own pairing": (3.0, 3.0, 3.0), "the wrong pairing": (5.0, 4.5, 5.5), "converted": (3.0, 3.0, 3.0)}
    return pairing(pairs, losses={"tiny": {"uniform": 8.0, "bars": bars}})


def _axial() -> Any:
    return axial([("a", (1, 2), SQUARE), ("b", (0, 3), SQUARE.T)])


def _cache() -> Any:
    right = np.array([[0.0, np.nan], [1.0, 0.0]])
    return cache({"right": right, "again": np.array([[0.0, np.nan], [-2.0, 1e-9]])})


def _precision() -> Any:
    curves = {"ropewalk": [1e-8, 1e-8], "angles in float32": [1e-7, 1e-3]}
    return precision([64, 1000], cosines=curves, scores=curves, distance=16)


ALL = [
    _order, _clocks, _waves, _tables, _shift, _decay, _maps, _unseen, _ratios, _strips, _pairing, _axial, _cache,
    _precision,
]  # fmt: skip
REPRESENTATIVE = [_clocks, _maps, _pairing, _unseen]  # circles in subfigures, pictures, bars, hatched boxes


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


@pytest.mark.parametrize("draw", ALL, ids=lambda draw: draw.__name__[1:])
def test_axes_have_units(draw: Callable[[], Any]) -> None:
    """Every axis that has tick labels is named, here or on the panel that it shares, with a unit."""
    figure = draw()
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


@pytest.mark.parametrize("draw", REPRESENTATIVE, ids=lambda draw: draw.__name__[1:])
def test_the_same_numbers_give_the_same_file(draw: Callable[[], Any]) -> None:
    """No dates, no random names; the other kind can be written as well."""
    first, second = draw(), draw()
    assert render(first, "svg") == render(second, "svg")
    assert render(first, "png").startswith(b"\x89PNG")


def test_looks_differ_without_colour() -> None:
    """Line and marker, or hatch, tell curves and bars apart."""
    for looks in (_PRECISION_LOOKS, _MOVES):
        assert len({(look.line, look.marker) for look in looks.values()}) == len(looks)
    assert len({look.line for look in _BARS.values()}) == len(_BARS)


def test_the_colour_map_grows_evenly_lighter() -> None:
    """So that it orders numbers in a grey print: the luminance of its 256 colours never falls."""
    import matplotlib

    colours = matplotlib.colormaps[MAP](np.linspace(0, 1, 256))[:, :3]
    assert (np.diff(colours @ [0.2126, 0.7152, 0.0722]) > 0).all()


def test_clocks_and_waves_draw_their_points() -> None:
    """The dots of each circle, one clock for each pair, red where it has not turned once; both curves of a pair."""
    figure = _clocks()
    top, bottom = figure.subfigs
    assert [float(y) for y in top.axes[0].lines[-1].get_ydata()] == [0.0, 0.9]
    hands = [axes.lines[-1] for axes in bottom.axes[:4]]
    assert [hand.get_color() == "#d55e00" for hand in hands] == [False, False, True, True]
    assert [float(hand.get_xdata()[1]) for hand in hands] == [1.0, 0.0, -1.0, 0.8]
    assert "2 of 4" in bottom.get_suptitle()
    strips = _waves().axes
    assert lines(strips[1]) == {"cosine": list(LINE**2), "sine": list(LINE)}
    assert "0.16 turns in training" in strips[0].get_title(loc="left")


def test_tables_show_theirs() -> None:
    """Six pictures, in order; the angles from the second row on, since the first has no logarithm."""
    images = [np.asarray(axes.images[0].get_array()) for axes in _tables().axes[:6]]
    assert np.array_equal(images[0], SQUARE)
    assert np.array_equal(images[1][1:], np.outer(np.arange(1, 20), [1.0, 0.1]))
    assert np.array_equal(images[2], SQUARE - 0.5)
    assert np.array_equal(images[5], SQUARE)


def test_score_figures_show_theirs() -> None:
    """The table and curves of a shift, three panels of decay, one picture for each patch."""
    left, right = _shift().axes[:2]
    assert np.array_equal(np.asarray(left.images[0].get_array()), SQUARE)
    assert list(lines(right).values()) == [[1.0, 1.0], [1.0, 0.3], [1.0, 0.4]]
    assert "within 1e-07" in next(iter(lines(right)))
    first, above, second, third = _decay().axes
    assert lines(first)["equal pairs, q = k"] == list(LINE)
    assert lines(above)["the paper's bound for q = k"] == list(LINE + 1)
    assert above.get_title(loc="left") == "the bound: 1.0 |q| |k| or more, so it excludes no score"
    assert lines(second)["mean of draws"] == [0.0] * 5
    assert lines(third)["falls most: b"] == list(-LINE)
    assert lines(third)["rises again most: a"] == list(LINE)
    assert third.get_title(loc="left") == "tiny: 1 of 3 heads rise again"
    patches = _axial().axes[:2]
    assert np.array_equal(np.asarray(patches[1].images[0].get_array()), SQUARE.T)
    assert [float(patches[1].lines[0].get_xdata()[0]), float(patches[1].lines[0].get_ydata()[0])] == [3.0, 0.0]


def test_the_order_of_words_frames_what_differs() -> None:
    """Only the weight whose per cent change has a frame; a panel is titled by its sentence."""
    left, right = _order().axes
    assert [text.get_text() for text in left.texts] == ["0 %", "6 %", "25 %", "31 %"]
    assert not left.patches
    (frame,) = right.patches
    assert (frame.get_x() + 0.46, frame.get_y() + 0.46) == pytest.approx((0, 1))
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["dog bites", "bites dog"]


def test_the_layer_shows_its_shapes() -> None:
    """Each shape is on the picture once, and only queries and keys pass through a rotation."""
    shapes = {name: (1, number) for number, name in enumerate(("x", "q", "k", "v", "weights", "out"))}
    (axes,) = layer(shapes).axes
    written = [text.get_text() for text in axes.texts if text.get_text()]
    assert sorted(text for text in written if "[" in text) == [f"[1, {number}]" for number in range(6)]
    assert written.count("rotate") == 2


def test_maps_hide_later_keys() -> None:
    """What a query cannot see is masked, not coloured; a column's name breaks at its colon."""
    shown = _maps().axes[1].images[0].get_array()
    assert np.array_equal(shown.mask, np.triu(np.ones((4, 4), bool), 1))
    assert float(shown[3, 0]) == SQUARE.T[3, 0]
    assert _maps().axes[1].get_title(loc="left") == "without\nsaid"


def test_a_wrong_distance_is_red_and_bold() -> None:
    """One box and one number for each key that the cache contains; the stored key has a border."""
    left, right = _cache().axes
    assert [text.get_text() for text in right.texts] == ["0", "-2", "0"]
    assert [text.get_fontweight() for text in right.texts] == ["normal", "bold", "normal"]
    assert [text.get_fontweight() for text in left.texts] == ["normal"] * 3
    fills = [box.get_facecolor() for box in right.patches]
    assert fills[0] == fills[2] != fills[1]
    assert [box.get_edgecolor()[3] for box in right.patches] == [1.0, 0.0, 1.0]


def test_unseen_cells_are_boxes_and_a_share() -> None:
    """One box for each run of unseen cells, at its pair and positions; the share in the panel's title."""
    first, second = _unseen().axes[:2]
    assert first.get_title(loc="left") == "a: 25.0 % never seen"
    assert second.get_title(loc="left") == "b: 0 % never seen"
    (box,) = first.collections[0].get_paths()
    assert box.vertices[:, 0].min() == 0.5
    assert box.vertices[:, 1].min() == 0.0
    assert box.vertices[:, 1].max() == 4.0
    assert not second.collections[0].get_paths()
    assert _runs([True, False, True, True]) == [(0, 1), (2, 4)]


def test_ratios_wavelengths_and_bars() -> None:
    """Each method's ratios, the shipped one thick; wavelengths on the right side; each bar as high as its loss."""
    axes = _ratios().axes[0]
    assert lines(axes) == {"PI": [0.25, 0.25], "YaRN": [1.0, 0.25]}
    pi, yarn = axes.lines[:2]
    assert yarn.get_linewidth() > pi.get_linewidth()
    axes = _strips().axes[0]
    drawn = {str(line.get_label()): [float(x) for x in line.get_xdata()] for line in axes.lines[:3]}
    assert drawn["at least one turn in training"] == [6.0, 60.0]
    assert drawn["never a whole turn"] == [600.0]
    assert drawn["trained length"] == [100.0, 100.0]
    assert "1 of 3 pairs" in [text.get_text() for text in axes.texts]
    bars = _pairing().subfigs[1].axes[0].patches
    assert [float(bar.get_height()) for bar in bars[:3]] == [3.0, 5.0, 3.0]


def test_precision_shows_both_panels() -> None:
    """The same names on both, on logarithmic axes."""
    left, right = _precision().axes
    assert lines(left) == lines(right) == {"ropewalk": [1e-8, 1e-8], "angles in float32": [1e-7, 1e-3]}
    assert left.get_yscale() == right.get_xscale() == "log"
    assert "m - 16" in right.get_title(loc="left")
