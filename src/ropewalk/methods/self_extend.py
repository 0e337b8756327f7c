"""Self-Extend (Jin et al. 2024, arXiv:2401.01325)."""

from __future__ import annotations

import math

from ropewalk.attention.extensions import SelfExtend
from ropewalk.methods.method import IN_ATTENTION, TWO_PASSES, Look, Method
from ropewalk.methods.reach import Reach


def extension(reach: Reach) -> SelfExtend:
    """A quarter of the trained length as it is; groups that keep the largest distance within two thirds of it."""
    window = max(1, reach.trained // 4)
    group = math.ceil(3 * (reach.target - window) / max(1, 2 * reach.trained - 3 * window))
    return SelfExtend(group=max(1, group), window=window)


METHOD = Method(
    name="self-extend",
    order=110,
    priority=4,
    changes="Near tokens as they are, farther ones by positions in groups.",
    costs=TWO_PASSES,
    not_in_config=IN_ATTENTION,
    nearest="yarn",
    source="2401.01325",
    extension=extension,
    equal_below=lambda reach: max(1, reach.trained // 4),
    look=Look("#44aa99", "--", "v"),
)
