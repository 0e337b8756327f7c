"""Figures show the numbers that they are given, in files that are the same for the same numbers."""

from __future__ import annotations

import pytest

from ropewalk.figures.frequencies import frequency_ratios, wavelengths
from ropewalk.figures.loss import loss_by_position
from ropewalk.figures.style import LOOKS, OTHER, look_of, render

pytest.importorskip("matplotlib")
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
    bands = {"plain": [(2.9, 3.1), (3.0, 3.2), None]}
    figure = loss_by_position(BLOCKS, losses, trained_length=256, intervals=bands, recommended="yarn")
    assert curves(figure) == {"plain": losses["plain"], "yarn (recommended)": losses["yarn"], "crop": losses["crop"]}
    axes = figure.axes[0]
    assert [float(x) for x in axes.lines[1].get_xdata()] == [64.0, 192.0, 320.0]
    assert [text.get_text() for text in axes.texts] == ["trained length 256"]
    assert axes.get_ylabel() == "loss (nats per token)"


def test_a_target_within_the_trained_length_has_no_mark() -> None:
    """Nothing lies beyond."""
    figure = loss_by_position(BLOCKS, {"plain": [3.0, 3.0, 3.0]}, trained_length=4096)
    assert not figure.axes[0].texts


def test_wavelengths_leave_out_what_does_not_turn() -> None:
    """None has no point; both lengths are marked."""
    figure = wavelengths([6.0, 600.0, None], trained_length=512, target=2048, scaled={"yarn": [6.0, 2400.0, None]})
    assert curves(figure) == {"plain": [6.0, 600.0], "yarn": [6.0, 2400.0]}
    assert [text.get_text() for text in figure.axes[0].texts] == ["target 2k", "trained length 512"]
    wavelengths([6.0], trained_length=None, target=2048)


def test_ratios_are_drawn_by_method() -> None:
    """With the full interpolation marked."""
    figure = frequency_ratios({"pi": [0.25, 0.25], "ntk = dynamic": [1.0, 0.25]}, factor=4.0)
    assert curves(figure) == {"pi": [0.25, 0.25], "ntk = dynamic": [1.0, 0.25]}
    assert figure.axes[0].texts[0].get_text() == "1 / 4: full interpolation"


@pytest.mark.parametrize(("kind", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_files_are_the_same_for_the_same_numbers(kind: str, magic: bytes) -> None:
    """No dates, no random names."""
    first, second = (render(frequency_ratios({"pi": [0.5, 0.5]}, factor=2.0), kind) for _ in range(2))
    assert first == second
    assert first.startswith(magic)


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
