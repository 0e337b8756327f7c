"""DroPE (Gelberg et al. 2025, arXiv:2512.12167): the rotation is taken out, and the model tuned without it."""

from ropewalk.attention.extensions import DroPE
from ropewalk.methods.method import Look, Method

METHOD = Method(
    name="drope",
    order=150,
    changes="Takes the rotation out, after tuning without it.",
    costs="less than plain: nothing is rotated",
    not_in_config="it turns no pair and scales the logits by length, for which the model families have no key",
    nearest="yarn",
    source="2512.12167",
    extension=lambda reach: DroPE(factor=reach.factor),
    removes_rope=True,
    needs_tuning=True,
    tuned_at_trained_length=True,
    look=Look("#117733", "-", "d"),
)
