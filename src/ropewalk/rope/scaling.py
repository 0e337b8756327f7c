"""Scaling rules: each one turns a ladder of frequencies into another, and names one attention factor.

A rule is a frozen dataclass whose fields are spelled as in Hugging Face's `rope_parameters`. Where a paper and the code
in use differ, `variant` says which: `"transformers"` (the default) is what transformers 5.23 computes, `"paper"` is the
published formula. Frequencies are Python's own float64 arithmetic: no tensor, so nothing that a device, a dtype, a
tracer or a meta-device context could change. Every subclass of `Scaling` is an attribute of this module by its name.
"""

from typing import Any

from ropewalk.rope.rules.base import RULES, Ladder, Scaling, rule_from_dict, rule_of_type
from ropewalk.rope.rules.checks import Variant
from ropewalk.rope.rules.cope import CoPE
from ropewalk.rope.rules.interpolation import ABF, NTK, DynamicNTK, Linear
from ropewalk.rope.rules.llama3 import Llama3
from ropewalk.rope.rules.longrope import LongRoPE
from ropewalk.rope.rules.mrrope import MrRoPE
from ropewalk.rope.rules.per_axis import PerAxis
from ropewalk.rope.rules.proportional import Proportional
from ropewalk.rope.rules.resonance import Resonance
from ropewalk.rope.rules.stacked import Stacked
from ropewalk.rope.rules.yarn import YaRN, yarn_mscale

__all__ = [
    "ABF",
    "NTK",
    "RULES",
    "CoPE",
    "DynamicNTK",
    "Ladder",
    "Linear",
    "Llama3",
    "LongRoPE",
    "MrRoPE",
    "PerAxis",
    "Proportional",
    "Resonance",
    "Scaling",
    "Stacked",
    "Variant",
    "YaRN",
    "rule_from_dict",
    "rule_of_type",
    "yarn_mscale",
]


def __getattr__(name: str) -> Any:
    """A rule that this file does not name: one file in `rules`, or a class of the caller's."""
    if name in RULES:
        return RULES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
