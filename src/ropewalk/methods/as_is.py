"""The checkpoint's own scaling."""

from ropewalk.methods.method import Look, Method

METHOD = Method(
    name="as-is",
    order=10,
    priority=0,
    changes="Nothing: the scaling that the checkpoint carries.",
    costs="nothing",
    config="as it is",
    keeps_own=True,
    look=Look("#56b4e9", "-", "P"),
)
