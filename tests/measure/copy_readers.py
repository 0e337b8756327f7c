"""Readers whose losses are known: what they copy, and from how far back, is said in their constructor."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor

from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.measure.copy_test import UseModel, UseRun
from ropewalk.measure.copy_windows import UseProtocol, UseText
from ropewalk.models.config import Positions
from ropewalk.readers.reader import CHUNK, Advance, Losses
from ropewalk.rope.config import RopeConfig

BASE = 10.0
SYLLABLES = ["".join(letters) for letters in itertools.product("bdfgklmnprstvz", "aeiou")]
WORDS = [one + two for one, two in itertools.product(SYLLABLES, SYLLABLES)]


def text_of(words: int, seed: int = 0, *, different: int = len(WORDS)) -> str:
    """Words in random order, out of so many different ones."""
    rng = Random(seed)
    return " ".join(rng.choice(WORDS[:different]) for _ in range(words))


def word_tokenizer() -> TextTokenizer:
    """One token for each word."""
    return _of_parts(WORDS, r"\w+")


def _of_parts(parts: list[str], pattern: str) -> TextTokenizer:
    vocabulary = {part: number for number, part in enumerate([*parts, "?"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.WhitespaceSplit(),
            tokenizers.pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated"),
        ]
    )
    return TextTokenizer(tokenizer)


def run_lengths(ids: list[int], reach: int, cue: int) -> list[int]:
    """For each token, how many tokens before it stand before the same token at most `reach` back as well.

    0 where fewer than `cue` agree, or where what followed there is another token. The longest such place counts.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    found = [0] * len(ids)
    for token in range(len(ids)):
        for place in places.get(tuple(ids[max(0, token - cue) : token]), []):
            if token - place <= reach and ids[place] == ids[token]:
                same = 0
                while same < place and ids[place - 1 - same] == ids[token - 1 - same]:
                    same += 1
                found[token] = max(found[token], same)
        if token >= cue:
            places.setdefault(tuple(ids[token - cue : token]), []).append(token)
    return found


class CopyReader:
    """A reader that knows a token exactly where the tokens before it led to it at most `reach` tokens ago.

    - `gain`: nats that it gains then, from the number of tokens that agree before (at least `cue`).
    - `trend`: nats that its loss falls with each position.
    """

    name = "copier"
    trained_length = None
    device = torch.device("cpu")
    dtype = torch.float32
    parameters = 0

    def __init__(
        self,
        reach: int,
        *,
        gain: Callable[[int], float] = lambda same: 6.0,
        trend: float = 0.0,
        cue: int = 4,
        tokenizer: Any = None,
        label: str = "copier",
    ) -> None:
        self.reach, self.gain, self.trend, self.cue = reach, gain, trend, cue
        self.tokenizer, self.label = tokenizer or word_tokenizer(), label
        rope = RopeConfig(8, interleaved=False, max_position_embeddings=1 + reach)
        self.positions = Positions((rope,), (None,), (None,))
        self.read: list[list[int]] = []

    def digest(self) -> str:
        return self.label

    def cache_bytes(self, tokens: int) -> int:
        return 0

    def window_losses(
        self,
        input_ids: Tensor,
        *,
        first: int = 1,
        seq_len: int | None = None,
        chunk: int = CHUNK,
        advance: Advance | None = None,
    ) -> Losses:
        ids = input_ids.tolist()
        self.read.append(ids)
        if advance is not None:
            advance(len(ids))
        same = run_lengths(ids, self.reach, self.cue)
        losses = [BASE - self.trend * token - (self.gain(n) if n else 0.0) for token, n in enumerate(same)]
        return np.array(losses[first:], dtype=np.float64)


TRAINED, TARGET, WINDOWS = 256, 1024, 3


def prepared(
    reader: Any,
    *,
    trained: int = TRAINED,
    target: int = TARGET,
    windows: int = WINDOWS,
    different: int = len(WORDS),
    **more: Any,
) -> UseRun:
    """A run on windows that lie one after the other in random words, out of so many different ones."""
    tokenizer = reader.tokenizer
    contents = text_of(target * (windows + 3), seed=5, different=different)
    tokens = tokenizer.encode(contents)
    starts = tuple(7 + target * number for number in range(windows))
    seed = more.pop("seed", 0)
    protocol = UseProtocol.choose(trained_length=trained, target=target, texts=("words",), windows=windows, seed=seed)
    return UseRun.prepare(protocol, reader, [UseText("words", contents, tokens, starts)], **more)


def measured(reader: Any, *, stride: int | None = None, progress: Any = None, **more: Any) -> Any:
    """What the run finds of a reader, as plain and, with a stride, as crop."""
    methods = {"plain": UseModel(reader)} | ({} if stride is None else {"crop": UseModel(reader, stride)})
    return prepared(reader, **more).measure(methods, workers=1, progress=progress)


def byte_tokenizer() -> TextTokenizer:
    """One token per byte."""
    return TextTokenizer.bytes()
