"""Log-probabilities of continuations, several rows together, through a cache in chunks: what harnesses ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ropewalk.models.decoder import Decoder
from ropewalk.readers.head import logit_slices
from ropewalk.readers.reader import CHUNK
from ropewalk.readers.requests import check_pairs

Pair = tuple[Sequence[int], Sequence[int]]


@torch.inference_mode()
def continuation_log_probs(
    model: Decoder,
    pairs: Sequence[Pair],
    *,
    batch: int = 8,
    chunk: int = CHUNK,
    done: Callable[[int, tuple[float, bool]], None] | None = None,
) -> list[tuple[float, bool]]:
    """For each (context, continuation): its log-probability, and whether greedy decoding would give it.

    **Arguments:**
    - `pairs`: token ids, at least one in each context and each continuation.
    - `batch`: rows that go through the model together, of like lengths; each comes out as it would alone.
    - `chunk`: tokens of a row in one forward. Logits exist for the continuations alone, 256 tokens at a time.
    - `done`: called with a pair's index and result as soon as it is there.

    **Returns:** (nats, summed over the continuation's tokens; greedy or not) in the order of `pairs`. Frequencies that
    depend on length are those of the tokens that each row reads: all but its last.
    **Raises:** `RopeError` for an empty context or continuation, and for a batch below 1.

    >>> from ropewalk.checkpoints.load import load
    >>> model = load("tiny")
    >>> ids = model.tokenizer.encode("The old man and the sea")
    >>> [(found, greedy)] = continuation_log_probs(model, [(ids[:3], ids[3:])])
    >>> found < 0, greedy
    (True, False)
    """
    check_pairs(pairs, batch, chunk)
    found: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda index: -len(pairs[index][0]) - len(pairs[index][1]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        for index, result in zip(rows, _batch(model, [pairs[index] for index in rows], chunk), strict=True):
            found[index] = result
            if done is not None:
                done(index, result)
    return found


def _batch(model: Decoder, pairs: Sequence[Pair], chunk: int) -> list[tuple[float, bool]]:
    """One batch, padded on the right; the last token of each row is predicted and not read."""
    device = model.embed_tokens.weight.device
    inputs = [[*context, *continuation][:-1] for context, continuation in pairs]
    lengths = torch.tensor([len(row) for row in inputs])
    longest = int(lengths.max())
    ids = torch.zeros(len(pairs), longest, dtype=torch.long)
    targets = torch.full((len(pairs), longest), -1)
    for row, (tokens, (_, continuation)) in enumerate(zip(inputs, pairs, strict=True)):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        targets[row, len(tokens) - len(continuation) : len(tokens)] = torch.tensor(list(continuation))
    real = torch.arange(longest) < lengths[:, None]
    ids, targets, real = ids.to(device), targets.to(device), real.to(device)
    padded = bool((lengths < longest).any())
    seq_len = lengths.to(device) if model.config.needs_seq_len else None
    cache = model.new_cache(len(pairs), seq_len=seq_len, capacity=longest)
    totals = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")  # MPS has no float64
    greedy = torch.ones(len(pairs), dtype=torch.bool, device="cpu")
    for start in range(0, longest, chunk):
        part = slice(start, min(start + chunk, longest))
        model(
            ids[:, part],
            attention_mask=real[:, part] if padded else None,
            cache=cache,
            head_fn=partial(_add_chunk, targets=targets[:, part], totals=totals, greedy=greedy),
        )
    return [(float(total), bool(best)) for total, best in zip(totals, greedy, strict=True)]


def _add_chunk(hidden: Tensor, weight: Tensor, *, targets: Tensor, totals: Tensor, greedy: Tensor) -> None:
    """Add what one chunk has of the continuations; the logits of few tokens exist at a time."""
    rows, places = (targets >= 0).nonzero(as_tuple=True)
    wanted = targets[rows, places]
    for part, logits in logit_slices(hidden[rows, places], weight, wanted):
        _add(logits, wanted[part], rows[part], totals, greedy)


def _add(logits: Tensor, targets: Tensor, rows: Tensor, totals: Tensor, greedy: Tensor) -> None:
    """Add each target's log-probability to its row, and note where it is not the likeliest token."""
    likely, rows = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1), rows.cpu()
    totals.index_add_(0, rows, likely.cpu().double())
    greedy[rows[(logits.argmax(-1) != targets).cpu()]] = False
