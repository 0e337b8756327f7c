"""Log-n scaling of the logits (Su 2021; Chiang and Cholak 2022, arXiv:2202.12172)."""

from ropewalk.attention.extensions import LogN
from ropewalk.methods.method import Look, Method

METHOD = Method(
    name="log-n",
    order=130,
    changes="Logits grow with the logarithm of the position.",
    costs="one multiplication per query",
    not_in_config="it scales each query by its own position, and a config has one factor for all",
    nearest="yarn",
    source="2202.12172",
    extension=lambda reach: LogN(trained_length=reach.trained),
    equal_below=lambda reach: reach.trained,
    look=Look("#767676", ":", "x"),
)
