"""Parts of a page in one file: SVG figures, colours of dark pages, and data in a script element."""

from __future__ import annotations

import colorsys
import json
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from ropewalk.atomic_io import finite
from ropewalk.figures.style import GRID, INK, LOOKS, OTHER, PALE, QUIET, SHADE
from ropewalk.methods import Look

_COLOR = re.compile(r"#([0-9a-f]{6})\b")
_POINTER = re.compile(r"url\(#")
_LEFT_OUT = {"metadata", "style"}


def inline_svg(svg: bytes, name: str, alt: str, *, scrolls: bool = True) -> str:
    """Return the `<svg>` element of a file of matplotlib as a part of an HTML page.

    Its style sheet is removed, because it would apply to the whole page; the page's own has the same rules. Colours
    become variables, which dark pages set: `#222222` becomes `var(--c-222222, #222222)`.

    **Arguments:**
    - `name`: prefix of every id.
    - `alt`: the label for screen readers.
    - `scrolls`: keep at least the drawn width, so that a narrow page scrolls the figure.

    >>> inline_svg(b'<svg xmlns="http://www.w3.org/2000/svg"><g id="a" style="fill: #222222"/></svg>', "loss", "A line")
    '<svg role="img" aria-label="A line"><g id="loss-a" style="fill: var(--c-222222, #222222)" /></svg>'
    """
    root = ElementTree.fromstring(svg)
    for parent in list(root.iter()):
        for child in [child for child in parent if _local(child.tag) in _LEFT_OUT]:
            parent.remove(child)
    ids: set[str] = set()
    for element in root.iter():
        element.tag = _local(element.tag)
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            element.set(_local(key), _apart(_local(key), value, name))
        own = element.get("id")
        if own in ids:  # equal images of matplotlib share an id, which nothing refers to
            del element.attrib["id"]
        elif own is not None:
            ids.add(own)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    if "viewBox" in root.attrib and scrolls:
        root.set("style", f"min-width:{float(root.attrib['viewBox'].split()[2]):.0f}px")
    root.set("role", "img")
    root.set("aria-label", printable(alt))
    return ElementTree.tostring(root, encoding="unicode").strip()


def _local(name: str) -> str:
    """Return a tag or attribute without its namespace, which HTML does not need inside `<svg>`."""
    return name.rpartition("}")[2]


def _apart(key: str, value: str, name: str) -> str:
    """Return an attribute's value with ids, and references to ids, prefixed."""
    if key == "id":
        return f"{name}-{value}"
    if key == "style":
        value = _COLOR.sub(r"var(--c-\1, #\1)", value)
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return _POINTER.sub(f"url(#{name}-", value)


def printable(text: str) -> str:
    """Return the text with unprintable characters (control characters, broken bytes) replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


CARD = "#1b1d20"
_FIXED = {"#ffffff": CARD, INK: "#e8e6e1", QUIET: "#a8a59c", GRID: "#35383d", SHADE: "#26292d", PALE: "#5d6066"}
# the same hues, further apart than their lightened forms would be
_NIGHT = {"#882255": "#ef5590", "#cc79a7": "#efbcd6", "#0072b2": "#2f93e0", "#56b4e9": "#9bd8f7", "#44aa99": "#7fd6c8",
          "#999933": "#d0d067", "#d55e00": "#f2703a", "#117733": "#57a336", "#009e73": "#00b98a"}  # fmt: skip
_LEAST_CONTRAST = 4.5  # of a line on the card: WCAG's limit for small text


def night_colors() -> str:
    """Return the colour variables of dark pages as the body of a CSS rule; methods keep their hue."""
    colors = {**{look.color: night_color(look.color) for look in (*LOOKS.values(), OTHER)}, **_FIXED}
    return " ".join(f"--c-{day.removeprefix('#')}: {night};" for day, night in sorted(colors.items()))


def night_color(color: str) -> str:
    """Return a colour's form on dark pages; the ink of light pages becomes light.

    >>> night_color("#222222"), night_color("#882255")
    ('#e8e6e1', '#ef5590')
    """
    return {**_FIXED, **_NIGHT}.get(color) or lighter(color)


def lighter(color: str) -> str:
    """Return the same hue, light enough to be legible on the dark card.

    >>> lighter("#0072b2"), lighter("#e69f00")
    ('#008cdb', '#e69f00')
    """
    red, green, blue = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    hue, light, saturation = colorsys.rgb_to_hls(red, green, blue)
    night = color
    while contrast(night, CARD) < _LEAST_CONTRAST and light < 1:
        light += 0.01
        parts = colorsys.hls_to_rgb(hue, light, saturation)
        night = "#" + "".join(f"{round(255 * part):02x}" for part in parts)
    return night


def contrast(one: str, other: str) -> float:
    """Return WCAG's contrast of two colours, 1 to 21."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}


def css_look(look: Look) -> dict[str, str]:
    """Return a method's colour on light and dark pages, and its dashes for SVG.

    >>> css_look(Look("#0072b2", ":"))
    {'color': 'light-dark(#0072b2, #2f93e0)', 'dash': '2 3'}
    """
    return {"color": f"light-dark({look.color}, {night_color(look.color)})", "dash": DASHES[look.line]}


def embedded(data: Mapping[str, Any]) -> str:
    r"""Return JSON that is safe inside a script element; NaN and infinities become null.

    >>> embedded({"a": "</script><!--"})
    '{"a":"\\u003c/script>\\u003c!--"}'
    """
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
