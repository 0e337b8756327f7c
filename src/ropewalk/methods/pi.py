"""Position interpolation (Chen et al. 2023, arXiv:2306.15595, eq. 4)."""

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.rope.scaling import Linear

METHOD = Method(
    name="pi",
    order=20,
    changes="Divides every frequency by the factor.",
    costs=NO_COST,
    config="linear",
    source="2306.15595",
    scaling=lambda rope, reach: Linear(reach.factor),
    look=Look("#e69f00", "--", "s"),
)
