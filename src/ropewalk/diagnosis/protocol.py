"""How the loss is measured: lengths, blocks and windows, validated once and named in every output."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ropewalk.errors import RopeError
from ropewalk.statistics import CONFIDENCE, interval_sentence

TOKENS_PER_METHOD = 65_536
MOST_WINDOWS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """One protocol of measurement; every length is in tokens, `start_char` in characters of each text.

    `windows` are taken of each text, disjoint, at places drawn from `seed`. The first `unscaled_tokens` of a window
    keep their angles under every method that changes frequencies (LongRoPE's n-hat).

    The loss of a token given all tokens before it in its window belongs to the block of its own position: so
    the first token of a window has none, and the first block holds one loss fewer.
    """

    trained_length: int
    target: int
    block: int
    windows: int
    stride: int
    texts: tuple[str, ...]
    start_char: int = 0
    seed: int = 0
    unscaled_tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("trained_length", "target", "block", "windows", "stride"):
            if getattr(self, name) < 1:
                raise RopeError(
                    f"protocol: `{name}` must be at least 1.",
                    facts={name: getattr(self, name)},
                    cure=f"Give a positive --{name.replace('_', '-')}.",
                )
        if not self.texts:
            raise RopeError("protocol: there is no text to measure on.", cure="Give --text FILE.")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise RopeError(
                "protocol: `seed` must be a whole number from 0 on.", facts={"seed": self.seed}, cure="Give --seed 0."
            )
        if not isinstance(self.unscaled_tokens, int) or not 0 <= self.unscaled_tokens < self.target:
            raise RopeError(
                "protocol: `unscaled_tokens` must be a whole number from 0 to below the target.",
                facts={"unscaled_tokens": self.unscaled_tokens, "target": self.target},
                cure="A few are usual: --unscaled-tokens 4; LongRoPE tries up to 256.",
            )
        if self.start_char < 0:
            raise RopeError(
                "protocol: `start_char` must not be negative.",
                facts={"start_char": self.start_char},
                cure="Count --start-char from the beginning of the text.",
            )
        if not 2 <= self.block <= self.target:
            raise RopeError(
                "protocol: `block` must be from 2 tokens to the target.",
                facts={"block": self.block, "target": self.target},
                cure="Give a --block that divides the target, such as a quarter of the trained length.",
            )
        if 4 * self.stride > max(self.trained_length, 4):
            raise RopeError(
                "protocol: crop's stride must be at most a quarter of the trained length.",
                facts={"stride": self.stride, "trained_length": self.trained_length},
                cure="Give a smaller --stride; the default is a quarter.",
            )

    @classmethod
    def choose(
        cls,
        *,
        trained_length: int,
        text: str | Sequence[str],
        target: int | None = None,
        block: int | None = None,
        windows: int | None = None,
        stride: int | None = None,
        start_char: int = 0,
        seed: int = 0,
        unscaled_tokens: int = 0,
        tokens: int | None = None,
    ) -> Protocol:
        """Fill in what was not asked for: target 4x (3x, 2x where the shortest text's `tokens` hold no more), block and
        stride a quarter of the trained length, and as many windows (16 at most) as those tokens hold and as keep a
        method within 65,536 tokens.

        >>> found = Protocol.choose(trained_length=512, text="moby_dick")
        >>> found.target, found.block, found.windows
        (2048, 128, 16)
        """
        times = next((n for n in (4, 3, 2) if tokens is None or n * trained_length <= tokens), 4)
        wanted = times * trained_length if target is None else target
        quarter = max(1, trained_length // 4)
        texts = (text,) if isinstance(text, str) else tuple(text)
        share = TOKENS_PER_METHOD // max(1, len(texts))
        most = share if tokens is None else min(share, tokens)
        return cls(
            trained_length=trained_length,
            target=wanted,
            block=min(max(2, quarter), max(2, wanted)) if block is None else block,
            windows=max(1, min(MOST_WINDOWS, most // max(1, wanted))) if windows is None else windows,
            stride=quarter if stride is None else stride,
            texts=texts,
            start_char=start_char,
            seed=seed,
            unscaled_tokens=unscaled_tokens,
        )

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """`[start, end)` of each block of positions; the last may be shorter."""
        return tuple((start, min(start + self.block, self.target)) for start in range(0, self.target, self.block))

    @property
    def total_windows(self) -> int:
        """Windows of all texts."""
        return self.windows * len(self.texts)

    def starts(self, tokens: int, text: int = 0) -> tuple[int, ...]:
        """The first token of each window in the text of that number: disjoint, with gaps drawn at random.

        >>> Protocol.choose(trained_length=4, text="t", target=8, windows=3, seed=1).starts(30)
        (3, 11, 21)
        """
        room = tokens - self.windows * self.target
        if tokens < self.windows * self.target:
            raise RopeError(
                "protocol: the text is too short for the windows.",
                facts={
                    "text": self.texts[text],
                    "tokens in the text": tokens,
                    "tokens needed": self.windows * self.target,
                    "windows": self.windows,
                    "target": self.target,
                },
                cure="Give a longer --text, fewer --windows, a smaller --start-char or a shorter --target.",
            )
        gaps = np.sort(np.random.default_rng([self.seed, text]).integers(0, room + 1, self.windows))
        return tuple(int(gap) + index * self.target for index, gap in enumerate(gaps))

    def sentence(self) -> str:
        """The protocol in words."""
        several = f"{self.windows} disjoint windows" if self.windows > 1 else "one window"
        texts = self.texts[0] if len(self.texts) == 1 else f"each of {', '.join(self.texts)}"
        return (
            f"Loss in nats per token, each token given all tokens before it in its window of {self.target:,}; "
            f"{several}, placed at random (seed {self.seed}), of {texts} from character {self.start_char:,}; positions "
            f"0 to {self.target - 1:,}; a loss belongs to the block of the predicted position. Blocks of "
            f"{self.block:,}. crop: fresh windows of {self.trained_length:,} tokens, stride {self.stride:,}. "
            + self._first_tokens()
            + interval_sentence(self.total_windows, texts=len(self.texts))
        )

    def _first_tokens(self) -> str:
        if not self.unscaled_tokens:
            return ""
        return (
            f"The first {self.unscaled_tokens:,} tokens of a window keep their angles under every method that changes "
            "frequencies. "
        )

    def to_json(self) -> dict[str, Any]:
        """The protocol as JSON holds it, with its sentence."""
        return {**dataclasses.asdict(self), "confidence": CONFIDENCE, "sentence": self.sentence()}
