"""Checks of prompts and sampling arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole, is_number
from ropewalk.tokenizer import TextTokenizer

Prompts = Tensor | Sequence[int] | Sequence[Sequence[int]] | str | Sequence[str]


def token_lists(prompts: Prompts, tokenizer: TextTokenizer | None, vocab_size: int) -> list[list[int]]:
    """Return the prompts as one list of ids per row; raise `RopeError` for empty ones and for unknown ids."""
    rows: list[Any]
    if isinstance(prompts, Tensor):
        whole = not (prompts.is_floating_point() or prompts.is_complex() or prompts.dtype == torch.bool)
        if prompts.ndim not in (1, 2) or not whole:
            raise RopeError(
                "generate: a tensor of prompts must be integers [batch, seq].",
                facts={"prompts": prompts},
                cure="Pass token ids of one length, or a list of lists for different lengths.",
            )
        rows = [prompts.tolist()] if prompts.ndim == 1 else prompts.tolist()
    elif isinstance(prompts, str):
        rows = [prompts]
    else:
        rows = list(prompts) if isinstance(prompts, Sequence) and not isinstance(prompts, bytes) else [None]
        if rows and as_whole(rows[0]) is not None:
            rows = [rows]
    if rows and all(isinstance(row, str) for row in rows):
        if tokenizer is None:
            raise RopeError(
                "generate: this model has no tokenizer, so prompts must be token ids.",
                facts={"prompts": prompts},
                cure="Pass token ids, or load a checkpoint with a tokenizer.",
            )
        rows = [tokenizer.encode_prompt(row) for row in rows]
        if not all(rows):
            raise RopeError(
                "generate: the prompt is empty, and the checkpoint has no bos token.",
                facts={"prompt": prompts},
                cure="Pass at least one character.",
            )
    if not all(isinstance(row, Sequence) and all(as_whole(token) is not None for token in row) for row in rows):
        raise RopeError(
            "generate: prompts must be texts or lists of token ids, not a mixture.",
            facts={"prompts": prompts},
            cure="Pass str, list[str], list[int] or list[list[int]]; convert arrays with torch.as_tensor.",
        )
    tokens = [[int(token) for token in row] for row in rows]
    if not tokens or not all(tokens):
        raise RopeError(
            "generate: a prompt is empty.",
            facts={"prompts": prompts},
            cure="Pass at least one token, such as the tokenizer's bos.",
        )
    unknown = sorted({token for row in tokens for token in row if not 0 <= token < vocab_size})
    if unknown:
        raise RopeError(
            "generate: a prompt contains tokens outside the vocabulary.",
            facts={"tokens": unknown, "vocab_size": vocab_size},
            cure="Use the tokenizer that the model was trained with.",
        )
    return tokens


def is_text(prompts: Prompts) -> bool:
    """Return whether any prompt is a text; `token_lists` raises for a mixture."""
    if isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes):
        return any(isinstance(row, str) for row in prompts)
    return isinstance(prompts, str)


def check_sampling(max_new_tokens: int, temperature: float) -> None:
    """Raise `RopeError` for sampling options out of range."""
    for name, value, fits, rule, cure in (
        ("max_new_tokens", max_new_tokens, (as_whole(max_new_tokens) or 0) >= 1, "a whole number of at least 1", "1"),
        ("temperature", temperature, is_number(temperature) and temperature >= 0, "a finite number, at least 0", "0"),
    ):
        if not fits:
            raise RopeError(
                f"generate: `{name}` must be {rule}.", facts={name: value}, cure=f"Pass for example {cure}."
            )
