"""Several continuations of one cached row in one call: a tree of tokens after its end, none of which is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ropewalk.errors import RopeError


class Stretch(NamedTuple):
    """Of each token a stretch of its line: the tokens `begin .. end - 1` of the call, the first at `depth` in the line.

    `begin == end` where a token's line has fewer stretches.
    """

    begin: Tensor
    end: Tensor
    depth: Tensor


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
    runs: tuple[Stretch, ...]
    """The same as stretches of neighbours, int64 `[seq]` each: a line that no other interrupts is one."""

    def __init__(self, parents: Sequence[int], device: torch.device | str | None = None) -> None:
        if not parents or not all(-1 <= parent < number for number, parent in enumerate(parents)):
            raise RopeError(
                "Branches: each token follows an earlier one, or -1: the end of the cache.",
                facts={"parents": list(parents)},
                cure="List a line's tokens in their order.",
            )
        depths: list[int] = []
        runs: list[tuple[tuple[int, int, int], ...]] = []
        seen = torch.eye(len(parents), dtype=torch.bool, device="cpu")
        for number, parent in enumerate(parents):
            depths.append(0 if parent < 0 else depths[parent] + 1)
            before = () if parent < 0 else runs[parent]
            if before and parent == number - 1:
                runs.append((*before[:-1], (before[-1][0], number + 1, before[-1][2])))
            else:
                runs.append((*before, (number, number + 1, depths[number])))
            if parent >= 0:
                seen[number] |= seen[parent]
        self.deepest = 1 + max(depths)
        """Tokens of the longest line."""
        self.depths = torch.tensor(depths, dtype=torch.int64, device=device)
        self.seen = seen.to(device)
        most = max(len(of_token) for of_token in runs)
        table = torch.tensor([[*of_token, *[(0, 0, 0)] * (most - len(of_token))] for of_token in runs], device=device)
        self.runs = tuple(Stretch(*run.unbind(-1)) for run in table.unbind(1))

    def __len__(self) -> int:
        return len(self.depths)
