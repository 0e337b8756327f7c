"""The model as it was trained: what every difference is paired to."""

from ropewalk.methods.method import Look, Method

METHOD = Method(
    name="plain",
    order=0,
    changes="Nothing: the model as it was trained, a scaling for inference removed.",
    costs="nothing",
    config="default",
    look=Look("#222222", "-", "o"),
)
