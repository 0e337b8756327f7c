"""What applying and serving read of a doctor's record, without a measurement."""

from __future__ import annotations

from typing import Any

from ropewalk.records import FORMAT


def record_of(
    *,
    name: str = "m",
    trained: int = 16,
    target: int = 64,
    costs: dict[str, tuple[float, float, float]] | None = None,
    audits: list[dict[str, Any]] | None = None,
    **verdict: Any,
) -> dict[str, Any]:
    """A record that recommends yarn; `verdict` replaces fields of the answer, `costs` are values with intervals."""
    answer = {"action": "extend", "headline": "Extend with yarn.", "method": "yarn", "length": None, "next": None}
    found = {
        method: {"cost": dict(zip(("value", "low", "high"), cost, strict=True))}
        for method, cost in (costs or {}).items()
    }
    return {
        "format": FORMAT,
        "name": name,
        "trained_length": trained,
        "target": target,
        "verdict": {**answer, **verdict},
        "inspection": {"audits": audits or [{}]},
        "methods": {method: {"same_as": None} for method in found},
        "evidence": {"standings": found},
    }
