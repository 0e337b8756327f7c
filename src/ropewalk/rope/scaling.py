"""Scaling rules: each one maps a ladder of frequencies to a new one and names one attention factor.

A rule is a frozen dataclass whose fields are spelled as in Hugging Face's `rope_parameters`. If a paper and the code in
use differ, `variant` chooses: `"transformers"` (the default) is what transformers 5.23 computes, `"paper"` is the
published formula. Frequencies are computed in Python's own float64 arithmetic, without tensors, so no device, dtype,
tracer or meta-device context can change them. Every subclass of `Scaling` is an attribute of this module by its name.
"""

# mypy: implicit-reexport
# ruff: noqa: F401
from typing import Any

from ropewalk.rope.rules.base import RULES, Ladder, Scaling, rule_from_dict, rule_of_type
from ropewalk.rope.rules.combined import LeRoPE, PerAxis, Stacked
from ropewalk.rope.rules.diffusion import DyPE, RIFLEx
from ropewalk.rope.rules.interpolation import ABF, NTK, DynamicNTK, Linear, Llama3
from ropewalk.rope.rules.longrope import LongRoPE
from ropewalk.rope.rules.selected_pairs import CoPE, Proportional, Resonance
from ropewalk.rope.rules.yarn import MrRoPE, YaRN, yarn_mscale
from ropewalk.rope.values import Variant


def __getattr__(name: str) -> Any:
    """Return a rule that is not defined in this file, such as a user's class."""
    if name in RULES:
        return RULES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
