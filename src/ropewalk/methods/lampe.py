"""LaMPE (arXiv:2508.02308), in the shares of its released code for 4,096 tokens."""

from ropewalk.attention.extensions import LaMPE
from ropewalk.methods.method import IN_ATTENTION, TWO_PASSES, Look, Method

METHOD = Method(
    name="lampe",
    order=114,
    changes="Near tokens as they are; farther ones are mapped onto three eighths of the trained length.",
    costs=TWO_PASSES,
    not_in_config=IN_ATTENTION,
    nearest="yarn",
    source="2508.02308",
    extension=lambda reach: LaMPE(
        window=max(1, reach.trained // 8), mapped=max(1, 3 * reach.trained // 8), length=reach.target
    ),
    on_request=True,
    look=Look("#117733", ":", "P"),
)
