"""Adjusted base frequency (Xiong et al. 2023, arXiv:2309.16039, section 4.1).

Theta is the smallest one, never below the checkpoint's, whose sum of cosines stays above zero up to the target.
"""

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.rope.bounds import smallest_theta
from ropewalk.rope.scaling import ABF

METHOD = Method(
    name="abf",
    order=70,
    changes="Raises theta until the sum of cos(m theta) stays positive up to the target.",
    costs=NO_COST,
    config="a larger rope_theta",
    source="2309.16039",
    scaling=lambda rope, reach: ABF(smallest_theta(rope.ladders[0].dim, reach.target, at_least=rope.theta)),
    look=Look("#8c6d1f", "-.", "<"),
)
