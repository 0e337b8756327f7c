"""Figures show the numbers that they are given, in files that are the same for the same numbers."""

from __future__ import annotations

import pytest

from ropewalk.figures.loss import loss_by_position
from ropewalk.figures.ropes import frequency_ratios, wavelengths
from ropewalk.figures.style import LOOKS, OTHER, look_of, render
from ropewalk.figures.use import Estimate, gain_by_distance

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


def test_a_phone_has_names_for_a_few_only() -> None:
    """The other methods are there, quiet and without a name."""
    losses = {"plain": [3.0, 3.1, 5.0], "yarn": [3.1, 3.2, 3.3], "pi": [3.5, 3.5, 3.6], "crop": [3.0, 3.1, 3.4]}
    figure = loss_by_position(BLOCKS, losses, trained_length=256, narrow=True, named={"plain", "yarn", "crop"})
    assert set(curves(figure)) == {"plain", "yarn", "crop"}
    drawn = [line for line in figure.axes[0].lines if len(line.get_xdata()) == 3]
    assert [[float(y) for y in line.get_ydata()] for line in drawn] == list(losses.values())
    assert figure.get_figwidth() < 5


def test_gains_are_drawn_by_distance() -> None:
    """A line for each method on an axis that doubles, what counts as use, and the control."""
    copies = {
        "plain": {128: Estimate(6.0, (5.5, 6.5)), 512: Estimate(0.1, (-0.2, 0.4))},
        "dca": {128: Estimate(6.0, None)},
    }
    control = {64: Estimate(6.4, None)}
    figure = gain_by_distance(copies, trained_length=256, control=control, needed=3.2, recommended="dca")
    [axes] = figure.axes
    plain = next(one for one in axes.containers if one.get_label() == "plain")
    assert plain.lines[0].get_xydata().tolist() == [[128.0, 6.0], [512.0, 0.1]]
    ends = plain.lines[2][0].get_segments()
    assert [[round(float(y), 6) for _, y in end] for end in ends] == [[5.5, 6.5], [-0.2, 0.4]]
    assert {text.get_text() for text in axes.texts} == {"trained length 256", "counts as use"}
    assert axes.get_xscale() == "log"
    names = [text.get_text() for text in figure.legends[0].texts]
    assert names == ["plain, within the trained length", "plain", "dca (recommended)"]
    phone = gain_by_distance(copies, trained_length=256, needed=None, narrow=True)
    assert phone.get_figwidth() < 5


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
