"""A figure's SVG as part of an HTML page: no prolog, no names shared with its neighbours, and a text for the blind."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from ropewalk.report.record import printable

_COLOR = re.compile(r"#([0-9a-f]{6})\b")
_POINTER = re.compile(r"url\(#")
_LEFT_OUT = {"metadata", "style"}


def inline_svg(svg: bytes, name: str, alt: str, *, scrolls: bool = True) -> str:
    """The `<svg>` element of a file that matplotlib wrote, with every id prefixed by `name` and `alt` as its label.

    The file's own style sheet is left out: in a page it would reach every element. The page's has the same rules, and
    may give each colour another value at night: `#222222` becomes `var(--c-222222, #222222)`.

    `scrolls`: it is never narrower than drawn, and what is wider than its card scrolls.

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
        if own in ids:  # matplotlib names an image by its content: equal ones share an id, and nothing points to it
            del element.attrib["id"]
        elif own is not None:
            ids.add(own)
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    if "viewBox" in root.attrib and scrolls:  # narrower than this its words could not be read: the card scrolls
        root.set("style", f"min-width:{float(root.attrib['viewBox'].split()[2]):.0f}px")
    root.set("role", "img")
    root.set("aria-label", printable(alt))
    return ElementTree.tostring(root, encoding="unicode").strip()


def _local(name: str) -> str:
    """A tag or attribute without its namespace: HTML knows what stands inside `<svg>`."""
    return name.rpartition("}")[2]


def _apart(key: str, value: str, name: str) -> str:
    """An attribute's value, with ids and what points to them prefixed."""
    if key == "id":
        return f"{name}-{value}"
    if key == "style":
        value = _COLOR.sub(r"var(--c-\1, #\1)", value)
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return _POINTER.sub(f"url(#{name}-", value)
