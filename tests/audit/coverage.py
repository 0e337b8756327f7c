"""Which rotary classes of transformers `ropewalk.audit.check` checks, and its findings on small causal models."""

from __future__ import annotations

from ropewalk.audit.findings import Finding
from ropewalk.audit.live_check import check, examine
from ropewalk.errors import RopeError
from ropewalk.families import FAMILIES, family_name
from ropewalk.rope.model_ropes import ModelRopes
from tests.parity.causal import causal_families, small_model
from tests.parity.classes import Part, config_of, reading_of


def class_findings(part: Part) -> tuple[bool, list[str]]:
    """Whether a new module of a rotary class is checked; and its warnings and errors."""
    try:
        config = config_of(part)
        module = part.cls(config)
    except Exception:  # some default configs do not fit their class
        return False, []
    try:
        family = FAMILIES.get(family_name(config.model_type) or "")
        problems = examine(module, ModelRopes.from_hf(reading_of(config)), family and family.module.looked_up)
    except RopeError:
        return False, []
    bad = [problem.text for problem in problems if problem.severity != "note"]
    return not any(problem.code == "not-checked" for problem in problems), bad


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
