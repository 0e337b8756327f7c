"""The scaling for inference that a checkpoint carries; one that it was trained with is `plain` already."""

from ropewalk.methods.method import Look, Method

METHOD = Method(
    name="as-is",
    order=10,
    priority=0,
    changes="Nothing: the scaling for inference that the checkpoint carries.",
    costs="nothing",
    config="as it is",
    keeps_own=True,
    look=Look("#56b4e9", "-", "P"),
)
