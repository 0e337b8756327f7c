"""Dynamic NTK (emozilla 2023; Peng et al. 2023, arXiv:2309.00071, section 3.3).

Its factor is 1, so that at the length of a window it stretches by exactly target / trained, as `ntk` does.
"""

from ropewalk.methods.method import Look, Method
from ropewalk.rope.scaling import DynamicNTK

METHOD = Method(
    name="dynamic",
    order=40,
    changes="As ntk, by the length at hand: short texts stay as they are.",
    costs="cached keys are computed again when the length grows",
    config="dynamic",
    when_shared="In use it leaves texts within the trained length as they are.",
    scaling=lambda rope, reach: DynamicNTK(1.0),
    look=Look("#009e73", ":", "v"),
)
