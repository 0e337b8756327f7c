"""Windows in which blocks of tokens occur again, so that a model learns to copy from what it has read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.training.data import Batch, Windows, WindowSampler

LEAST = 8  # tokens of the shortest block; the longest is a quarter of the window
TEXT_BLOCKS = 0.5  # this share of the blocks repeats text of the window, the others are of random words
_WORD = re.compile(r"[^\W\d_]+")


def word_tokens(texts: Iterable[str], encode: Callable[[str], list[int]]) -> list[list[int]]:
    """The tokens of every distinct word in the texts, with a space before it, in alphabetical order.

    >>> word_tokens(["a rose, a Rose"], lambda text: list(text.encode()))[0]
    [32, 82, 111, 115, 101]
    """
    words = sorted({word for text in texts for word in _WORD.findall(text)})
    if not words:
        raise RopeError(
            "train: the text has no words to draw repeated blocks from.",
            cure="Pass a text with letters in it, or leave out --repeat-share.",
        )
    return [encode(" " + word) for word in words]


class RepeatSampler:
    """The windows of a `WindowSampler`, in a share of which blocks occur twice.

    Each window is changed with probability `share`, by a random generator of its own, which depends on `seed` and the
    window's number alone. A changed window is cut into slots of one length, drawn from 8 tokens to a quarter of the
    window (short ones more often). A random number of disjoint pairs of slots is drawn, and the later slot of each pair
    repeats the earlier. With probability 1/2 the earlier one is first overwritten by random words, drawn from `words`,
    each as often as any other. Windows that span two documents stay as they are.

    >>> from ropewalk.training.data import TokenStream
    >>> windows = WindowSampler(TokenStream(torch.arange(99), torch.tensor([0])), seq_len=16, seed=0)
    >>> RepeatSampler(windows, [[200], [201, 202]], share=1.0, seed=0).batch(0, 1).targets.unique().numel() < 16
    True
    """

    def __init__(self, windows: WindowSampler, words: list[list[int]], *, share: float, seed: int) -> None:
        self.windows, self.words, self.share, self.seed = windows, words, share, seed
        self.stream, self.windows_per_epoch = windows.stream, windows.windows_per_epoch

    def batch(self, first: int, count: int) -> Batch:
        """Windows number `first` to `first + count` of the endless sequence."""
        batch = self.windows.batch(first, count)
        tokens = torch.cat((batch.inputs, batch.targets[:, -1:]), 1)
        for row in range(count):
            random = np.random.Generator(np.random.PCG64([self.seed, first + row, 1]))
            documents = None if batch.document_ids is None else batch.document_ids[row]
            whole = documents is None or bool((documents == documents[0]).all())
            if random.random() < self.share and whole:
                self._repeat(tokens[row].numpy(), random)
        return Batch(tokens[:, :-1], tokens[:, 1:], batch.document_ids)  # the windows of a WindowSampler do not skip

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
        """`length` tokens of random words; the last word may be cut."""
        tokens: list[int] = []
        while len(tokens) < length:
            tokens += self.words[int(random.integers(len(self.words)))]
        return tokens[:length]


class CopyWarmup:
    """Another sampler's windows, the first `count` of them filled with one block of random tokens, again and again.

    The block's length is log-uniform from 8 tokens to half the window, and its tokens are uniform below `vocab_size`:
    after the first period each token can be known, by copying alone. Which tokens depends on `seed` and the window's
    number alone. The other windows, and the numbers of all, are those of `windows`.

    >>> from ropewalk.training.data import TokenStream
    >>> windows = WindowSampler(TokenStream(torch.arange(99), torch.tensor([0])), seq_len=16, seed=0)
    >>> CopyWarmup(windows, vocab_size=50, count=1, seed=0).batch(0, 1).inputs.unique().numel()
    8
    """

    def __init__(self, windows: Windows, *, vocab_size: int, count: int, seed: int) -> None:
        self.windows, self.vocab_size, self.count, self.seed = windows, vocab_size, count, seed
        self.stream, self.windows_per_epoch = windows.stream, windows.windows_per_epoch

    def batch(self, first: int, count: int) -> Batch:
        """Windows number `first` to `first + count` of the endless sequence."""
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
        """Window `number`, int64 `[length]`."""
        random = np.random.Generator(np.random.PCG64([self.seed, number, 2]))
        longest = max(1, (length - 1) // 2)
        shortest = min(LEAST, longest)
        period = int(np.exp(random.uniform(np.log(shortest), np.log(longest + 1))))
        return torch.from_numpy(np.resize(random.integers(self.vocab_size, size=period), length))
