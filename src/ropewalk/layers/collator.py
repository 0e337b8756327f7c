"""A data collator that skips positions, so that short windows contain long distances."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ropewalk.errors import RopeError

IGNORED = -100  # the label of a token that is not predicted, in transformers


@dataclass(frozen=True, kw_only=True)
class SkipCollator:
    """Collate windows for a causal language model of transformers, with positions that skip once (PoSE).

    Each row is cut at a random token, and the positions of its second part begin up to `target` - length later. All
    distances below `target` occur, at the cost of the short window. With `target` None, positions do not skip. Cut and
    skip depend only on `seed` and the row's tokens, so a resumed run repeats them.

    A row is one document. Use a method that scales frequencies: methods in attention count tokens, not positions.

    **Arguments of a call:** rows as mappings with `input_ids` (a list or int64 `[seq]`), and optionally `labels`.
    Shorter rows are padded on the right with `pad_token_id`.

    **Returns:** int64 `[rows, seq]`: `input_ids`, `labels`, `position_ids`, and `attention_mask`, without which
    transformers treats a skip as a new document.

    **Raises:** `RopeError` for a row longer than `target`.
    **Source:** Zhu et al. 2023, arXiv:2309.10400, section 3.2, with two chunks and the text in one piece.

    >>> batch = SkipCollator(target=64, seed=1)([{"input_ids": [5, 6, 7, 8]}])
    >>> batch["position_ids"].tolist()
    [[0, 1, 2, 59]]
    """

    target: int | None
    seed: int = 0
    pad_token_id: int = 0

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the batch."""
        ids = [torch.as_tensor(row["input_ids"]) for row in rows]
        longest = max(map(len, ids))
        if self.target is not None and longest > self.target:
            raise RopeError(
                "SkipCollator: a window is longer than the target of skipped positions.",
                facts={"tokens": longest, "target": self.target},
                cure="Cut shorter windows, or raise the target.",
            )

        def padded(parts: Sequence[Any], value: int) -> Tensor:
            return torch.stack([pad(torch.as_tensor(one), (0, longest - len(one)), value=value) for one in parts])

        return {
            "input_ids": padded(ids, self.pad_token_id),
            "labels": padded([row.get("labels", tokens) for row, tokens in zip(rows, ids, strict=True)], IGNORED),
            "position_ids": torch.stack([self._positions(tokens, longest) for tokens in ids]),
            "attention_mask": padded([torch.ones_like(tokens) for tokens in ids], 0),
        }

    def _positions(self, tokens: Tensor, longest: int) -> Tensor:
        """Return the positions of a row, int64 `[longest]`."""
        places = torch.arange(longest)
        if self.target is None or len(tokens) < 2:
            return places
        digest = hashlib.blake2b(tokens.numpy().astype("<i8").tobytes(), digest_size=8).digest()
        random = np.random.Generator(np.random.PCG64([self.seed, int.from_bytes(digest, "little")]))
        cut, skip = int(random.integers(1, len(tokens))), int(random.integers(self.target - longest + 1))
        return places + skip * (places >= cut)
