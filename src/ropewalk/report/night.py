"""What each colour of a figure is in a dark page: CSS variables, which `inline_svg` refers to."""

from __future__ import annotations

import colorsys

from ropewalk.figures.style import GRID, INK, LOOKS, OTHER, PALE, QUIET, SHADE

CARD = "#1b1d20"
_FIXED = {"#ffffff": CARD, INK: "#e8e6e1", QUIET: "#a8a59c", GRID: "#35383d", SHADE: "#26292d", PALE: "#5d6066"}
_LEAST_CONTRAST = 4.5  # of a line on the card: WCAG's for small text


def night_colors() -> str:
    """The variables, as the body of a CSS rule: quiet colours exchanged, those of methods lighter, of the same hue."""
    colors = {**{look.color: lighter(look.color) for look in (*LOOKS.values(), OTHER)}, **_FIXED}
    return " ".join(f"--c-{day.removeprefix('#')}: {night};" for day, night in sorted(colors.items()))


def lighter(color: str) -> str:
    """The same hue, light enough to be read on the dark card.

    >>> lighter("#0072b2"), lighter("#e69f00")
    ('#008cdb', '#e69f00')
    """
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    found = color
    while contrast(found, CARD) < _LEAST_CONTRAST and light < 1:
        light += 0.01
        parts = colorsys.hls_to_rgb(hue, light, saturation)
        found = "#" + "".join(f"{round(255 * part):02x}" for part in parts)
    return found


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
