"""MrRoPE-Pro (arXiv:2601.22181)."""

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.rope.scaling import MrRoPE

METHOD = Method(
    name="mrrope",
    order=85,
    changes="As yarn, with divisors in a geometric row between the bounds.",
    costs=NO_COST,
    config="its factors, as longrope",
    source="2601.22181",
    scaling=lambda rope, reach: MrRoPE(reach.factor, reach.trained),
    on_request=True,
    look=Look("#0072b2", "--", "*"),
)
