"""Figures show the numbers that they are given: losses, ropes, gains."""

from __future__ import annotations

import numpy as np

from ropewalk.figures.results import (
    LookPoint,
    MeasuredValue,
    copies_by_distance,
    difference_by_position,
    frequency_ratios,
    growing_answer,
    loss_by_position,
    off_scale,
    pair_wavelengths,
)
from ropewalk.figures.style import LOOKS, OTHER, look_of, render
from ropewalk.report.inline import CARD, contrast, night_color

BLOCKS = [(0, 128), (128, 256), (256, 384)]


def curves(figure: object) -> dict[str, list[float]]:
    """The y values of every labelled line."""
    axes = figure.axes[0]  # type: ignore[attr-defined]
    return {
        line.get_label(): [float(y) for y in line.get_ydata()]
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def test_loss_curves_are_the_losses() -> None:
    """One line for each method at the blocks' middles; the recommended one is named."""
    losses = {"plain": [3.0, 3.1, 5.0], "yarn": [3.1, 3.2, 3.3], "crop": [3.0, 3.1, 3.4]}
    figure = loss_by_position(BLOCKS, losses, trained_length=256, recommended="yarn")
    assert curves(figure) == {"plain": losses["plain"], "yarn (recommended)": losses["yarn"], "crop": losses["crop"]}
    axes = figure.axes[0]
    assert [float(x) for x in axes.lines[1].get_xdata()] == [64.0, 192.0, 320.0]
    assert [text.get_text() for text in axes.texts] == ["trained length 256"]
    assert axes.get_ylabel() == "loss (nats per token)"


def test_a_phone_has_names_for_a_few_only() -> None:
    """The other methods are there, quiet and without a name."""
    losses = {"plain": [3.0, 3.1, 5.0], "yarn": [3.1, 3.2, 3.3], "pi": [3.5, 3.5, 3.6], "crop": [3.0, 3.1, 3.4]}
    figure = loss_by_position(BLOCKS, losses, trained_length=256, narrow=True, named={"plain", "yarn", "crop"})
    assert set(curves(figure)) == {"plain", "yarn", "crop"}
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    assert [[float(y) for y in line.get_ydata()] for line in drawn] == list(losses.values())
    assert figure.get_figwidth() < 5


DIFFERENCES: dict[str, tuple[list[float], list[tuple[float, float] | None]]] = {
    "plain": ([0.0, 0.0, 1.56], [None, None, (1.5, 1.6)]),
    "yarn": ([0.02, 0.02, 0.04], [(0.01, 0.03), None, (-2.0, 2.0)]),
    "crop": ([0.0, 0.0, 0.0], [None, None, None]),
}


def test_differences_to_crop_stay_on_the_axes() -> None:
    """Crop is the zero line; a method that is far off does not set the scale and is named at the edge, in words."""
    assert off_scale(DIFFERENCES) == {"plain": 1.56}
    figure = difference_by_position(BLOCKS, DIFFERENCES, trained_length=256, recommended="yarn")
    [axes] = figure.axes
    low, high = axes.get_ylim()
    assert -0.5 < low < 0 < 0.1 < high < 0.5
    lines = curves(figure)
    assert lines["crop (zero)"] == [0.0, 0.0]
    assert lines["yarn (recommended)"] == [0.02, 0.02, 0.04]
    assert [text.get_text() for text in axes.texts] == ["trained length 256", "plain: worse by up to 1.56"]
    triangles = [line for line in axes.lines if line.get_marker() == "^"]
    assert [low < float(y) < high for line in triangles for y in line.get_ydata()] == [True]
    assert all(line.get_clip_on() for line in axes.lines)
    whiskers = [line for line in axes.lines if len(line.get_xdata()) == 2 and len(set(line.get_xdata())) == 1]
    assert [1.5, 1.6] not in [[float(y) for y in line.get_ydata()] for line in whiskers]  # off the scale
    assert [0.01, 0.03] in [[float(y) for y in line.get_ydata()] for line in whiskers]


def test_a_phone_shows_few_differences() -> None:
    """The others are there, quiet and without a name."""
    figure = difference_by_position(BLOCKS, DIFFERENCES, trained_length=256, narrow=True, named={"plain", "crop"})
    assert set(curves(figure)) == {"plain", "crop (zero)"}
    assert figure.get_figwidth() < 5


def test_copies_are_drawn_by_distance() -> None:
    """A line for each method from 0 to the window's length, intervals, hollow points, the bound, and the control."""
    copies = {
        "plain": {128.0: MeasuredValue(0.1, (-0.2, 0.4)), 512.0: MeasuredValue(0.0, None)},
        "yarn": {128.0: MeasuredValue(2.0, (1.5, 2.5)), 512.0: MeasuredValue(1.8, (-40.0, 50.0))},
    }
    control = {64.0: MeasuredValue(2.4, None), 192.0: MeasuredValue(1.9, None)}
    figure = copies_by_distance(
        copies, length=1024, trained_length=256, control=control, bound=0.95, recommended="yarn"
    )
    [axes] = figure.axes
    lines = curves(figure)
    assert lines["plain"] == [0.1, 0.0]
    assert lines["yarn (recommended)"] == [2.0, 1.8]
    assert lines["plain within its trained length"] == [2.4, 1.9]
    assert axes.get_xlim() == (0.0, 1024.0)
    assert axes.get_ylim()[1] < 5  # a wide interval is cut
    assert {text.get_text() for text in axes.texts} == {"trained length 256", "counts as copying"}
    hollow = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [float(line.get_ydata()[0]) for line in hollow] == [0.0]  # type: ignore[index]
    without = copies_by_distance(copies, length=1024, trained_length=256, narrow=True)
    assert "does not copy" in " ".join(text.get_text() for text in without.axes[0].texts)
    assert without.get_figwidth() < 5


def test_the_answer_grows_by_windows() -> None:
    """Two panels; a look that decided is filled; a look without a measurement has no point."""
    looks = [LookPoint(1, False, (0.03, (-0.1, 0.2)), None), LookPoint(2, True, (0.04, (0.0, 0.08)), (1.9, None))]
    figure = growing_answer(looks, method="yarn", most_loss=0.1, bound=0.95)
    left, right = figure.axes
    points = [line for line in left.lines if line.get_marker() == "o"]
    assert [(float(p.get_xdata()[0]), float(p.get_ydata()[0])) for p in points] == [(1.0, 0.03), (2.0, 0.04)]  # type: ignore[index]
    assert [p.get_markerfacecolor() == "white" for p in points] == [True, False]
    assert [len([line for line in axes.lines if line.get_marker() == "o"]) for axes in (left, right)] == [2, 1]
    assert [text.get_text() for text in left.texts] == ["must stay below"]
    low, high = left.get_ylim()
    assert low < -0.1
    assert high > 0.2


def test_colours_stay_apart_on_dark_pages() -> None:
    """The closest two of the methods are further apart than on a light page; plain is light."""

    def lab(color: str) -> np.ndarray:
        parts = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear
        x, y, z = np.cbrt(xyz / [0.9505, 1.0, 1.089])
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    colors = {look.color for look in LOOKS.values()}

    def closest(of: set[str]) -> float:
        return min(float(np.linalg.norm(lab(a) - lab(b))) for a in of for b in of if a < b)

    night = {night_color(color) for color in colors}
    assert len(night) == len(colors)
    assert closest(night) > max(20, closest(colors))
    assert contrast(night_color(LOOKS["plain"].color), CARD) > 10


def test_a_target_within_the_trained_length_has_no_mark() -> None:
    """Nothing lies beyond."""
    figure = loss_by_position(BLOCKS, {"plain": [3.0, 3.0, 3.0]}, trained_length=4096)
    assert not figure.axes[0].texts


def test_wavelengths_leave_out_what_does_not_turn() -> None:
    """None has no point; both lengths are marked."""
    figure = pair_wavelengths([6.0, 600.0, None], trained_length=512, target=2048, scaled={"yarn": [6.0, 2400.0, None]})
    assert curves(figure) == {"plain": [6.0, 600.0], "yarn": [6.0, 2400.0]}
    assert [text.get_text() for text in figure.axes[0].texts] == ["target 2k", "trained length 512"]
    pair_wavelengths([6.0], trained_length=None, target=2048)


def test_ratios_are_drawn_by_method() -> None:
    """With the full interpolation marked."""
    figure = frequency_ratios({"pi": [0.25, 0.25], "ntk = dynamic": [1.0, 0.25]}, factor=4.0)
    assert curves(figure) == {"pi": [0.25, 0.25], "ntk = dynamic": [1.0, 0.25]}
    assert figure.axes[0].texts[0].get_text() == "1 / 4: full interpolation"


def test_methods_are_told_apart_without_colour() -> None:
    """No two looks share both line and marker."""
    assert len({(look.line, look.marker) for look in LOOKS.values()}) == len(LOOKS)
    assert look_of("ntk = dynamic") == LOOKS["ntk"]
    assert look_of("something else") == OTHER


def test_drawing_leaves_matplotlib_as_it_was() -> None:
    """The style holds inside only."""
    import matplotlib

    before = dict(matplotlib.rcParams)
    render(frequency_ratios({"pi": [0.5]}, factor=2.0), "png")
    assert dict(matplotlib.rcParams) == before
