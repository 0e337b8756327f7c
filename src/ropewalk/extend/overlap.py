"""Whether a text to measure on was seen: the share of its runs of tokens that the text worked on holds as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ropewalk.errors import RopeError

RUN = 32  # tokens; two novels share none, three in ten thousand of bytes at 24
LARGEST = 0.05  # the share from which a text counts as seen: less than one window of sixteen
Hashes = npt.NDArray[np.uint64]


def seen_share(windows: Tensor, texts: Iterable[Sequence[int]]) -> float:
    """The share of the windows' runs of 32 tokens, from 0 to 1, that stand in one of `texts` too, at any place.

    `windows` is int64 `[windows, target]`, `texts` are token ids of the same tokenizer. Runs are as long as a window
    where that is shorter.

    >>> import torch
    >>> text = list(range(100))
    >>> seen_share(torch.arange(40)[None], [text]), seen_share(torch.arange(84, 124)[None], [text])
    (1.0, 0.0)
    """
    run = min(RUN, windows.shape[1])
    if not windows.numel():
        return 0.0
    asked = np.concatenate([_runs(ids.cpu().numpy(), run) for ids in windows])
    found = np.zeros(len(asked), dtype=bool)
    for text in texts:
        found |= np.isin(asked, _runs(np.asarray(text), run))
    return float(found.mean())


def check_unseen(
    windows: Tensor, texts: Iterable[Sequence[int]], *, work: str, names: Sequence[str], validation: str
) -> float:
    """`seen_share`; raises `RopeError` where it is above 0.05. `work` says what was done on `texts`, "search"."""
    share = seen_share(windows, texts)
    if share > LARGEST:
        raise RopeError(
            f"extend: the text to measure on is one of those to {work} on, or shares passages with them.",
            facts={
                "text": list(names),
                "validation": validation,
                f"share of its windows' {min(RUN, windows.shape[1])}-token runs seen": round(share, 4),
                "largest allowed": LARGEST,
            },
            cure="Pass --validation with another text.",
        )
    return share


def _runs(ids: npt.NDArray[np.integer], run: int) -> Hashes:
    """A 64-bit hash of every `run` tokens in a row; none of a text that is shorter."""
    places = max(len(ids) - run + 1, 0)
    values = (ids.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values ^= values >> np.uint64(29)
    found = np.zeros(places, dtype=np.uint64)
    for index in range(run):
        found = found * np.uint64(0xD1342543DE82EF95) + values[index : index + places]
    return found
