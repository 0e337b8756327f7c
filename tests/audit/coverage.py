"""How `ropewalk.audit.check` checks each rotary class of transformers: `python -m tests.audit.coverage`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn

from ropewalk.audit.findings import Finding
from ropewalk.audit.live_check import check, examine
from ropewalk.errors import RopeError
from ropewalk.rope.config import ropes_of_layer_types
from tests.parity.causal import causal_families, small_model
from tests.parity.classes import Part, config_of, reading_of, rotary_classes

WAYS = ("called", "tables", "frequencies")


def built(part: Part) -> tuple[nn.Module, Any] | str:
    """A new module of a rotary class with the defaults of its config, and that config; or why there is none."""
    try:
        config = config_of(part)
        return part.cls(config), config
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def way(part: Part) -> tuple[str, list[str]]:
    """The best of the ways in which a class is checked, "not checked" or "not built"; and its warnings and errors."""
    made = built(part)
    if isinstance(made, str):
        return "not built", [made]
    module, config = made
    try:
        how, problems = examine(module, ropes_of_layer_types(reading_of(config)))
    except RopeError as error:
        return "not checked", [str(error).splitlines()[0]]
    bad = [problem.text for problem in problems if problem.severity != "note"]
    return next((way for way in WAYS if way in how), "not checked"), bad


def causal_findings() -> dict[str, tuple[Finding, ...] | str]:
    """The findings on a small random model of each causal family with its own config; or why it cannot be built."""
    found: dict[str, tuple[Finding, ...] | str] = {}
    for name in causal_families():
        try:
            model = small_model(name)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            continue
        found[name] = check(model)
    return found


def main() -> None:
    """Print the numbers of docs/check.md."""
    ways = {part.name: way(part) for part in rotary_classes()}
    print(f"{len(rotary_classes())} rotary classes:", dict(Counter(how for how, _ in ways.values())))
    for name, (how, bad) in ways.items():
        if how not in ("called", "tables") or bad:
            print(f"  {name}: {how} {bad}")
    families = causal_findings()
    built_ones = {name: found for name, found in families.items() if not isinstance(found, str)}
    bad_ones = {name: found for name, found in built_ones.items() if any(f.severity != "note" for f in found)}
    print(f"{len(families)} causal families: {len(built_ones)} built, {len(bad_ones)} with a warning or an error")
    for name, found in families.items():
        if isinstance(found, str) or found:
            print(f"  {name}: {found if isinstance(found, str) else [(f.code, f.message) for f in found]}")


if __name__ == "__main__":
    main()
