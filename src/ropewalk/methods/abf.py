"""Adjusted base frequency (Xiong et al. 2023, arXiv:2309.16039, section 4.1).

Theta is the smallest one, never below the checkpoint's, whose sum of cosines stays above zero up to the target: of the
frequencies as they are, under a scaling that the model was trained with.
"""

from __future__ import annotations

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.methods.reach import Reach
from ropewalk.methods.ropes import divisors_of
from ropewalk.rope.bounds import smallest_theta
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import ABF


def rule(base: RopeConfig, reach: Reach) -> ABF:
    """The smallest theta for the target."""
    divisors = None if base.scaling is None else divisors_of(base, reach.target)
    return ABF(smallest_theta(base.ladders[0].dim, reach.target, at_least=base.theta, divisors=divisors))


METHOD = Method(
    name="abf",
    order=70,
    changes="Raises theta until the sum of cos(m theta) stays positive up to the target.",
    costs=NO_COST,
    config="a larger rope_theta",
    source="2309.16039",
    scaling=rule,
    look=Look("#8c6d1f", "-.", "<"),
)
