"""Tokenizers as models use them, and prompts in chat form."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.rope.values import as_whole, is_number


@runtime_checkable
class Tokenizer(Protocol):
    """Text to token ids and back.

    `bos_id` begins a text, or is None; generation stops after any of `eos_ids`. `tokenizer` is the
    `tokenizers.Tokenizer` that does the work.
    """

    tokenizer: Any
    bos_id: int | None
    eos_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""

    @property
    def prefix_ids(self) -> list[int]:
        """The ids that the checkpoint puts before every text."""

    def encode_prompt(self, text: str, *, bos: bool | None = None) -> list[int]:
        """The ids of a text that a model continues; see `TextTokenizer.encode_prompt`."""

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """The ids of `text`."""

    def decode(self, ids: Sequence[int], skip_special: bool = False) -> str:
        """The text of `ids`."""

    def stream(self, skip_special: bool = True) -> Any:
        """The text of ids that arrive one by one; see `TextTokenizer.stream`."""

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write it into `folder`."""


Prompts = Tensor | Sequence[int] | Sequence[Sequence[int]] | str | Sequence[str]


def token_lists(prompts: Prompts, tokenizer: Tokenizer | None, vocab_size: int) -> list[list[int]]:
    """The prompts as one list of ids per row, none empty, all in the vocabulary."""
    rows: list[Any]
    if isinstance(prompts, Tensor):
        whole = not (prompts.is_floating_point() or prompts.is_complex() or prompts.dtype == torch.bool)
        if prompts.ndim not in (1, 2) or not whole:
            raise RopeError(
                "generate: a tensor of prompts must be integers [batch, seq].",
                facts={"prompts": prompts},
                cure="Pass token ids of one length, or a list of lists for unequal ones.",
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
                "generate: this model has no tokenizer, so it reads no text.",
                facts={"prompts": prompts},
                cure="Give token ids, or load a checkpoint that has a tokenizer.",
            )
        rows = [_text_tokens(tokenizer, row) for row in rows]
    if not all(isinstance(row, Sequence) and all(as_whole(token) is not None for token in row) for row in rows):
        raise RopeError(
            "generate: prompts are texts, or lists of token ids, not a mixture and nothing else.",
            facts={"prompts": prompts},
            cure="Pass str, list[str], list[int] or list[list[int]]; an array goes through torch.as_tensor.",
        )
    tokens = [[int(token) for token in row] for row in rows]
    if not tokens or not all(tokens):
        raise RopeError(
            "generate: a prompt is empty.",
            facts={"prompts": prompts},
            cure="Begin with at least one token, such as the tokenizer's bos.",
        )
    strange = sorted({token for row in tokens for token in row if not 0 <= token < vocab_size})
    if strange:
        raise RopeError(
            "generate: a prompt holds tokens that the vocabulary has not.",
            facts={"tokens": strange, "vocab_size": vocab_size},
            cure="Use the tokenizer that the model was trained with.",
        )
    return tokens


def is_text(prompts: Prompts) -> bool:
    """Whether the prompts are texts; a mixture is refused elsewhere."""
    if isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes):
        return any(isinstance(row, str) for row in prompts)
    return isinstance(prompts, str)


def _text_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """The tokens of a text prompt; an empty one needs a token to begin with."""
    ids = tokenizer.encode_prompt(text) if text else tokenizer.encode_prompt(text, bos=True)
    if not ids:
        raise RopeError(
            "generate: the prompt is empty, and the checkpoint has no token that begins a text.",
            facts={"prompt": text},
            cure="Give at least one character.",
        )
    return ids


def check_sampling(max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
    if (as_whole(max_new_tokens) or 0) < 1:
        raise RopeError(
            "generate: `max_new_tokens` must be at least 1, and whole.",
            facts={"max_new_tokens": max_new_tokens},
            cure="Ask for one token or more.",
        )
    if not (is_number(temperature) and temperature >= 0):
        raise RopeError(
            "generate: `temperature` must be a finite number, at least 0.",
            facts={"temperature": temperature},
            cure="0 takes the likeliest token each time.",
        )
    if top_k is not None and (as_whole(top_k) or 0) < 1:
        raise RopeError(
            "generate: `top_k` must be at least 1, and whole.",
            facts={"top_k": top_k},
            cure="None keeps all tokens.",
        )
    if top_p is not None and not (is_number(top_p) and 0 < top_p <= 1):
        raise RopeError(
            "generate: `top_p` must be above 0 and at most 1.", facts={"top_p": top_p}, cure="None keeps all tokens."
        )
    if temperature == 0 and (top_k is not None or top_p is not None):
        raise RopeError(
            "generate: `top_k` and `top_p` say nothing at temperature 0.",
            facts={"temperature": temperature, "top_k": top_k, "top_p": top_p},
            cure="Pass temperature=1.0 to sample.",
        )
