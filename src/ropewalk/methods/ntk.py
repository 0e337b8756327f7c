"""NTK-aware scaling (bloc97 2023; Peng et al. 2023, arXiv:2309.00071, section 3.1)."""

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.rope.scaling import NTK

METHOD = Method(
    name="ntk",
    order=30,
    priority=3,
    changes="Raises theta: slow pairs are slowed by the factor, fast ones hardly.",
    costs=NO_COST,
    config="a larger rope_theta",
    scaling=lambda rope, reach: NTK(reach.factor),
    look=Look("#009e73", "-.", "^"),
)
