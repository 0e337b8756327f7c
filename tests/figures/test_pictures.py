"""Colours and marks of methods are told apart, on light and dark pages and in grey."""

from __future__ import annotations

import numpy as np

from ropewalk.figures.inline import CARD, contrast, night_color
from ropewalk.figures.style import LOOKS, OTHER, look_of


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


def test_methods_are_told_apart_without_colour() -> None:
    """No two looks share both line and marker."""
    assert len({(look.line, look.marker) for look in LOOKS.values()}) == len(LOOKS)
    assert look_of("ntk = dynamic") == LOOKS["ntk"]
    assert look_of("something else") == OTHER
