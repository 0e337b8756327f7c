"""The likeliest next tokens after several lengths of one text, from one pass of a decoder."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ropewalk.models.decoder import Decoder
from ropewalk.models.layers import only_hidden
from ropewalk.models.precision import to_float64
from ropewalk.readers.head import all_log_probs

Top = list[tuple[int, float]]
"""Tokens and their log-probabilities in nats, the likeliest first."""


@torch.inference_mode()
def top_after(
    model: Decoder, input_ids: Sequence[int], lengths: Sequence[int], *, count: int, seq_len: int, chunk: int
) -> list[Top]:
    """See `ropewalk.readers.reader.Reader.top_after`."""
    cache = model.new_cache(seq_len=seq_len, capacity=lengths[-1])
    ids = torch.tensor(list(input_ids[: lengths[-1]]), device=cache.device)
    found: list[Top] = []
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        rows = [length - 1 - start for length in lengths if start < length <= start + len(part)]
        if rows:
            found += model(part[None], cache=cache, head_fn=partial(_top_of_rows, rows=rows, count=count))
        else:
            model(part[None], cache=cache, head_fn=only_hidden)
    return found


def _top_of_rows(hidden: Tensor, weight: Tensor, *, rows: Sequence[int], count: int) -> list[Top]:
    return [likeliest(all_log_probs(hidden[0, row], weight), count) for row in rows]


def likeliest(log_probs: Tensor, count: int) -> Top:
    """The `count` largest of log-probabilities `[vocab]`, the largest first.

    >>> likeliest(torch.tensor([-2.0, -0.5, -1.0]), 2)
    [(1, -0.5), (2, -1.0)]
    """
    best = log_probs.topk(min(count, len(log_probs)))
    return list(zip(best.indices.tolist(), to_float64(best.values).tolist(), strict=True))
