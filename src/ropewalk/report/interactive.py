"""The interactive part of the report: its program, built from web/, and the data that it reads."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

from ropewalk.atomic_io import finite
from ropewalk.methods import METHODS
from ropewalk.methods.method import Look
from ropewalk.report.inline import lighter
from ropewalk.report.record import Document

DASHES = {"-": "", "--": "7 4", "-.": "8 3 2 3", ":": "2 3"}
KEYS = ("model", "trained_length", "target", "blocks", "recommended")
OF_METHOD = ("name", "loss_by_block", "ci_by_block", "loss_within", "loss_beyond", "same_as")
OF_USE = ("method", "test", "distance", "gain", "interval", "control", "needed")


def record_entry(document: Document) -> dict[str, Any]:
    """Return the keys that web/src/record.ts reads, with their values in the document.

    >>> document = {key: None for key in KEYS} | {
    ...     "methods": [], "protocol": {"sentence": "One window."}, "recommendation": {}, "more": 1
    ... }
    >>> "more" in record_entry(document)
    False
    """
    return {
        **{key: document[key] for key in KEYS},
        "methods": [_kept(method, OF_METHOD) for method in document["methods"]],
        "use": [_kept(row, OF_USE) for row in document.get("use") or []],
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
    {'color': 'light-dark(#0072b2, #008cdb)', 'dash': '2 3'}
    """
    return {"color": f"light-dark({look.color}, {lighter(look.color)})", "dash": DASHES[look.line]}


def embedded(data: Mapping[str, Any]) -> str:
    r"""Return JSON that is safe inside a script element; NaN and infinities become null.

    >>> embedded({"a": "</script><!--"})
    '{"a":"\\u003c/script>\\u003c!--"}'
    """
    text = json.dumps(finite(data), separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c")
