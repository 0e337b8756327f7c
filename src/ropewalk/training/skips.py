"""Windows whose positions skip, so that short windows train every distance up to a longer one (PoSE)."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.training.data import Batch, Windows


class SkipSampler:
    """Another sampler's windows, cut in two: the positions of the second part begin up to `seq_len` - window later.

    The text stays as it is. Where it is cut, and how far positions skip, is uniform and depends on `seed` and the
    window's number alone, so that a resumed run sees what an uninterrupted one sees. A window that spans two documents
    skips as well: distances within each are what they are under the window's positions.

    Source: Zhu et al. 2023, arXiv:2309.10400 (PoSE), section 3.2, with two chunks and the text in one piece.
    **Raises:** `RopeError` where the windows are longer than `seq_len`.

    >>> from ropewalk.training.data import TokenStream, WindowSampler
    >>> windows = WindowSampler(TokenStream(torch.arange(99), torch.tensor([0])), seq_len=4, seed=0)
    >>> SkipSampler(windows, seq_len=16, seed=0).batch(0, 1).position_ids.tolist()
    [[0, 1, 2, 12]]
    """

    def __init__(self, windows: Windows, *, seq_len: int, seed: int) -> None:
        self.windows, self.seq_len, self.seed = windows, seq_len, seed
        self.stream, self.windows_per_epoch = windows.stream, windows.windows_per_epoch

    def batch(self, first: int, count: int) -> Batch:
        """Windows number `first` to `first + count` of the endless sequence."""
        batch = self.windows.batch(first, count)
        window = batch.inputs.shape[1]
        if window > self.seq_len:
            raise RopeError(
                "train: positions cannot skip in windows that are longer than the length wanted.",
                facts={"window": window, "seq_len": self.seq_len},
                cure="Pass a shorter window.",
            )
        positions = torch.stack([self._positions(number, window) for number in range(first, first + count)])
        return dataclasses.replace(batch, position_ids=positions, seq_len=self.seq_len)

    def _positions(self, number: int, window: int) -> Tensor:
        """Of window `number`, int64 `[window]`."""
        random = np.random.Generator(np.random.PCG64([self.seed, number, 3]))
        cut = int(random.integers(1, window)) if window > 1 else 0
        skip = int(random.integers(self.seq_len - window + 1))
        indices = torch.arange(window)
        return indices + skip * (indices >= cut)
