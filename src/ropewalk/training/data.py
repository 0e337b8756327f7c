"""Windows of tokens to train on, determined by the seed and the window's number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError


def split_text(text: str, fraction: float) -> tuple[str, str]:
    r"""Split off the last `fraction` of the characters for validation, after the end of a line if one is near.

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
    """Concatenated documents: `tokens`, int64 `[tokens]`, and the index of each start, int64 `[documents]`."""

    tokens: Tensor
    starts: Tensor

    @classmethod
    def pack(cls, documents: Sequence[str], encode: Callable[[str], list[int]], end: int | None) -> TokenStream:
        """Encode each document, append the token `end` (if any) to each, and concatenate them.

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
        """Return the number of each index's document."""
        return torch.searchsorted(self.starts, indices, right=True) - 1


@dataclass(frozen=True)
class Batch:
    """A batch of windows; all tensors are int64 `[windows, seq]`.

    - `inputs`: token ids. `targets`: the next tokens.
    - `document_ids`: None if every window lies within one document.
    - `position_ids`: None if positions count from 0 in each document. `seq_len`: the length in tokens for frequencies
      if positions skip; None: the length of the window.
    """

    inputs: Tensor
    targets: Tensor
    document_ids: Tensor | None
    position_ids: Tensor | None = None
    seq_len: int | None = None

    @property
    def tokens(self) -> int:
        """Return the number of tokens that are predicted."""
        return self.targets.numel()

    def to(self, device: str) -> Batch:
        """Return the batch on another device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


@runtime_checkable
class Windows(Protocol):
    """An endless sequence of training windows over a stream, with random access."""

    stream: TokenStream
    windows_per_epoch: int

    def batch(self, first: int, count: int) -> Batch:
        """Return windows number `first` to `first + count`."""


class WindowSampler:
    """Shuffled windows over a stream, epoch after epoch, determined by `seed` and the window's number.

    The stream is circular. Each epoch shifts the grid of windows by a random number of tokens below `seq_len`, and
    visits its ceil(tokens / seq_len) windows in random order. Every token is a target at least once per epoch. No state
    is kept between calls, so a resumed run has the same windows as an uninterrupted one.

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
        """Return the epoch's order of windows, and its shift in tokens."""
        if self._epoch is None or self._epoch[0] != epoch:
            random = np.random.Generator(np.random.PCG64([self.seed, epoch]))
            self._epoch = (epoch, random.permutation(self.windows_per_epoch), int(random.integers(self.seq_len)))
        return self._epoch[1], self._epoch[2]

    def batch(self, first: int, count: int) -> Batch:
        """Return windows number `first` to `first + count` of the endless sequence."""
        starts = []
        for number in range(first, first + count):
            epoch, index = divmod(number, self.windows_per_epoch)
            order, shift = self._order(epoch)
            starts.append(int(order[index]) * self.seq_len + shift)
        indices = (torch.tensor(starts)[:, None] + torch.arange(self.seq_len + 1)) % len(self.stream)
        return cut_batch(self.stream, indices)


def cut_batch(stream: TokenStream, indices: Tensor) -> Batch:
    """Return the batch with the tokens at `indices` `[windows, seq + 1]`."""
    tokens = stream.tokens[indices]
    # A wrapped row ends in the first document again: a different id separates these tokens from an earlier part.
    documents = stream.documents_at(indices)[:, :-1]
    wrapped = indices[:, :-1] < indices[:, :1]
    documents = documents + wrapped * len(stream.starts)
    spans = bool((documents != documents[:, :1]).any())
    return Batch(tokens[:, :-1], tokens[:, 1:], documents if spans else None)


def validation_batches(stream: TokenStream, *, seq_len: int, limit: int, batch_size: int) -> list[Batch]:
    """Return up to `limit` windows, evenly spread, in batches; no target occurs twice, and no window spans documents.

    Raises `RopeError` if no document contains a whole window.
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
            cure="Pass --validation FILE, or set validation_fraction to a larger value, or to 0 for no validation.",
        )
    count = min(limit, len(starts))
    chosen = torch.tensor([starts[i * len(starts) // count] for i in range(count)])
    indices = chosen[:, None] + torch.arange(seq_len + 1)
    return [cut_batch(stream, indices[i : i + batch_size]) for i in range(0, count, batch_size)]


LEAST = 8  # tokens of the shortest block; the longest is a quarter of the window
TEXT_BLOCKS = 0.5  # the share of the blocks that repeat text of the window; the others are random words
_WORD = re.compile(r"[^\W\d_]+")


def word_tokens(texts: Iterable[str], encode: Callable[[str], list[int]]) -> list[list[int]]:
    """Return the tokens of every distinct word in the texts, with a space before it, in alphabetical order.

    >>> word_tokens(["a rose, a Rose"], lambda text: list(text.encode()))[0]
    [32, 82, 111, 115, 101]
    """
    words = sorted({word for text in texts for word in _WORD.findall(text)})
    if not words:
        raise RopeError(
            "train: `repeat_share` needs words, but the text has none.",
            cure="Pass a text with letters, or leave out `repeat_share`.",
        )
    return [encode(" " + word) for word in words]


class RepeatSampler:
    """The windows of a `WindowSampler`, some of them with blocks that occur twice.

    Each window is changed with probability `share`, by a random generator that depends only on `seed` and the window's
    number. A changed window is cut into slots of one length, drawn from 8 tokens to a quarter of the window (short ones
    more often). A random number of disjoint pairs of slots is drawn, and the later slot of each pair repeats the
    earlier. With probability 1/2, random words, drawn uniformly from `words`, first overwrite the earlier slot. Windows
    that span two documents do not change.

    >>> windows = WindowSampler(TokenStream(torch.arange(99), torch.tensor([0])), seq_len=16, seed=0)
    >>> RepeatSampler(windows, [[200], [201, 202]], share=1.0, seed=0).batch(0, 1).targets.unique().numel() < 16
    True
    """

    def __init__(self, windows: WindowSampler, words: list[list[int]], *, share: float, seed: int) -> None:
        self.windows, self.words, self.share, self.seed = windows, words, share, seed
        self.stream, self.windows_per_epoch = windows.stream, windows.windows_per_epoch

    def batch(self, first: int, count: int) -> Batch:
        """Return windows number `first` to `first + count` of the endless sequence."""
        batch = self.windows.batch(first, count)
        tokens = torch.cat((batch.inputs, batch.targets[:, -1:]), 1)
        for row in range(count):
            random = np.random.Generator(np.random.PCG64([self.seed, first + row, 1]))
            documents = None if batch.document_ids is None else batch.document_ids[row]
            whole = documents is None or bool((documents == documents[0]).all())
            if random.random() < self.share and whole:
                self._repeat(tokens[row].numpy(), random)
        return Batch(tokens[:, :-1], tokens[:, 1:], batch.document_ids)

    def _repeat(self, window: np.ndarray, random: np.random.Generator) -> None:
        """Write repeated blocks into a window, `int64 [tokens]`, in place."""
        shortest = min(LEAST, len(window) // 2)
        longest = max(shortest, len(window) // 4)
        length = int(np.exp(random.uniform(np.log(shortest), np.log(longest + 1))))
        begin = int(random.integers(min(length, len(window) - 2 * length + 1)))
        slots = (len(window) - begin) // length
        order = begin + length * random.permutation(slots)
        for pair in range(int(random.integers(1, slots // 2 + 1))):
            early, late = sorted(order[2 * pair : 2 * pair + 2])
            if random.random() >= TEXT_BLOCKS:
                window[early : early + length] = self._random_words(length, random)
            window[late : late + length] = window[early : early + length]

    def _random_words(self, length: int, random: np.random.Generator) -> list[int]:
        """Return `length` tokens of random words; the last word may be cut."""
        tokens: list[int] = []
        while len(tokens) < length:
            tokens += self.words[int(random.integers(len(self.words)))]
        return tokens[:length]


class CopyWarmup:
    """The windows of a sampler; the first `count` contain one repeated block of random tokens instead.

    The block's length is log-uniform from 8 tokens to half the window, and its tokens are uniform below `vocab_size`.
    After the first period, each token can be predicted by copying. Blocks depend only on `seed` and the window's
    number. The other windows, and all numbers, are those of `windows`.

    >>> windows = WindowSampler(TokenStream(torch.arange(99), torch.tensor([0])), seq_len=16, seed=0)
    >>> CopyWarmup(windows, vocab_size=50, count=1, seed=0).batch(0, 1).inputs.unique().numel()
    8
    """

    def __init__(self, windows: Windows, *, vocab_size: int, count: int, seed: int) -> None:
        self.windows, self.vocab_size, self.count, self.seed = windows, vocab_size, count, seed
        self.stream, self.windows_per_epoch = windows.stream, windows.windows_per_epoch

    def batch(self, first: int, count: int) -> Batch:
        """Return windows number `first` to `first + count` of the endless sequence."""
        batch = self.windows.batch(first, count)
        filled = max(0, min(count, self.count - first))
        if not filled:
            return batch
        tokens = torch.cat((batch.inputs, batch.targets[:, -1:]), 1)
        for row in range(filled):
            tokens[row] = self._periodic(first + row, tokens.shape[1])
        documents = batch.document_ids
        if documents is not None:
            whole = torch.arange(count)[:, None] < filled
            documents = None if filled == count else documents.masked_fill(whole, 0)
        return Batch(tokens[:, :-1], tokens[:, 1:], documents)

    def _periodic(self, number: int, length: int) -> Tensor:
        """Return window `number`, int64 `[length]`."""
        random = np.random.Generator(np.random.PCG64([self.seed, number, 2]))
        longest = max(1, (length - 1) // 2)
        shortest = min(LEAST, longest)
        period = int(np.exp(random.uniform(np.log(shortest), np.log(longest + 1))))
        return torch.from_numpy(np.resize(random.integers(self.vocab_size, size=period), length))
