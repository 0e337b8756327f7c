"""CoPE-clip (arXiv:2602.05258): the slowest 20 of 64 pairs, or as many in proportion."""

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.methods.reach import Reach
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import CoPE


def scaling(rope: RopeConfig, reach: Reach) -> CoPE:
    """The same share of the pairs as the authors clip."""
    return CoPE(max(2, round(20 / 64 * (rope.rotary_dim or rope.head_dim) / 2)))


METHOD = Method(
    name="cope",
    order=95,
    changes="Slows the slowest third of the pairs, the last to a standstill. Meant for tuning.",
    costs=NO_COST,
    not_in_config="a pair that stands still beside others that are slowed is no rule of transformers",
    nearest="p-rope",
    source="2602.05258",
    scaling=scaling,
    needs_tuning=True,
    look=Look("#cc79a7", ":", "h"),
)
