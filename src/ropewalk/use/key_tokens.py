"""Key tokens as LongPPL chooses them: those that another model, the evaluator, predicts well only from the far part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ropewalk.errors import RopeError
from ropewalk.models.tokens import Tokenizer
from ropewalk.readers.reader import CHUNK, Advance, Losses, Reader
from ropewalk.use.exchange import Mask
from ropewalk.use.protocol import ExchangeDesign

LEAST_GAIN = 2.0
"""Nats: a key token's loss without the far part lies more than so much above its loss with it (LongPPL's alpha)."""
MOST_LOSS = 2.0
"""Nats: with the far part its loss is lower than this (LongPPL's beta)."""
Spans = Sequence[tuple[int, int]]


def is_key(full: Losses, short: Losses) -> Mask:
    """Which tokens are key by the evaluator's losses with and without the far part (Fang et al., arXiv:2410.23771).

    >>> is_key(np.array([1.0, 1.0, 3.0]), np.array([3.5, 2.5, 9.0])).tolist()
    [True, False, False]
    """
    return np.asarray((short - full > LEAST_GAIN) & (full < MOST_LOSS))


def check_evaluator(evaluator: Reader, model: Reader, target: int) -> None:
    """Refuse an evaluator without a tokenizer, one that cannot read the whole window, and the model itself.

    Tokens that the model itself predicts well from the far part would show that it uses it by their choice alone.
    """
    trained = evaluator.trained_length
    facts = {"evaluator": evaluator.name, "model": model.name, "its trained length": trained, "target": target}
    if evaluator.tokenizer is None:
        raise RopeError(
            "use: the evaluator has no tokenizer.", facts=facts, cure="Put its tokenizer.json beside its weights."
        )
    if evaluator.digest() == model.digest():
        raise RopeError(
            "use: the evaluator must not be the model that is measured.",
            facts=facts,
            cure="Give another model with --evaluator, or leave it out.",
        )
    if trained is not None and trained < target:
        raise RopeError(
            "use: the evaluator must be trained to the target, because it reads whole windows.",
            facts=facts,
            cure="Give a model with a longer context, ask for a shorter --target, or leave --evaluator out.",
        )


def key_tokens(
    evaluator: Reader,
    design: ExchangeDesign,
    *,
    text: str,
    spans: Spans,
    input_ids: Sequence[int] | None = None,
    chunk: int = CHUNK,
    advance: Advance | None = None,
) -> Mask:
    """Which of the scored tokens of one window are key tokens; bool `[scored]`.

    **Arguments:**
    - `text`: the window's text. `spans`: the characters of it that each of the window's tokens stands for.
    - `input_ids`: the window's tokens where the evaluator has the same tokenizer; None: the text is encoded by its
      own, and a token is key where a character of it belongs to a key token of the evaluator.

    The evaluator reads the whole window, and the window without its far part. Its own first tokens (bos) come before
    both.
    """
    tokenizer = evaluator.tokenizer
    assert tokenizer is not None, "checked before"
    if input_ids is None:
        ids, own = _encoded(tokenizer, text)
        border = _token_at(own, spans[design.exchanged][0])
        first = _token_at(own, spans[design.first][0])
    else:
        ids, own, border, first = list(input_ids), list(spans), design.exchanged, design.first
    first = max(first, border + 1)
    if first >= len(ids):
        return np.zeros(design.scored, dtype=np.bool_)
    prefix = tokenizer.prefix_ids

    def losses(start: int) -> Losses:
        read = torch.tensor([*prefix, *ids[start:]], dtype=torch.int64, device="cpu")
        return evaluator.window_losses(read, first=len(prefix) + first - start, chunk=chunk, advance=advance)

    key = is_key(losses(0), losses(border))
    if input_ids is not None:
        found = np.zeros(design.scored, dtype=np.bool_)
        found[design.scored - len(key) :] = key
        return found
    marked = np.zeros(len(text) + 1, dtype=np.bool_)
    for (start, end), chosen in zip(own[first:], key, strict=True):
        marked[start:end] |= chosen
    return np.array([bool(marked[start:end].any()) for start, end in spans[design.first :]], dtype=np.bool_)


def same_tokenizer(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether both give the same ids: the same vocabulary, merges and rules."""
    return bool(one.tokenizer.to_str() == other.tokenizer.to_str())


def spans_of(tokenizer: Tokenizer, text: str) -> Spans:
    """The characters that each token of a text stands for."""
    return list(tokenizer.tokenizer.encode(text, add_special_tokens=False).offsets)


def _encoded(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    encoding = tokenizer.tokenizer.encode(text, add_special_tokens=False)
    return list(encoding.ids), list(encoding.offsets)


def _token_at(spans: Spans, character: int) -> int:
    """The first token that begins at a character or after it."""
    return next((number for number, (start, _) in enumerate(spans) if start >= character), len(spans))
