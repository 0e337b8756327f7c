"""When the base bound says something of a model, and when it does not.

The heuristic (Men et al. 2024, "Base of RoPE Bounds Context Length", arXiv:2405.14591, section 4): with independent
features of one variance, a key like the query scores above any other key on average at distance m as long as
sum_i cos(m theta_i) stays above 0, the sum over all pairs of a head. So it assumes that every feature of a head turns,
that the rotation alone carries the distance, and that such distances are met. Where a model was trained beyond the
bound, its training has refuted it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ropewalk.audit.layers import Layers
from ropewalk.rope.config import RopeConfig


def why_no_bound(config: RopeConfig, inv_freq: npt.NDArray[np.float64], layers: Layers) -> str | None:
    """Why the sum of cosines bounds nothing for these layers, in words; None where its assumptions hold."""
    if 2 * config.pairs < config.head_dim:
        return f"only {2 * config.pairs} of {config.head_dim} features of a head turn"
    if not inv_freq.all():
        return "some pairs stand still"
    if layers.beside is not None:
        return layers.beside
    if layers.window is not None:
        return f"the layers see no further than {layers.window:,} tokens"
    return None


def why_not_shown(
    config: RopeConfig, inv_freq: npt.NDArray[np.float64], layers: Layers, reach: int | None, trained: int | None
) -> str | None:
    """`why_no_bound`, or that the model was trained beyond it."""
    reason = why_no_bound(config, inv_freq, layers)
    if reason is None and reach is not None and trained is not None and reach <= trained:
        return f"the model was trained to {trained:,} tokens, beyond it"
    return reason
