"""StreamingLLM (Xiao et al. 2023, arXiv:2309.17453): four sinks, and the latest tokens up to the trained length."""

from ropewalk.attention.extensions import StreamingLLM
from ropewalk.methods.method import DROPS_TOKENS, Look, Method

METHOD = Method(
    name="streaming",
    order=140,
    changes="Sees the first few tokens and the latest: keeps a stream going, does not extend.",
    costs="less than plain: a bounded number of keys, turned again for each token",
    not_in_config=DROPS_TOKENS,
    source="2309.17453",
    extension=lambda reach: StreamingLLM(window=max(1, reach.trained - 4), sinks=4),
    forgets=True,
    equal_below=lambda reach: reach.trained,
    look=Look("#999933", "--", "+"),
)
