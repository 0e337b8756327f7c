"""The windows of a measurement: where they lie in the texts, their blocks of positions, and the tokens crop reads."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.layers.prompts import Tokenizer
from ropewalk.rope.values import MOST_SEED, check_whole

LOOKS = (1, 2, 4, 8)
"""Numbers of windows after which a run looks at its results."""
MOST_WINDOWS = LOOKS[-1]
BLOCK = 64  # most positions of a block
CROP_TOKENS = 512  # tokens that crop scores in a window, at least, unless fewer lie beyond
TIMES = (4.0, 3.0, 2.0, 1.5, 1.25)  # of the trained length: the targets that are tried if none is given
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclasses.dataclass(frozen=True)
class Text:
    """The name, contents and tokens of a text."""

    name: str
    contents: str
    tokens: Sequence[int]

    @classmethod
    def encode(cls, texts: Sequence[tuple[str, str]], tokenizer: Tokenizer) -> tuple[Text, ...]:
        """Tokenise texts, given as names and contents."""
        return tuple(cls(name, contents, tokenizer.encode(contents)) for name, contents in texts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Design:
    """The windows of a measurement. Lengths are in tokens.

    - `windows`: their number, of all texts together. They alternate between the texts. `seed` draws their places.
    """

    trained_length: int
    target: int
    windows: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("doctor", trained_length=self.trained_length, target=self.target, windows=self.windows)
        check_whole("doctor", least=0, most=MOST_SEED, seed=self.seed)

    @property
    def extends(self) -> bool:
        """Return whether windows are longer than the trained length."""
        return self.target > self.trained_length

    @property
    def stride(self) -> int:
        """Return the tokens that crop scores in one fresh window, a quarter of the trained length."""
        return max(1, self.trained_length // 4)

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """Return `[start, end)` of each block of positions: at most 64, counted anew from the trained length.

        >>> Design(trained_length=128, target=160, windows=1).blocks[-2:]
        ((128, 144), (144, 160))
        """
        block = max(4, min(BLOCK, self.trained_length // 8))
        within = min(self.trained_length, self.target)
        return tuple(
            (start, min(start + block, end))
            for first, end in ((0, within), (within, self.target))
            for start in range(first, end, block)
        )

    def crop_steps(self, window: int) -> tuple[tuple[int, int], ...]:
        """Return `[first, end)` of the tokens that crop scores in a window: a sample, spread over the part beyond.

        >>> Design(trained_length=8192, target=16384, windows=2).crop_steps(0)
        ((12288, 14336),)
        """
        starts = range(self.trained_length, self.target, self.stride)
        count = min(len(starts), -(-CROP_TOKENS // self.stride))
        offset = (0.5 + window * _GOLDEN) % 1
        chosen = [starts[int((number + offset) * len(starts) / count)] for number in range(count)]
        return tuple((start, min(start + self.stride, self.target)) for start in chosen)

    def places(self, tokens: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return the text and the first token of each window, in rounds over the texts, in random order in each text.

        - `tokens`: of each text. Windows of a text are disjoint, with random gaps, if it is long enough; else they are
          spread evenly and overlap by at most a half. Texts shorter than a window are left out.

        Raises `RopeError` if the texts are too short for the windows.
        """
        room = [most_windows(length, self.target) for length in tokens]
        if sum(room) < self.windows:
            raise RopeError(
                "doctor: the texts are too short for the windows.",
                facts={"tokens in each text": list(tokens), "windows": self.windows, "target": self.target},
                cure="Give a longer --text or more of them, fewer --windows, or a shorter --target.",
            )
        counts = [0] * len(tokens)
        order: list[tuple[int, int]] = []
        while len(order) < self.windows:
            for text in [text for text, most in enumerate(room) if counts[text] < most][: self.windows - len(order)]:
                order.append((text, counts[text]))
                counts[text] += 1
        starts = [self._starts(length, counts[text], text) for text, length in enumerate(tokens)]
        return tuple((text, starts[text][number]) for text, number in order)

    def _starts(self, tokens: int, windows: int, text: int) -> list[int]:
        """Return the first tokens of a text's windows, in random order."""
        random, spare = np.random.default_rng([self.seed, text]), tokens - windows * self.target
        if spare >= 0:
            gaps = np.sort(random.integers(0, spare + 1, windows))
            found = [int(gap) + index * self.target for index, gap in enumerate(gaps)]
        else:
            found = [round(value) for value in np.linspace(0, tokens - self.target, windows).tolist()]
        return [found[number] for number in random.permutation(windows)]


def most_windows(tokens: int, target: int) -> int:
    """Return the number of windows in a text of `tokens` tokens if they overlap by at most a half.

    >>> most_windows(100, 40), most_windows(79, 40), most_windows(39, 40)
    (4, 2, 0)
    """
    return 0 if tokens < target else 2 * tokens // target - 1


def frequency_loss(outside: np.ndarray, ids: np.ndarray, vocab_size: int) -> float:
    """Return the mean loss of a unigram model on token ids, in nats per token.

    A token that occurs c times among N tokens, T of them distinct, has the probability (c + T / V) / (N + T).

    - `outside`: int64 `[vocab_size]`, the count of each token in the text outside the window.

    **Source:** Witten and Bell 1991 (method C), interpolated with the uniform distribution as in Chen and Goodman 1999,
    "An empirical study of smoothing techniques for language modeling", section 2.

    >>> round(frequency_loss(np.zeros(2, dtype=np.int64), np.array([0, 0]), 2), 4)  # no token outside: log 2
    0.6931
    """
    total, distinct = int(outside.sum()), int(np.count_nonzero(outside))
    if not total:
        return math.log(vocab_size)
    return float(-np.log((outside[ids] + distinct / vocab_size) / (total + distinct)).mean())
