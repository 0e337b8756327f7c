"""The loss of every token of a window, in chunks through the cache: memory is bounded, whatever the length."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.readers.beginning import Beginning
from ropewalk.readers.head import target_losses
from ropewalk.readers.reader import CHUNK, Advance, Losses, Reader
from ropewalk.readers.requests import check_window


def window_losses(
    model: Decoder,
    input_ids: Tensor,
    *,
    first: int = 1,
    seq_len: int | None = None,
    chunk: int = CHUNK,
    advance: Advance | None = None,
    after: tuple[Beginning, int] | None = None,
    keep: int = 0,
    kept: Callable[[Beginning], None] | None = None,
) -> Losses:
    """Nats of every token from `first` on, each given all tokens before it.

    **Arguments:**
    - `input_ids`: int64 `[tokens]`, at positions 0, 1, ...
    - `first`: the first token that is scored, at least 1: nothing comes before token 0.
    - `seq_len`: tokens, for ropes whose frequencies depend on the length; default the number of tokens.
    - `chunk`: tokens of one forward; `advance` is called with their number after each.
    - `after`: a beginning that was read before, and how many of its tokens are taken from there instead of read.
    - `keep`: so many tokens, whole chunks, are given to `kept` as a beginning once they are read.

    **Returns:** float64 `[tokens - first]`; entry i belongs to token `first + i`.
    **Raises:** `RopeError` if fewer than two tokens are given or `first` is out of range.
    **Numerics:** the model's dtype within, softmax in float32, equal to one full forward up to rounding.
    """
    check_window(input_ids, first, chunk)
    tokens = len(input_ids)
    losses, began = torch.empty(tokens, dtype=torch.float32), time.perf_counter()
    with torch.inference_mode():
        ids = input_ids.to(model.embed_tokens.weight.device)
        cache = model.new_cache(seq_len=tokens if seq_len is None else seq_len, capacity=tokens)
        there = 0 if after is None else after[1]
        if after is not None:
            after[0].put(model, cache, there)
            losses[1 : there + 1] = after[0].losses[:there]
        for start in range(there, tokens, chunk):
            stop = min(start + chunk, tokens)
            scored = max(start, first - 1), min(stop, tokens - 1)
            of_chunk = model(
                ids[None, start:stop],
                cache=cache,
                head_fn=partial(losses_of_rows, targets=ids[scored[0] + 1 : scored[1] + 1], first=scored[0] - start),
            )
            losses[scored[0] + 1 : scored[1] + 1] = of_chunk.cpu()
            if advance is not None:
                advance(stop - start)
            if stop == keep and kept is not None:
                kept(Beginning(model, cache, losses[1 : keep + 1], time.perf_counter() - began))
    return losses[first:].double().numpy()


def losses_of_rows(hidden: Tensor, weight: Tensor, *, targets: Tensor, first: int) -> Tensor:
    """Nats of `targets` after the tokens from `first` on, float32."""
    return target_losses(hidden[0, first : first + len(targets)], weight, targets)


def crop_steps(tokens: int, trained_length: int, stride: int, *, first: int = 1) -> list[tuple[int, int, int]]:
    """The fresh windows that `crop` needs beyond the first window: (start, end, first token scored).

    `first`: the first token whose loss is wanted; windows that hold none of them are left out.

    >>> crop_steps(11, 4, 2)
    [(2, 6, 4), (4, 8, 6), (6, 10, 8), (7, 11, 10)]
    >>> crop_steps(11, 4, 2, first=9)
    [(6, 10, 9), (7, 11, 10)]
    """
    steps = []
    for scored in range(trained_length, tokens, stride):
        end = min(scored + stride, tokens)
        if end > first:
            steps.append((end - trained_length, end, max(scored, first)))
    return steps


def cropped_losses(
    reader: Reader,
    input_ids: Tensor,
    *,
    trained_length: int,
    stride: int,
    first: int = 1,
    beginning: Losses | None = None,
    seq_len: int | None = None,
    chunk: int = CHUNK,
    advance: Advance | None = None,
) -> Losses:
    """Nats of every token from `first` on, each given at most the last `trained_length` - 1 tokens.

    Token t is scored in a fresh window of `trained_length` tokens, at positions from 0, whose end lies less than
    `stride` behind it: so beyond the first window it sees between trained_length - stride and trained_length - 1
    tokens. Windows that hold no scored token are not read.

    **Arguments:** as `window_losses`; `beginning` are the losses of the first `trained_length` tokens (from token 1),
    where a plain pass over the same window has them already: they are the same. `seq_len`: as `window_losses`, for
    every fresh window; default its own tokens.
    **Returns:** float64 `[tokens - first]`.
    """
    tokens = len(input_ids)
    if trained_length < 2 or not 1 <= stride <= trained_length - 1:
        raise RopeError(
            "cropped_losses: the stride must lie between 1 and trained_length - 1.",
            facts={"stride": stride, "trained_length": trained_length},
            cure="A quarter of the trained length is a good stride.",
        )
    if not 1 <= first < tokens:
        raise RopeError(
            "cropped_losses: `first` must be one of the window's tokens after the first.",
            facts={"input_ids": input_ids, "first": first},
            cure="Pass 1 <= first < tokens.",
        )
    read = partial(reader.window_losses, seq_len=seq_len, chunk=chunk, advance=advance)
    within, parts = min(trained_length, tokens), []
    if first < within:
        if beginning is None:
            parts.append(read(input_ids[:within], first=first))
        else:
            parts.append(beginning[first - 1 : within - 1])
    for start, end, scored in crop_steps(tokens, trained_length, stride, first=first):
        parts.append(read(input_ids[start:end], first=scored - start))
    return np.concatenate(parts)
