"""The retrieval figures: each number in its cell, the trained length, what is missing; curves by distance."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from ropewalk.figures.style import ON_DARK, ON_LIGHT, render
from ropewalk.figures.use import Estimate, accuracy_by_distance, heat_map

TABLE = [[1.0, 0.5, None], [0.25, 0.125, 0.0]]


def drawn(methods: int = 1, **changes: object) -> Figure:
    given: dict[str, object] = {"lengths": [256, 512, 1024], "rows": ["0", "1"], "trained_length": 512, "chance": 0.125}
    return heat_map({f"method {index}": TABLE for index in range(methods)}, **{**given, "n": 8, **changes})  # type: ignore[arg-type]


def test_every_number_stands_in_its_cell() -> None:
    """And a dash where nothing was measured; light on dark, dark on light."""
    axes = drawn().axes[0]
    found = {(round(text.get_position()[1]), round(text.get_position()[0])): text for text in axes.texts}
    assert {place: text.get_text() for place, text in found.items()} == {
        (0, 0): "1.00", (0, 1): "0.50", (0, 2): "\u2013", (1, 0): "0.25", (1, 1): "0.12", (1, 2): "0.00",
    }  # fmt: skip
    assert found[1, 2].get_color() == ON_DARK
    assert found[0, 0].get_color() == ON_LIGHT
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["256", "512", "1k"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "1"]


def test_colours_have_one_scale() -> None:
    """From 0 to 1 in every panel, whatever the numbers."""
    narrow = heat_map({"a": [[0.4, 0.5]], "b": [[0.1, 0.2]]}, lengths=[256, 512], rows=["0"])
    for axes in narrow.axes[:2]:
        assert axes.images[0].get_clim() == (0.0, 1.0)


@pytest.mark.parametrize(
    ("trained", "place", "said"),
    [
        (512, 1.5, "trained length 512 (dashed line)"),
        (600, 1.5, "trained length 600 (dashed line)"),
        (2048, None, "trained length 2k (all texts are within it)"),
        (128, None, "trained length 128 (all texts are beyond it)"),
    ],
)
def test_the_trained_length_is_between_columns(trained: int, place: float | None, said: str) -> None:
    """After the last column within it; in words where there is no such place."""
    figure = drawn(trained_length=trained)
    assert {line.get_xdata()[0] for line in figure.axes[0].lines} == ({place} if place else set())  # type: ignore[index]
    assert said in figure.get_supxlabel()


def test_chance_and_the_number_of_examples_are_named() -> None:
    """And drawn on the colour bar; left out where they are not known."""
    figure = drawn()
    assert "each cell n=8; chance 0.125 (dashed on the bar)" in figure.get_supxlabel()
    assert figure.axes[-1].lines[-1].get_ydata()[0] == 0.125  # type: ignore[index]
    assert "each cell n=4 to 20" in drawn(n=[20, 4]).get_supxlabel()
    assert drawn(n=None, chance=None, trained_length=None).get_supxlabel() == ""


def test_many_methods_go_on_new_lines() -> None:
    """Three in a line; empty places are not drawn; each has its name."""
    figure = drawn(4)
    seen = [axes for axes in figure.axes if axes.get_visible() and axes.texts]
    assert [axes.get_title(loc="left") for axes in seen] == [f"method {index}" for index in range(4)]


def test_the_same_numbers_are_the_same_file() -> None:
    """PNG and SVG."""
    for kind in ("png", "svg"):
        first, second = (render(drawn(), kind) for _ in range(2))
        assert first == second


CURVES = {
    512: {"plain": {128.0: Estimate(0.9, (0.8, 0.95)), 384.0: Estimate(0.5, (0.3, 0.7))}},
    1024: {
        "plain": {256.0: Estimate(0.8, (0.7, 0.9)), 768.0: Estimate(0.1, (0.02, 0.2))},
        "crop": {256.0: Estimate(0.7, None)},
    },
}


def test_curves_stand_at_their_distances() -> None:
    """A panel for each length, from 0 to it; whiskers where there are intervals, the trained length, chance."""
    figure = accuracy_by_distance(CURVES, trained_length=600, chance=0.125)
    first, second = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["text of 512 tokens", "text of 1k tokens"]
    line, _, [whiskers] = first.containers[0]
    assert list(line.get_xdata()) == [128.0, 384.0]
    assert list(line.get_ydata()) == [0.9, 0.5]
    ends = sorted(sorted(point[1] for point in segment) for segment in whiskers.get_segments())
    assert ends == [pytest.approx([0.3, 0.7]), pytest.approx([0.8, 0.95])]
    plain, crop = second.containers
    assert len(plain[2]) == 1
    assert crop[2] == ()
    assert abs(plain[0].get_xdata()[0] - 256) < 0.02 * 1024
    assert second.get_xlim() == (0.0, 1024.0)
    assert [text.get_text() for text in second.texts] == ["trained length 600"]
    assert not list(first.texts)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["plain", "crop", "chance"]
    assert accuracy_by_distance({1024: CURVES[1024]}, narrow=True).get_size_inches()[0] < 5


def test_the_same_curves_are_the_same_file() -> None:
    """PNG and SVG."""
    for kind in ("png", "svg"):
        first, second = (render(accuracy_by_distance(CURVES, trained_length=600), kind) for _ in range(2))
        assert first == second
