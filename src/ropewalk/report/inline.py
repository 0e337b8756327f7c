"""Parts of a page in one file: SVG figures, colours of dark pages, the report's program and its data."""

from __future__ import annotations

import base64
import colorsys
import hashlib
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple
from xml.etree import ElementTree

from ropewalk.atomic_io import finite
from ropewalk.figures.style import GRID, INK, LOOKS, OTHER, PALE, QUIET, SHADE
from ropewalk.methods import METHODS, Look
from ropewalk.report.record import Document, copies_of_use, crop_differences, labels, printable

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
KEYS = ("model", "trained_length", "target", "blocks", "recommended")
OF_METHOD = ("name", "loss_by_block", "ci_by_block", "loss_within", "loss_beyond", "same_as")
OF_COPY = ("method", "length", "distance", "gain", "interval")


def record_entry(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that web/src/record.ts reads, with their values in the document.

    >>> document = {key: None for key in KEYS} | {
    ...     "methods": [], "protocol": {"sentence": "One window."}, "recommendation": {}, "more": 1
    ... }
    >>> "more" in record_entry(document)
    False
    """
    differences, named = crop_differences(document), labels(document)
    copied = document.get("copies") or (copies_of_use(document) if document.get("use") else None)
    methods = []
    for method in document["methods"]:
        values, intervals = differences.get(named.get(method["name"], ""), (None, None))
        apart = {"crop_difference_by_block": values, "crop_difference_by_block_ci": intervals}
        methods.append({**_kept(method, OF_METHOD), **apart})
    return {
        **{key: document[key] for key in KEYS},
        "methods": methods,
        "copies": None
        if copied is None
        else {"bound": copied["bound"], "rows": [_kept(row, OF_COPY) for row in copied["rows"]]},
        "verdict": {"sentence": (document.get("verdict") or document["recommendation"]).get("sentence")},
        "protocol": {"sentence": document["protocol"]["sentence"]},
    }


def _kept(row: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: row.get(key) for key in keys}


class Program(NamedTuple):
    """The report's program of `make web`, its hash for the page's security policy, and the JSON that it reads."""

    text: str
    policy: str
    data: str


def program(document: Document) -> Program:
    """Return the program that makes the report's figures interactive; the page is complete without it."""
    text = resources.files("ropewalk.report").joinpath("interactive.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    looks = [{"name": name, **css_look(method.look)} for name, method in METHODS.items()]
    return Program(text, f"sha256-{digest}", embedded({"record": record_entry(document), "methods": looks}))


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
