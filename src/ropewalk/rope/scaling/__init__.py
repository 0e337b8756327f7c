"""Scaling rules: each one maps a ladder of frequencies to a new one and names one attention factor.

A rule is a frozen dataclass whose fields are spelled as in Hugging Face's `rope_parameters`. If a paper and the code in
use differ, `variant` chooses: `"transformers"` (the default) is what transformers 5.23 computes, `"paper"` is the
published formula. Frequencies are computed in Python's own float64 arithmetic, without tensors, so no device, dtype,
tracer or meta-device context can change them. Every subclass of `Scaling` is an attribute of this module by its name.
"""

# mypy: implicit-reexport
# ruff: noqa: F401
from typing import Any

from ropewalk.rope.scaling.base import RULES, Ladder, Scaling, rule_from_dict
from ropewalk.rope.scaling.combined import LeRoPE, Resonance, Stacked
from ropewalk.rope.scaling.interpolation import ABF, NTK, DynamicNTK, Linear, Llama3, Proportional
from ropewalk.rope.scaling.yarn import LongRoPE, YaRN, yarn_mscale
from ropewalk.rope.values import Variant


def __getattr__(name: str) -> Any:
    """Return a rule that is not defined in this package, such as a user's class."""
    if name in RULES:
        return RULES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
