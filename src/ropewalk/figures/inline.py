"""Parts of a page in one file: SVG figures, colours of dark pages, and data in a script element."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from ropewalk.atomic_io import finite
from ropewalk.figures.style import GRID, INK, PALE, QUIET, SHADE
from ropewalk.methods import Look

_COLOR = re.compile(r"#([0-9a-f]{6})\b")
_POINTER = re.compile(r"url\(#")
_LEFT_OUT = {"metadata", "style"}


def inline_svg(svg: bytes, name: str, alt: str) -> str:
    """Return the `<svg>` element of a file of matplotlib as a part of an HTML page.

    Its style sheet is removed, because it would apply to the whole page; the page's own has the same rules. Colours
    become variables, which dark pages set: `#222222` becomes `var(--c-222222, #222222)`.

    `name` is the prefix of every id, `alt` the label for screen readers.

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
    root.set("role", "img")
    root.set("aria-label", "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in alt))
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


CARD = "#1b1d20"
# each colour on dark pages: light enough to be legible on the card, and the methods' hues further apart than by day
NIGHT = {
    "#ffffff": CARD, INK: "#e8e6e1", QUIET: "#a8a59c", GRID: "#35383d", SHADE: "#26292d", PALE: "#5d6066",
    "#882255": "#ef5590", "#cc79a7": "#efbcd6", "#0072b2": "#2f93e0", "#56b4e9": "#9bd8f7", "#44aa99": "#7fd6c8",
    "#d55e00": "#f2703a", "#117733": "#57a336", "#009e73": "#00b98a", "#332288": "#8776dd", "#8c6d1f": "#a58125",
    "#e69f00": "#e69f00",
}  # fmt: skip


def night_colors() -> str:
    """Return the colour variables of dark pages as the body of a CSS rule; methods keep their hue."""
    return " ".join(f"--c-{day.removeprefix('#')}: {night};" for day, night in sorted(NIGHT.items()))


DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}


def css_look(look: Look) -> dict[str, str]:
    """Return a method's colour on light and dark pages, and its dashes for SVG.

    >>> css_look(Look("#0072b2", ":"))
    {'color': 'light-dark(#0072b2, #2f93e0)', 'dash': '2 3'}
    """
    return {"color": f"light-dark({look.color}, {NIGHT[look.color]})", "dash": DASHES[look.line]}


def embedded(data: Mapping[str, Any]) -> str:
    r"""Return JSON that is safe inside a script element; NaN and infinities become null.

    >>> embedded({"a": "</script><!--"})
    '{"a":"\\u003c/script>\\u003c!--"}'
    """
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
