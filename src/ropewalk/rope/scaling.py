"""Scaling rules: each one turns a ladder of frequencies into another, and names one attention factor.

A rule is a frozen dataclass whose fields are spelled as in Hugging Face's `rope_parameters`. Where a paper and the code
in use differ, `variant` says which: `"transformers"` (the default) is what transformers 5.23 computes, `"paper"` is the
published formula. Frequencies are Python's own float64 arithmetic: no tensor, so nothing that a device, a dtype, a
tracer or a meta-device context could change. Every subclass of `Scaling` is an attribute of this module by its name.
"""

from typing import Any

from ropewalk.rope.rules.base import RULES as RULES
from ropewalk.rope.rules.base import Ladder as Ladder
from ropewalk.rope.rules.base import Scaling as Scaling
from ropewalk.rope.rules.base import rule_from_dict as rule_from_dict
from ropewalk.rope.rules.base import rule_of_type as rule_of_type
from ropewalk.rope.rules.combined import PerAxis as PerAxis
from ropewalk.rope.rules.combined import Stacked as Stacked
from ropewalk.rope.rules.interpolation import ABF as ABF
from ropewalk.rope.rules.interpolation import NTK as NTK
from ropewalk.rope.rules.interpolation import DynamicNTK as DynamicNTK
from ropewalk.rope.rules.interpolation import Linear as Linear
from ropewalk.rope.rules.interpolation import Llama3 as Llama3
from ropewalk.rope.rules.longrope import LongRoPE as LongRoPE
from ropewalk.rope.rules.selected_pairs import CoPE as CoPE
from ropewalk.rope.rules.selected_pairs import Proportional as Proportional
from ropewalk.rope.rules.selected_pairs import Resonance as Resonance
from ropewalk.rope.rules.yarn import MrRoPE as MrRoPE
from ropewalk.rope.rules.yarn import YaRN as YaRN
from ropewalk.rope.rules.yarn import yarn_mscale as yarn_mscale
from ropewalk.rope.values import Variant as Variant


def __getattr__(name: str) -> Any:
    """A rule that this file does not name: one file in `rules`, or a class of the caller's."""
    if name in RULES:
        return RULES[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
