"""The learning rate at each step: a linear warm-up, then half a cosine."""

from __future__ import annotations

import math


def learning_rate(step: int, *, peak: float, warmup: int, steps: int, final: float = 0.1) -> float:
    """The learning rate of update `step`, counted from 0.

    It rises linearly over `warmup` updates to `peak`, then falls along half a cosine to `final` * peak at the last of
    `steps` updates.

    Source: Loshchilov and Hutter 2017, arXiv:1608.03983, without restarts.

    >>> [round(learning_rate(step, peak=1.0, warmup=2, steps=6, final=0.0), 2) for step in range(6)]
    [0.5, 1.0, 0.85, 0.5, 0.15, 0.0]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup + 1) / max(1, steps - warmup)
    return peak * (final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, done))))
