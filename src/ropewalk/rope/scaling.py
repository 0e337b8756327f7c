"""Scaling rules: each one turns a ladder of frequencies into another, and names one attention factor.

A rule is a frozen dataclass whose fields are spelled as in Hugging Face's `rope_parameters`. Where a paper and the code
in use differ, `variant` says which: `"transformers"` (the default) is what transformers 5.23 computes, `"paper"` is the
published formula. Everything here is Python's own float64 arithmetic: no tensor, so nothing that a device, a dtype, a
tracer or a meta-device context could change.
"""

from ropewalk.rope.rules.base import Ladder, Scaling, Variant
from ropewalk.rope.rules.interpolation import ABF, NTK, DynamicNTK, Linear
from ropewalk.rope.rules.llama3 import Llama3
from ropewalk.rope.rules.longrope import LongRoPE
from ropewalk.rope.rules.proportional import Proportional
from ropewalk.rope.rules.resonance import Resonance
from ropewalk.rope.rules.yarn import YaRN, yarn_mscale

__all__ = [
    "ABF",
    "NTK",
    "DynamicNTK",
    "Ladder",
    "Linear",
    "Llama3",
    "LongRoPE",
    "Proportional",
    "Resonance",
    "Scaling",
    "Variant",
    "YaRN",
    "yarn_mscale",
]
