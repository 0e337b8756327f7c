"""How the loss is measured: lengths, blocks and windows, validated once and named in every output."""

from __future__ import annotations

import dataclasses
from typing import Any

from ropewalk.context.statistics import CONFIDENCE
from ropewalk.errors import RopeError

TOKENS_PER_METHOD = 65_536
MOST_WINDOWS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """One protocol of measurement; every length is in tokens, `start_char` in characters of the text.

    The loss of a token given all tokens before it in its window belongs to the block of its own position: so
    the first token of a window has none, and the first block holds one loss fewer.
    """

    trained_length: int
    target: int
    block: int
    windows: int
    stride: int
    text: str
    start_char: int = 0

    def __post_init__(self) -> None:
        for name in ("trained_length", "target", "block", "windows", "stride"):
            if getattr(self, name) < 1:
                raise RopeError(
                    f"doctor: `{name}` must be at least 1.",
                    facts={name: getattr(self, name)},
                    cure=f"Give a positive --{name.replace('_', '-')}.",
                )
        if self.start_char < 0:
            raise RopeError(
                "doctor: `start_char` must not be negative.",
                facts={"start_char": self.start_char},
                cure="Count --start-char from the beginning of the text.",
            )
        if not 2 <= self.block <= self.target:
            raise RopeError(
                "doctor: `block` must be from 2 tokens to the target.",
                facts={"block": self.block, "target": self.target},
                cure="Give a --block that divides the target, such as a quarter of the trained length.",
            )
        if 4 * self.stride > max(self.trained_length, 4):
            raise RopeError(
                "doctor: crop's stride must be at most a quarter of the trained length.",
                facts={"stride": self.stride, "trained_length": self.trained_length},
                cure="Give a smaller --stride; the default is a quarter.",
            )

    @classmethod
    def choose(
        cls,
        *,
        trained_length: int,
        text: str,
        target: int | None = None,
        block: int | None = None,
        windows: int | None = None,
        stride: int | None = None,
        start_char: int = 0,
        tokens: int | None = None,
    ) -> Protocol:
        """Fill in what was not asked for: target 4x, block and stride a quarter of the trained length, and as
        many windows (16 at most) as the text's `tokens` hold and as keep a method within 65,536 tokens.

        >>> found = Protocol.choose(trained_length=512, text="moby_dick")
        >>> found.target, found.block, found.windows
        (2048, 128, 16)
        """
        wanted = 4 * trained_length if target is None else target
        quarter = max(1, trained_length // 4)
        most = TOKENS_PER_METHOD if tokens is None else min(TOKENS_PER_METHOD, tokens)
        return cls(
            trained_length=trained_length,
            target=wanted,
            block=min(max(2, quarter), max(2, wanted)) if block is None else block,
            windows=max(1, min(MOST_WINDOWS, most // max(1, wanted))) if windows is None else windows,
            stride=quarter if stride is None else stride,
            text=text,
            start_char=start_char,
        )

    @property
    def blocks(self) -> tuple[tuple[int, int], ...]:
        """`[start, end)` of each block of positions; the last may be shorter."""
        return tuple((start, min(start + self.block, self.target)) for start in range(0, self.target, self.block))

    def starts(self, tokens: int) -> tuple[int, ...]:
        """The first token of each window: evenly spread and disjoint; one window begins at 0.

        >>> Protocol.choose(trained_length=4, text="t", target=8, windows=3).starts(30)
        (0, 11, 22)
        """
        room = tokens - self.target
        if tokens < self.windows * self.target:
            raise RopeError(
                "doctor: the text is too short for the windows.",
                facts={
                    "text": self.text,
                    "tokens in the text": tokens,
                    "tokens needed": self.windows * self.target,
                    "windows": self.windows,
                    "target": self.target,
                },
                cure="Give a longer --text, fewer --windows, a smaller --start-char or a shorter --target.",
            )
        if self.windows == 1:
            return (0,)
        return tuple(room * index // (self.windows - 1) for index in range(self.windows))

    def sentence(self) -> str:
        """The protocol in words."""
        several = f"{self.windows} windows, evenly spread and disjoint" if self.windows > 1 else "one window"
        return (
            f"Loss in nats per token, each token given all tokens before it in its window of {self.target:,}; "
            f"{several}, of {self.text} from character {self.start_char:,}; positions 0 to "
            f"{self.target - 1:,}; a loss belongs to the block of the predicted position. Blocks of "
            f"{self.block:,}. crop: fresh windows of {self.trained_length:,} tokens, stride {self.stride:,}. "
            + (
                f"Intervals: {CONFIDENCE:.0%}, Student's t over windows, differences paired by window."
                if self.windows > 1
                else "One window: no interval."
            )
        )

    def to_json(self) -> dict[str, Any]:
        """The protocol as JSON holds it, with its sentence."""
        return {**dataclasses.asdict(self), "confidence": CONFIDENCE, "sentence": self.sentence()}
