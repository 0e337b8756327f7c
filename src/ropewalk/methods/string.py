"""STRING (An et al. 2024, arXiv:2410.18745): reaches twice the trained length at most."""

from ropewalk.attention.extensions import STRING
from ropewalk.methods.method import IN_ATTENTION, TWO_PASSES, Look, Method
from ropewalk.methods.reach import Reach


def extension(reach: Reach) -> STRING:
    """A third of the trained length as it is, or as much more as keeps every distance within it."""
    window = max(1, min(128, reach.trained // 64))
    shift = max(reach.trained // 3, reach.target - reach.trained + window)
    return STRING(shift=max(window, min(reach.trained, shift)), window=window)


METHOD = Method(
    name="string",
    order=112,
    changes="Shifts far positions back to smaller ones; beyond twice the trained length they are new.",
    costs=TWO_PASSES,
    not_in_config=IN_ATTENTION,
    nearest="yarn",
    source="2410.18745",
    extension=extension,
    on_request=True,
    look=Look("#117733", "-.", "8"),
)
