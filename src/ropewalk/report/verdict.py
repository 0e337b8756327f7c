"""The verdict in the report: its first sentence, the facts beside it, and the comparisons that it rests on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ropewalk.report.record import Document
from ropewalk.report.tables import Table
from ropewalk.statistics import signed

_FIRST = re.compile(r"(.+?[.:])\s+(?=[A-Z`])", re.DOTALL)


def verdict_of(document: Document) -> dict[str, Any]:
    """The document's verdict; one without an action for a record of the first version, which had none."""
    found = document.get("verdict")
    if found is not None:
        return dict(found)
    reason = " ".join(filter(None, (document["recommendation"].get(key) for key in ("reason", "crop_sentence"))))
    said = f"This record was made before the doctor gave verdicts. What it recommended then: {reason}"
    return {"action": None, "method": document["recommended"], "sentence": said}


def headline(sentence: str) -> tuple[str, str]:
    """The first sentence, and the others.

    >>> headline("Extend with dca to 1,024 tokens. Beyond 256 it changes the loss by -0.5 [-0.6, -0.4].")
    ('Extend with dca to 1,024 tokens.', 'Beyond 256 it changes the loss by -0.5 [-0.6, -0.4].')
    """
    first = _FIRST.match(sentence)
    return (sentence, "") if first is None else (first[1], sentence[first.end() :])


def reaches(verdict: Mapping[str, Any], trained_length: int, target: int, used: str = "") -> list[tuple[str, str]]:
    """What stands beside the verdict: lengths in tokens, each with what it says.

    `used`: where far tokens are shown to be used, in a few words; empty where that is not shown.
    """
    facts = [("wanted", f"{target:,} tokens"), ("trained to", f"{trained_length:,}")]
    if verdict["action"] in (None, "unfit"):
        return facts
    loss = verdict["reach_loss"]
    return [
        *facts,
        ("loss holds", "not shown" if loss is None else f"to {loss:,}"),
        ("far tokens used", used or "not shown"),
    ]


def evidence_table(document: Document) -> Table | None:
    """Each comparison with its interval and its result; None where there are none."""
    rows = [
        [
            one["name"],
            f"{one['method']} - {one['against']}",
            one["where"],
            signed(one["difference"], None if one["interval"] is None else tuple(one["interval"])),
            f"{one['margin']:+.2f}",
            one["result"],
        ]
        for one in verdict_of(document).get("evidence", [])
    ]
    if not rows:
        return None
    heads = ["question", "difference of", "where", "nats per token", "must lie below", "result"]
    return Table("What the verdict rests on", heads, rows)
