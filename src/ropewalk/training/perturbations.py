"""A second view of each window for self-distillation: the same text, its later tokens moved further away."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from ropewalk.attention.masks import lay_out
from ropewalk.training.data import Batch, Windows


class PerturbedSampler:
    """Another sampler's windows, each with a second view whose positions skip once more: from token s on by y.

    s is uniform in 1 .. window - 1 and y in 1 .. L, where L is the length that the positions belong to (`seq_len` of
    the batch, else the window), so positions of the second view reach 2 L. Distances between the tokens before s and
    those from s on grow by y; all others, the text and what each token sees stay. Both depend on `seed` and the
    window's number alone. Each batch gets `perturbed_ids`, and `distillation_weights`: `strength` * window / (window -
    s) from token s on and 0 before it, so that a mean over the window is `strength` times the mean from s on.

    Source: Li et al. 2026, arXiv:2604.14339, whose skips are these (default Y = L, section 2.2 to 2.4, read in public
    summaries of version 1). Ours: s is at least 1, since s = 0 changes no distance; and under positions that skip
    already (`SkipSampler`) the second view moves those.

    >>> from ropewalk.training.data import TokenStream, WindowSampler
    >>> windows = WindowSampler(TokenStream(torch.arange(99), torch.tensor([0])), seq_len=4, seed=0)
    >>> batch = PerturbedSampler(windows, strength=1.0, seed=0).batch(0, 1)
    >>> batch.perturbed_ids.tolist(), (3 * batch.distillation_weights).round().tolist()
    ([[0, 5, 6, 7]], [[0.0, 4.0, 4.0, 4.0]])
    """

    def __init__(self, windows: Windows, *, strength: float, seed: int) -> None:
        self.windows, self.strength, self.seed = windows, strength, seed
        self.stream, self.windows_per_epoch = windows.stream, windows.windows_per_epoch

    def batch(self, first: int, count: int) -> Batch:
        """Windows number `first` to `first + count` of the endless sequence."""
        batch = self.windows.batch(first, count)
        window, positions = batch.inputs.shape[1], batch.position_ids
        if positions is None:
            layout = lay_out(count, window, batch.inputs.device, document_ids=batch.document_ids, where="train")
            positions = layout.position_ids().expand(count, -1)
        moved, weights = positions.clone(), torch.zeros(count, window)
        for row in range(count):
            random = np.random.Generator(np.random.PCG64([self.seed, first + row, 4]))
            begin = int(random.integers(1, window)) if window > 1 else 0
            moved[row, begin:] += int(random.integers(1, (batch.seq_len or window) + 1))
            weights[row, begin:] = self.strength * window / (window - begin)
        return dataclasses.replace(batch, perturbed_ids=moved, distillation_weights=weights)
