"""Is the answer found? By its log-probability against distractors, or by the words of a greedy completion."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from ropewalk.attention.cache import KVCache
from ropewalk.context.measure import CHUNK
from ropewalk.context.retrieval.example import Example, Ids
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.models.generate import generate
from ropewalk.models.tokenizer import TextTokenizer

SCORINGS = ("choice", "generate")
_BATCH_BYTES = 2**28  # caches up to this size are copied for all choices at once; a larger one is cut back after each


@torch.inference_mode()
def choice_log_probs(
    model: Decoder, example: Example, *, chunk: int = CHUNK, advance: Callable[[int], None] | None = None
) -> list[float]:
    """The log-probability in nats of every choice after the input, the sum over its tokens; the answer's first.

    The input goes through a cache once, `chunk` tokens at a time, `advance` called with their number; logits exist for
    its last token and for the choices alone. Frequencies that depend on length are those of `example.tokens`.
    """
    ids = torch.tensor(example.input_ids, device=model.embed_tokens.weight.device)
    cache = model.new_cache(seq_len=example.tokens, capacity=example.tokens)
    hidden: Tensor | None = None
    for start in range(0, len(ids), chunk):
        part = ids[start : start + chunk]
        hidden = model.hidden_states(part[None], cache=cache)[0, -1:].clone()
        if advance is not None:
            advance(len(part))
    assert hidden is not None, "a prompt is never empty"
    first = model.logits(hidden).float().log_softmax(-1)[0]
    choices = example.choices
    totals = [float(first[choice[0]]) for choice in choices]
    if cache.nbytes * len(choices) <= _BATCH_BYTES:
        cache.select([0] * len(choices))
        return [total + rest for total, rest in zip(totals, _continue(model, choices, cache), strict=True)]
    for index, choice in enumerate(choices):
        totals[index] += _continue(model, (choice,), cache)[0]
        cache.truncate(len(ids))
    return totals


def _continue(model: Decoder, choices: tuple[Ids, ...], cache: KVCache) -> list[float]:
    """For each choice (one row of the cache each) the log-probability of its tokens after the first."""
    most = max(len(choice) for choice in choices) - 1
    if most == 0:
        return [0.0] * len(choices)
    ids = torch.zeros(len(choices), most, dtype=torch.long)
    wanted, real = ids.clone(), ids.clone()
    for row, choice in enumerate(choices):
        ids[row, : len(choice) - 1] = torch.tensor(choice[:-1])
        wanted[row, : len(choice) - 1] = torch.tensor(choice[1:])
        real[row, : len(choice) - 1] = 1
    ids, wanted, real = (part.to(cache.device) for part in (ids, wanted, real))
    mask = None if bool(real.all()) else real
    logits = model.logits(model.hidden_states(ids, attention_mask=mask, cache=cache)).float().log_softmax(-1)
    found = logits.gather(-1, wanted[..., None])[..., 0] * real
    return [float(value) for value in found.double().sum(1)]


def choose(log_probs: list[float]) -> bool:
    """Whether the first, the answer's, is above all others; a tie is no find. Raises `RopeError` for NaN.

    >>> choose([-1.0, -2.0]), choose([-1.0, -1.0])
    (True, False)
    """
    if any(value != value for value in log_probs):
        raise RopeError(
            "retrieval: a log-probability is not a number.",
            facts={"log-probabilities": log_probs},
            cure="Measure with --dtype float32; if it stays, the checkpoint's weights are broken.",
        )
    return log_probs[0] > max(log_probs[1:])


def names_all(completion: str, answers: tuple[str, ...]) -> bool:
    """Whether every answer stands in the completion as a whole word.

    >>> names_all(" 123, and 45.", ("45", "123")), names_all(" 1234", ("123",))
    (True, False)
    """
    return all(re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", completion) for answer in answers)


def completes(model: Decoder, tokenizer: TextTokenizer, example: Example) -> bool:
    """Whether the greedy completion, of as many tokens as the full answer has, names all of it."""
    length = example.tokens if model.config.needs_seq_len else None
    new = generate(model, [list(example.input_ids)], max_new_tokens=example.new_tokens, seq_len=length)
    return names_all(tokenizer.decode(new[0]), example.answers)


def is_found(
    model: Decoder,
    tokenizer: TextTokenizer,
    example: Example,
    *,
    scoring: str,
    chunk: int = CHUNK,
    advance: Callable[[int], None] | None = None,
) -> bool:
    """One example scored; `scoring` is one of `SCORINGS`."""
    if scoring == "choice":
        return choose(choice_log_probs(model, example, chunk=chunk, advance=advance))
    found = completes(model, tokenizer, example)
    if advance is not None:
        advance(len(example.input_ids))
    return found
