"""Several continuations of one cached row in one call: a tree of tokens after its end, none of which is kept."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ropewalk.errors import RopeError


class Branches:
    """The tokens of one call as a tree: each goes on from another one of the call, or from the end of the cache.

    - `parents`: for each token the number of the token that it follows, or -1 for the end of what the cache holds. A
      token comes after its parent.

    A token sees everything in the cache, and of the call its own line alone: itself, its parent, and so on. So it gives
    what it would give if its line alone had been read. Positions count from the end of the cache along each line.
    Raises `RopeError` for a token before its parent.

    >>> branches = Branches([-1, 0, 0, -1])  # "a b", "a c" and "d"
    >>> branches.depths.tolist(), branches.seen.int().tolist()
    ([0, 1, 1, 0], [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]])
    """

    depths: Tensor
    """int64 `[seq]`: how many tokens of the call come before each in its line."""
    seen: Tensor
    """bool `[seq, seq]`: which tokens of the call each sees."""

    def __init__(self, parents: Sequence[int], device: torch.device | str | None = None) -> None:
        if not parents or not all(-1 <= parent < number for number, parent in enumerate(parents)):
            raise RopeError(
                "Branches: each token follows an earlier one, or -1: the end of the cache.",
                facts={"parents": list(parents)},
                cure="List a line's tokens in their order.",
            )
        depths: list[int] = []
        seen = torch.eye(len(parents), dtype=torch.bool, device="cpu")
        for number, parent in enumerate(parents):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            if parent >= 0:
                seen[number] |= seen[parent]
        self.deepest = 1 + max(depths)
        """Tokens of the longest line."""
        self.depths = torch.tensor(depths, dtype=torch.int64, device=device)
        self.seen = seen.to(device)

    def __len__(self) -> int:
        return len(self.depths)
