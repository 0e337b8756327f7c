"""The exchange test's windows: the real far part, a distant stretch of the same text, or the far part shuffled."""

from __future__ import annotations

from random import Random

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ropewalk.use.protocol import NGRAM, ExchangeDesign

Mask = npt.NDArray[np.bool_]


def stretch_start(tokens: int, start: int, window: int, length: int, rng: Random) -> int | None:
    """Where a stretch of `length` tokens begins that does not overlap the window `[start, start + window)` of a text.

    It is drawn among those that lie at least another window away, or, where the text has none, among all others; None
    where there are none either.

    >>> stretch_start(100, 0, 40, 20, Random(0)), stretch_start(50, 0, 40, 20, Random(0))
    (80, None)
    """
    for apart in (window, 0):
        before = range(start - apart - length + 1)
        after = range(start + window + apart, tokens - length + 1)
        if before or after:
            number = rng.randrange(len(before) + len(after))
            return before[number] if number < len(before) else after[number - len(before)]
    return None


def exchanged(input_ids: Tensor, design: ExchangeDesign, stretch: Tensor) -> Tensor:
    """The window with the end of `stretch` in the place of its far part; int64 `[window]`."""
    return torch.cat([stretch[len(stretch) - design.exchanged :], input_ids[design.exchanged :]])


def shuffled(input_ids: Tensor, design: ExchangeDesign, rng: Random) -> Tensor:
    """The window with the tokens of its far part in random order."""
    order = torch.tensor(rng.sample(range(design.exchanged), design.exchanged), dtype=torch.int64, device="cpu")
    return torch.cat([input_ids[order], input_ids[design.exchanged :]])


def rare_tokens(input_ids: Tensor, design: ExchangeDesign, stretch: Tensor) -> Mask:
    """Which of the scored tokens complete an n-gram that the far part alone holds; bool `[scored]`.

    A token is one of them where it and the token before it (n = 2) occur in a row in the part that is exchanged, and
    occur neither in the stretch that takes its place nor anywhere between the exchanged part and the token: so only
    the real far part shows them. Frequent pairs occur everywhere, so what is left is rare: names, and the matter that
    the far part speaks of. After Sun et al. 2021 (arXiv:2109.09115).
    """
    far = _ngrams(input_ids[: design.exchanged].tolist())
    elsewhere = set(_ngrams(stretch[len(stretch) - design.exchanged :].tolist()))
    near = _ngrams(input_ids[design.exchanged - NGRAM + 1 :].tolist())  # those that reach over the border count as near
    only_far = set(far) - elsewhere
    seen = set(near[: len(near) - design.scored])
    found = np.zeros(design.scored, dtype=np.bool_)
    for number, gram in enumerate(near[len(near) - design.scored :]):
        found[number] = gram in only_far and gram not in seen
        seen.add(gram)
    return found


def _ngrams(ids: list[int]) -> list[tuple[int, ...]]:
    """The n-grams in order; the last one ends with the last token."""
    return list(zip(*(ids[offset:] for offset in range(NGRAM)), strict=False))
