"""Windows of the text to measure on, and the check that they were not worked on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.builtin.texts import read_text
from ropewalk.errors import RopeError
from ropewalk.extend.overlap import check_unseen
from ropewalk.measure.plan import Protocol, take_windows
from ropewalk.methods import Reach
from ropewalk.models.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """A text to measure on: its windows, int64 `[windows, target]`, by the doctor's protocol."""

    name: str
    contents: str
    windows: Tensor
    protocol: Protocol

    @classmethod
    def take(
        cls, path: Path | None, tokenizer: Tokenizer, reach: Reach, *, start_char: int = 0, **protocol: Any
    ) -> HeldOutText:
        """Windows of a text (None: the packaged Moby Dick) from `start_char` on; `protocol` as `Protocol.choose`."""
        name, contents = read_text(path)
        return cls.of(name, contents, tokenizer, reach, start_char=start_char, **protocol)

    @classmethod
    def of(
        cls,
        name: str,
        contents: str,
        tokenizer: Tokenizer,
        reach: Reach,
        *,
        start_char: int = 0,
        unscaled_tokens: int = 0,
        **protocol: Any,
    ) -> HeldOutText:
        """As `take`, of a text that is read already."""
        tokens = tokenizer.encode(contents[max(start_char, 0) :])
        chosen = Protocol.choose(
            trained_length=reach.trained,
            target=reach.target,
            unscaled_tokens=unscaled_tokens,
            text=name,
            start_char=start_char,
            tokens=len(tokens),
            **protocol,
        )
        return cls(name=name, contents=contents, windows=take_windows(tokens, chosen), protocol=chosen)


def shared_windows(
    texts: Sequence[tuple[str, str]], tokenizer: Tokenizer, reach: Reach, *, windows: int, seed: int
) -> Tensor:
    """int64 `[windows, target]`, shared among texts of (name, contents); raises `RopeError` for fewer than texts."""
    if windows < len(texts):
        raise RopeError(
            "extend: there are more texts than windows.",
            facts={"texts": len(texts), "windows": windows},
            cure="Pass --search-windows, at least one for each text.",
        )
    shares = [windows // len(texts) + (index < windows % len(texts)) for index in range(len(texts))]
    parts = [
        HeldOutText.of(name, contents, tokenizer, reach, windows=share, seed=seed).windows
        for (name, contents), share in zip(texts, shares, strict=True)
    ]
    return torch.cat(parts)


def refuse_seen(
    windows: Tensor, texts: Sequence[tuple[str, str]], tokenizer: Tokenizer, *, work: str, validation: str
) -> None:
    """Raise `RopeError` where the windows share passages with texts of (path, contents) that are worked on."""
    check_unseen(
        windows,
        (tokenizer.encode(contents) for _, contents in texts),
        work=work,
        names=[name for name, _ in texts],
        validation=validation,
    )
