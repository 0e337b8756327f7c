"""Texts to token windows: each file one document, in an order that depends on the seed and the step alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError


def split_text(text: str, fraction: float) -> tuple[str, str]:
    r"""Training part and the last `fraction` of the characters, cut after a line's end where one is near.

    >>> split_text("one\ntwo\nthree\nfour\n", 0.3)
    ('one\ntwo\nthree\n', 'four\n')
    """
    if fraction <= 0.0:
        return text, ""
    cut = int(len(text) * (1.0 - fraction))
    newline = text.find("\n", cut, cut + 1000)
    cut = newline + 1 if newline >= 0 else cut
    return text[:cut], text[cut:]


@dataclass(frozen=True)
class TokenStream:
    """Documents end to end: `tokens` int64 `[tokens]`, and `starts` int64 `[documents]`, where each begins."""

    tokens: Tensor
    starts: Tensor

    @classmethod
    def pack(cls, documents: Sequence[str], encode: Callable[[str], list[int]], end: int | None) -> TokenStream:
        """Encode each document, append the token `end` (if any) to each, and lay them end to end.

        >>> TokenStream.pack(["ab", "c"], lambda text: list(text.encode()), end=0).tokens.tolist()
        [97, 98, 0, 99, 0]
        """
        pieces = [encode(text) + ([] if end is None else [end]) for text in documents]
        lengths = torch.tensor([0, *map(len, pieces)])
        flat = np.concatenate([np.asarray(piece, dtype=np.int64) for piece in pieces])
        return cls(torch.from_numpy(flat), lengths.cumsum(0)[:-1])

    def __len__(self) -> int:
        return len(self.tokens)

    def documents_at(self, indices: Tensor) -> Tensor:
        """Which document each index belongs to."""
        return torch.searchsorted(self.starts, indices, right=True) - 1


@dataclass(frozen=True)
class Batch:
    """Token ids `inputs` and next tokens `targets`, int64 `[windows, seq]`; `document_ids` (same shape) only where a
    window spans two documents, else None. `position_ids` (same shape) where positions skip, and `seq_len`, the length
    in tokens that they belong to; None: they count from 0 in each document, and the length is the window's. For
    self-distillation (`PerturbedSampler`):
    `perturbed_ids`, other positions (same shape), and `distillation_weights`, float32 (same shape)."""

    inputs: Tensor
    targets: Tensor
    document_ids: Tensor | None
    position_ids: Tensor | None = None
    seq_len: int | None = None
    perturbed_ids: Tensor | None = None
    distillation_weights: Tensor | None = None

    @property
    def tokens(self) -> int:
        """How many tokens are predicted."""
        return self.targets.numel()

    def to(self, device: str) -> Batch:
        """The batch on another device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


@runtime_checkable
class Windows(Protocol):
    """An endless sequence of training windows over a stream, of which any part can be asked for at any time."""

    stream: TokenStream
    windows_per_epoch: int

    def batch(self, first: int, count: int) -> Batch:
        """Windows number `first` to `first + count`."""


class WindowSampler:
    """Shuffled windows over a stream, epoch after epoch; which ones depends on `seed` and the window's number alone.

    The stream is read as a ring. Each epoch shifts the grid of windows by a random amount below `seq_len`, so that cuts
    fall elsewhere, and visits its ceil(tokens / seq_len) windows in a random order: every token is a target at least
    once an epoch. Nothing is stored between calls, so a resumed run sees what an uninterrupted one sees.

    >>> stream = TokenStream(torch.arange(10), torch.tensor([0]))
    >>> sampler = WindowSampler(stream, seq_len=4, seed=0)
    >>> sampler.windows_per_epoch, sorted(set(sampler.batch(0, 3).targets.flatten().tolist()))
    (3, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    """

    def __init__(self, stream: TokenStream, *, seq_len: int, seed: int) -> None:
        if len(stream) < seq_len + 1:
            raise RopeError(
                "train: the text is shorter than one window.",
                facts={"tokens": len(stream), "seq_len + 1": seq_len + 1},
                cure="Pass more text, or a smaller --seq-len.",
            )
        self.stream, self.seq_len, self.seed = stream, seq_len, seed
        self.windows_per_epoch = -(-len(stream) // seq_len)
        self._epoch: tuple[int, np.ndarray, int] | None = None

    def _order(self, epoch: int) -> tuple[np.ndarray, int]:
        """The epoch's order of windows, and its shift in tokens."""
        if self._epoch is None or self._epoch[0] != epoch:
            random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            self._epoch = (epoch, random.permutation(self.windows_per_epoch), int(random.integers(self.seq_len)))
        return self._epoch[1], self._epoch[2]

    def batch(self, first: int, count: int) -> Batch:
        """Windows number `first` to `first + count` of the endless sequence."""
        starts = []
        for number in range(first, first + count):
            epoch, index = divmod(number, self.windows_per_epoch)
            order, shift = self._order(epoch)
            starts.append(int(order[index]) * self.seq_len + shift)
        indices = (torch.tensor(starts)[:, None] + torch.arange(self.seq_len + 1)) % len(self.stream)
        return cut_batch(self.stream, indices)


def cut_batch(stream: TokenStream, indices: Tensor) -> Batch:
    """The batch whose rows are the tokens at `indices` `[windows, seq + 1]`."""
    tokens = stream.tokens[indices]
    # A wrapped row ends in the first document again: an id of its own keeps its tokens apart from an earlier part.
    documents = stream.documents_at(indices)[:, :-1]
    wrapped = indices[:, :-1] < indices[:, :1]
    documents = documents + wrapped * len(stream.starts)
    spans = bool((documents != documents[:, :1]).any())
    return Batch(tokens[:, :-1], tokens[:, 1:], documents if spans else None)


def validation_batches(stream: TokenStream, *, seq_len: int, limit: int, batch_size: int) -> list[Batch]:
    """Up to `limit` windows that overlap in no target and lie within one document each, evenly spread, in batches.

    Raises `RopeError` where no document holds a whole window.
    """
    ends = [*stream.starts[1:].tolist(), len(stream)]
    starts = [
        start
        for begin, end in zip(stream.starts.tolist(), ends, strict=True)
        for start in range(begin, end - seq_len, seq_len)
    ]
    if not starts:
        raise RopeError(
            "train: no validation text is as long as one window.",
            facts={"tokens": len(stream), "window + 1": seq_len + 1},
            cure="Pass --validation FILE, a larger --validation-fraction, or --validation-fraction 0 for none.",
        )
    count = min(limit, len(starts))
    chosen = torch.tensor([starts[i * len(starts) // count] for i in range(count)])
    indices = chosen[:, None] + torch.arange(seq_len + 1)
    return [cut_batch(stream, indices[i : i + batch_size]) for i in range(0, count, batch_size)]
