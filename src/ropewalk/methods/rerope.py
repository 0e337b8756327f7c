"""ReRoPE (Su 2023): distances are cut at a window of a quarter of the trained length."""

from ropewalk.attention.extensions import ReRoPE
from ropewalk.methods.method import IN_ATTENTION, TWO_PASSES, Look, Method

METHOD = Method(
    name="rerope",
    order=100,
    changes="Distances beyond a window all count as the window; sharpens logits as the text grows.",
    costs=TWO_PASSES,
    not_in_config=IN_ATTENTION,
    nearest="yarn",
    extension=lambda reach: ReRoPE(window=max(1, reach.trained // 4), log_n=reach.trained),
    equal_below=lambda reach: max(1, reach.trained // 4),
    look=Look("#332288", "-.", "d"),
)
