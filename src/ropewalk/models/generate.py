"""Generation: prompts through a cache, one sampled token per row and step, rows of any lengths together."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ropewalk.attention.cache import KVCache, SeqLen, longest_at
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.rope.scaling import LongRoPE
from ropewalk.rope.values import as_whole, is_number

Prompts = Tensor | Sequence[int] | Sequence[Sequence[int]] | str | Sequence[str]

_PREFILL = 1024
_FORGET = 256  # a stream drops tokens in such lots, as each drop moves those that stay
"""Tokens per row that a prompt goes through the model at a time, which bounds memory."""


def generate(
    model: Decoder,
    prompts: Prompts,
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_tokens: Collection[int] = (),
    seed: int | None = None,
    seq_len: int | None = None,
) -> list[list[int]]:
    """The new tokens of each prompt, without the stop token that may have ended them.

    - `prompts`: a text or several (for a model with a tokenizer), one or several lists of token ids, or integers
      `[batch, seq]`. They may differ in length; each comes out as it would alone.
    - `temperature`: 0 takes the likeliest token; else logits are divided by it. `top_k` keeps the k likeliest tokens,
      then `top_p` the fewest of these whose probabilities reach p. They say nothing at temperature 0 and are refused.
    - `stop_tokens`: ids that end a row. `seed`: repeats a draw; each row draws from its own stream.
    - `seq_len`: tokens, for rules whose frequencies depend on length: keeps them fixed at that length. None: dynamic
      NTK is fixed at prompt + max_new_tokens; LongRoPE follows the tokens so far, and a row's cache is recomputed from
      its tokens when it passes the original length, so that every token is what a fresh start would give.

    Raises `RopeError` for an empty prompt, an unknown token, text without a tokenizer, and numbers out of range.

    >>> from ropewalk.models.decoder import DecoderConfig
    >>> model = Decoder(DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                               num_attention_heads=2))
    >>> [len(new) for new in generate(model, [[1, 2, 3], [4]], max_new_tokens=5)]
    [5, 5]
    """
    run = _Run.prepare(model, prompts, max_new_tokens, temperature, top_k, top_p, stop_tokens, seed, seq_len)
    out: list[list[int]] = [[] for _ in run.tokens]
    for row, token in _steps(run):
        out[row].append(token)
    return out


def stream(
    model: Decoder,
    prompts: Prompts,
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_tokens: Collection[int] = (),
    seed: int | None = None,
    seq_len: int | None = None,
) -> Iterator[tuple[int, int]]:
    """The same as `generate`, as it goes: (row, token) for each new token, step by step.

    Arguments and errors are `generate`'s; errors are raised by this call, not by the first step.

    >>> from ropewalk.models.checkpoint import load
    >>> len(list(stream(load("tiny"), ["The sea", "A whale"], max_new_tokens=3)))
    6
    """
    return _steps(_Run.prepare(model, prompts, max_new_tokens, temperature, top_k, top_p, stop_tokens, seed, seq_len))


@dataclass
class _Run:
    """One generation: what was asked, and the tokens of each row so far."""

    model: Decoder
    tokens: list[list[int]]
    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    stop_tokens: frozenset[int]
    draws: list[random.Random]
    seq_len: int | None
    follows: bool
    """Whether frequencies follow the tokens so far (LongRoPE) instead of being fixed."""
    final: list[int] = field(default_factory=list)
    """Tokens per row in the end, if no stop token comes first."""

    @classmethod
    def prepare(
        cls,
        model: Decoder,
        prompts: Prompts,
        max_new_tokens: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        stop_tokens: Collection[int],
        seed: int | None,
        seq_len: int | None,
    ) -> _Run:
        """Check everything that was asked, before anything is computed."""
        _check_sampling(max_new_tokens, temperature, top_k, top_p)
        if not isinstance(stop_tokens, Collection) or not all(isinstance(token, int) for token in stop_tokens):
            raise RopeError(
                "generate: `stop_tokens` must be token ids.",
                facts={"stop_tokens": stop_tokens},
                cure="Pass integers: a text that ends generation is encoded first.",
            )
        tokens = _token_lists(model, prompts)
        final = [len(row) + max_new_tokens for row in tokens]
        ropes = {rope for rope in model.config.ropes if rope is not None and rope.needs_seq_len}
        long = {isinstance(rope.scaling, LongRoPE) for rope in ropes}
        if len(long) > 1 and seq_len is None:
            raise RopeError(
                "generate: some layers fix their frequencies at the final length, others follow the tokens so far.",
                facts={"scaling": sorted({type(rope.scaling).__name__ for rope in ropes})},
                cure="Pass seq_len=... to fix them all: prompt + max_new_tokens.",
            )
        if seq_len is not None and as_whole(seq_len) is None:
            raise RopeError(
                "generate: `seq_len` must be a whole number of tokens.",
                facts={"seq_len": seq_len},
                cure="Leave it out, or pass prompt + max_new_tokens.",
            )
        if seq_len is not None:
            # The last token is never fed back, so the cache holds one less than the final length.
            short = [rope for rope in ropes if max(final) - 1 > longest_at(rope, seq_len)]
            if seq_len < 1 or short:
                raise RopeError(
                    "generate: `seq_len` is less than prompt + max_new_tokens, and frequencies depend on it.",
                    facts={"seq_len": seq_len, "needed": max(final)},
                    cure="Raise it, or leave it out.",
                )
        base = seed if seed is not None else int(torch.randint(2**62, ()).item())
        draws = [random.Random(f"{base}:{row}") for row in range(len(tokens))]
        return cls(
            model, tokens, max_new_tokens, temperature, top_k, top_p, frozenset(stop_tokens), draws, seq_len,
            follows=seq_len is None and True in long, final=final,
        )  # fmt: skip

    def fixed_length(self, rows: Sequence[int]) -> SeqLen | None:
        """The seq_len that a cache for these rows is made with, as their tokens stand now."""
        if not self.model.config.needs_seq_len:
            return None
        if self.seq_len is not None:
            return self.seq_len
        lengths = [len(self.tokens[row]) if self.follows else self.final[row] for row in rows]
        return lengths[0] if len(set(lengths)) == 1 else torch.tensor(lengths)

    def switches(self, row: int, seq_len: int) -> bool:
        """Whether the row has now more tokens than the frequencies of its cache are right for."""
        ropes = {rope for rope in self.model.config.ropes if rope is not None}
        return self.follows and any(len(self.tokens[row]) > longest_at(rope, seq_len) for rope in ropes)


@torch.inference_mode()
def _steps(run: _Run) -> Iterator[tuple[int, int]]:
    """Sample, hand out, feed back: until every row has stopped or has its tokens. Switches no mode across a yield."""
    rows = list(range(len(run.tokens)))
    cache, logits = _prefill(run, rows)
    for step in range(run.max_new_tokens):
        going = []
        for at, (row, token) in enumerate(zip(rows, _sample(run, rows, logits), strict=True)):
            if token in run.stop_tokens:
                continue
            run.tokens[row].append(token)
            going.append(at)
            yield row, token
        rows = [rows[at] for at in going]
        if not rows or step == run.max_new_tokens - 1:
            return
        cache.select(going)
        logits = _feed(run, rows, cache)


def _prefill(run: _Run, rows: Sequence[int]) -> tuple[KVCache, Tensor]:
    """A cache with all tokens of these rows, and the logits `[rows, vocab]` after the last of each."""
    model, lengths = run.model, [len(run.tokens[row]) for row in rows]
    longest = max(lengths)
    room = longest + min(run.max_new_tokens, 256)
    if model.config.streaming is not None:
        room = min(room, model.config.streaming.kept + _PREFILL)
    cache = model.new_cache(len(rows), seq_len=run.fixed_length(rows), capacity=room)
    padded = torch.zeros(len(rows), longest, dtype=torch.long)
    for at, row in enumerate(rows):
        padded[at, : lengths[at]] = torch.tensor(run.tokens[row])
    padded = padded.to(cache.device)
    ends = torch.tensor(lengths, device=cache.device)
    real = torch.arange(longest, device=cache.device) < ends[:, None]
    last: Tensor | None = None
    with _evaluating(model):
        for begin in range(0, longest, _PREFILL):
            part = slice(begin, min(begin + _PREFILL, longest))
            hidden = model.hidden_states(padded[:, part], attention_mask=real[:, part], cache=cache)
            here = ((ends - 1) >= begin) & ((ends - 1) < begin + _PREFILL)
            at_end = hidden[
                torch.arange(len(rows), device=cache.device), (ends - 1 - begin).clamp(0, hidden.shape[1] - 1)
            ]
            last = at_end if last is None else torch.where(here[:, None], at_end, last)
            _forget(model, cache, slack=0)
        assert last is not None, "prompts are never empty"
        return cache, model.logits(last)


def _forget(model: Decoder, cache: KVCache, *, slack: int) -> None:
    """Drop what no later token will see, once it is more than `slack` tokens: a stream runs in bounded memory."""
    streaming = model.config.streaming
    if streaming is not None:
        excess = [max(0, held - streaming.kept) for held in cache.lengths.tolist()]
        if max(excess) > slack:
            cache.drop(excess, sinks=streaming.sinks)


def _feed(run: _Run, rows: Sequence[int], cache: KVCache) -> Tensor:
    """The logits after the newest token of each row; rows whose frequencies change with it are recomputed."""
    anew: list[int] = []
    fixed = cache.seq_len
    if run.follows and fixed is not None:
        of_row = [fixed] * len(rows) if isinstance(fixed, int) else fixed.tolist()
        anew = [at for at, row in enumerate(rows) if run.switches(row, of_row[at])]
    if len(anew) == len(rows):
        fresh, recomputed = _prefill(run, rows)
        cache.replace(range(len(rows)), fresh)
        return recomputed
    newest = torch.tensor([[run.tokens[row][-1]] for row in rows], device=cache.device)
    mask = None
    if anew:
        mask = torch.ones_like(newest)
        mask[anew] = 0
    with _evaluating(run.model):
        logits: Tensor = run.model(newest, attention_mask=mask, cache=cache)[:, 0]
    _forget(run.model, cache, slack=_FORGET)
    if anew:
        fresh, recomputed = _prefill(run, [rows[at] for at in anew])
        cache.replace(anew, fresh)
        logits[anew] = recomputed
    return logits


def _sample(run: _Run, rows: Sequence[int], logits: Tensor) -> list[int]:
    """One token per row, from logits `[rows, vocab]`."""
    if run.temperature == 0:
        return [int(token) for token in logits.argmax(-1).tolist()]
    out = []
    # From the largest down, so that no temperature, however small, divides to infinity (and inf - inf to NaN).
    downward = logits.double() - logits.double().amax(-1, keepdim=True)
    for row, scores in zip(rows, downward / run.temperature, strict=True):
        count = scores.shape[0] if run.top_k is None else min(run.top_k, scores.shape[0])
        best = scores.topk(count) if count < scores.shape[0] else scores.sort(descending=True)
        reached = best.values.softmax(-1).cumsum(-1)
        if run.top_p is not None:
            # Keep a token while those before it have not reached p: the first one always stays.
            kept = int((reached < run.top_p).sum().item()) + 1
            reached = reached[:kept]
        mark = run.draws[row].random() * reached[-1]
        at = int(torch.searchsorted(reached, mark, right=True).item())
        out.append(int(best.indices[min(at, len(reached) - 1)].item()))
    return out


@contextmanager
def _evaluating(model: Decoder) -> Iterator[None]:
    """No dropout inside; training afterwards where it was training."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _token_lists(model: Decoder, prompts: Prompts) -> list[list[int]]:
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
        if model.tokenizer is None:
            raise RopeError(
                "generate: this model has no tokenizer, so it reads no text.",
                facts={"prompts": prompts},
                cure="Give token ids, or load a checkpoint that has a tokenizer.",
            )
        rows = [model.tokenizer.encode(row) for row in rows]
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
    strange = sorted({token for row in tokens for token in row if not 0 <= token < model.config.vocab_size})
    if strange:
        raise RopeError(
            "generate: a prompt holds tokens that the vocabulary has not.",
            facts={"tokens": strange, "vocab_size": model.config.vocab_size},
            cure="Use the tokenizer that the model was trained with.",
        )
    return tokens


def _check_sampling(max_new_tokens: int, temperature: float, top_k: int | None, top_p: float | None) -> None:
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
