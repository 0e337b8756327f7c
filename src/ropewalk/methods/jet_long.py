"""Jet-Long (arXiv:2604.13010) with a fixed group: a sixteenth of the trained length is exact, as 2,048 of 32,768."""

import math

from ropewalk.attention.extensions import JetLong
from ropewalk.methods.method import IN_ATTENTION, TWO_PASSES, Look, Method

METHOD = Method(
    name="jet-long",
    order=116,
    changes="Near tokens as they are, all others by positions in groups, without a shift between.",
    costs=TWO_PASSES,
    not_in_config=IN_ATTENTION,
    nearest="yarn",
    source="2604.13010",
    extension=lambda reach: JetLong(group=math.ceil(reach.target / reach.trained), window=max(1, reach.trained // 16)),
    on_request=True,
    look=Look("#44aa99", ":", "1"),
)
