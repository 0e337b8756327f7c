"""p-RoPE (Barbero et al. 2024, arXiv:2410.06205): three quarters of the pairs turn, as in the paper's best model."""

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.rope.scaling import Proportional

METHOD = Method(
    name="p-rope",
    order=90,
    changes="Stops the slowest quarter of the pairs: they carry no position any more. Needs tuning.",
    costs=NO_COST,
    config="proportional",
    source="2410.06205",
    scaling=lambda rope, reach: Proportional(0.75),
    needs_tuning=True,
    look=Look("#cc79a7", "-.", "H"),
)
