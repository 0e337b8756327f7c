"""YaRN (Peng et al. 2023, arXiv:2309.00071, sections 3.2 to 3.4)."""

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.rope.scaling import YaRN

METHOD = Method(
    name="yarn",
    order=50,
    priority=1,
    changes="Divides slow pairs by the factor, leaves fast ones, blends between; sharpens the logits a little.",
    costs=NO_COST,
    config="yarn",
    source="2309.00071",
    scaling=lambda rope, reach: YaRN(reach.factor, reach.trained),
    look=Look("#0072b2", "-", "D"),
)
