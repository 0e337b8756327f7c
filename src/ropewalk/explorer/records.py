"""The doctor's records as the explorer reads them: the same document, without what no picture shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]
KEYS = ("model", "trained_length", "target", "blocks", "recommended")
OF_METHOD = ("name", "loss_by_block", "ci_by_block", "loss_within", "loss_beyond", "same_as")
OF_USE = ("method", "test", "distance", "gain", "interval", "control", "needed")


def record_entry(document: Document) -> dict[str, Any]:
    """The keys that web/src/pictures/loss.ts reads, with their values as they stand in the document.

    A reader's own file is read there in the same way: it holds these keys among others.

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
