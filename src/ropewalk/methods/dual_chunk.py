"""Dual chunk attention (An et al. 2024, arXiv:2402.17463), in chunks of three quarters of the trained length."""

from ropewalk.attention.extensions import DualChunk
from ropewalk.methods.method import IN_ATTENTION, Look, Method

METHOD = Method(
    name="dca",
    order=120,
    priority=2,
    changes="Dual chunk attention: positions count from 0 again in each chunk.",
    costs="three passes over parts of the keys; cached keys are turned again for each token",
    not_in_config=IN_ATTENTION,
    nearest="yarn",
    source="2402.17463",
    extension=lambda reach: DualChunk(chunk=max(1, 3 * reach.trained // 4), trained_length=reach.trained),
    equal_below=lambda reach: reach.trained,
    look=Look("#882255", "-", "p"),
)
