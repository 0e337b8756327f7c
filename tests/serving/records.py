"""What applying and serving read of a doctor's record, without a measurement."""

from __future__ import annotations

from typing import Any

from ropewalk.records import FORMAT


def record_of(
    *,
    name: str = "m",
    trained: int = 16,
    target: int = 64,
    audits: list[dict[str, Any]] | None = None,
    **verdict: Any,
) -> dict[str, Any]:
    """A record that recommends yarn; `verdict` replaces fields of the answer."""
    answer = {"action": "extend", "headline": "Extend with yarn.", "method": "yarn", "length": None, "next": None}
    return {
        "format": FORMAT,
        "name": name,
        "trained_length": trained,
        "target": target,
        "verdict": {**answer, **verdict},
        "inspection": {"audits": audits or [{}]},
    }
