"""Generation through a cache: one sampled token per row and step, for rows of any lengths."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError, check_kind
from ropewalk.layers.cache import KVCache
from ropewalk.layers.decoder import Decoder
from ropewalk.layers.norm import multiplied
from ropewalk.layers.precision import to_float64
from ropewalk.layers.prompts import Prompts, check_sampling, is_text, token_lists
from ropewalk.layers.tables import SeqLen
from ropewalk.rope.values import as_whole


def draws_of(seed: int | None, rows: int) -> list[random.Random]:
    """Return a stream of random numbers for each row; None seeds them from torch's generator."""
    base = seed if seed is not None else int(torch.randint(2**62, (), device="cpu").item())
    return [random.Random(f"{base}:{row}") for row in range(rows)]


def sample(
    logits: Tensor,
    draws: Sequence[random.Random],
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> list[int]:
    """Return one token per row, from logits or log-probabilities `[rows, vocab]`; see `ropewalk.generate`.

    >>> sample(torch.tensor([[0.0, 2.0, 1.0]]), draws_of(0, 1))
    [1]
    """
    if temperature == 0:
        return [int(token) for token in logits.argmax(-1).tolist()]
    out = []
    # Subtract the largest first, so that no small temperature divides to infinity (and inf - inf to NaN).
    exact = to_float64(logits)
    downward = exact - exact.amax(-1, keepdim=True)
    for draw, scores in zip(draws, downward / temperature, strict=True):
        count = scores.shape[0] if top_k is None else min(top_k, scores.shape[0])
        best = scores.topk(count) if count < scores.shape[0] else scores.sort(descending=True)
        reached = best.values.softmax(-1).cumsum(-1)
        if top_p is not None:
            # Keep a token while the sum before it is below p; the first one always stays.
            kept = int((reached < top_p).sum().item()) + 1
            reached = reached[:kept]
        mark = draw.random() * reached[-1]
        at = int(torch.searchsorted(reached, mark, right=True).item())
        out.append(int(best.indices[min(at, len(reached) - 1)].item()))
    return out


_PREFILL = 1024  # tokens per row of a prompt in one call of the model, which bounds memory


def generate(
    model: Decoder,
    prompts: Prompts,
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_tokens: Collection[int] | None = None,
    seed: int | None = None,
    seq_len: int | None = None,
) -> list[list[int]]:
    """Return the new tokens of each prompt, without the stop token.

    **Arguments:**

    - `prompts`: one or several texts (for a model with a tokenizer), one or several lists of token ids, or integers
      `[batch, seq]`. They may differ in length; each result equals that of a separate call. A text begins
      with the prefix tokens of the checkpoint; an empty text is the tokenizer's bos.
    - `max_new_tokens`: tokens per prompt.
    - `temperature`: 0 selects the most likely token; else logits are divided by it. `top_k` keeps the k most likely
      tokens, then `top_p` the fewest of these with a total probability of at least p; both need a temperature above 0.
    - `stop_tokens`: ids that end a row; None: the tokenizer's `eos_ids` for texts, none for token ids.
    - `seed`: makes the result repeatable; each row has its own random numbers.
    - `seq_len`: tokens; length-dependent frequencies are fixed at this length. None: dynamic NTK is fixed at
      prompt + max_new_tokens. LongRoPE follows the tokens so far, and a row's cache is recomputed when it exceeds the
      original length, so every token equals that of a new call.

    A model from `torch.compile` runs uncompiled here: a cache that grows would need a graph for each length.

    **Raises:** `RopeError` for an empty prompt, an unknown token, text without a tokenizer, and options out of range.

    >>> from ropewalk.layers.decoder import DecoderConfig
    >>> model = Decoder(DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                               num_attention_heads=2))
    >>> [len(new) for new in generate(model, [[1, 2, 3], [4]], max_new_tokens=5)]
    [5, 5]
    """
    run = _Generation.prepare(model, prompts, max_new_tokens, temperature, top_k, top_p, stop_tokens, seed, seq_len)
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
    stop_tokens: Collection[int] | None = None,
    seed: int | None = None,
    seq_len: int | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield (row, token) for each new token, step by step.

    Arguments and errors are those of `generate`. Errors are raised by this call, not by the first step.

    >>> from ropewalk.checkpoints.load import load
    >>> len(list(stream(load("tiny"), ["The sea", "A whale"], max_new_tokens=3)))
    6
    """
    return _steps(
        _Generation.prepare(model, prompts, max_new_tokens, temperature, top_k, top_p, stop_tokens, seed, seq_len)
    )


@dataclass
class _Generation:
    """The arguments of one generation, and the tokens of each row so far."""

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
    """Final number of tokens per row, without stop tokens."""

    @classmethod
    def prepare(
        cls,
        model: Decoder,
        prompts: Prompts,
        max_new_tokens: int,
        temperature: float,
        top_k: int | None,
        top_p: float | None,
        stop_tokens: Collection[int] | None,
        seed: int | None,
        seq_len: int | None,
    ) -> _Generation:
        """Check all arguments before any computation."""
        check_kind("generate", nn.Module, 'Load it first: rw.load("tiny").', model=model)
        check_sampling(max_new_tokens, temperature, top_k, top_p)
        ends = stop_tokens
        if ends is None:
            ends = model.tokenizer.eos_ids if model.tokenizer is not None and is_text(prompts) else ()
        if not isinstance(ends, Collection) or not all(isinstance(token, int) for token in ends):
            raise RopeError(
                "generate: `stop_tokens` must be token ids.",
                facts={"stop_tokens": stop_tokens},
                cure="Pass integers, for example tokenizer.encode(text).",
            )
        tokens = token_lists(prompts, model.tokenizer, model.config.vocab_size)
        final = [len(row) + max_new_tokens for row in tokens]
        ropes = {rope for rope in model.config.ropes if rope is not None and rope.needs_seq_len}
        long = {rope.switch_length is not None for rope in ropes}
        if len(long) > 1 and seq_len is None:
            raise RopeError(
                "generate: some layers fix their frequencies at the final length, and others follow the tokens so far.",
                facts={"scaling": sorted({type(rope.scaling).__name__ for rope in ropes})},
                cure="Pass seq_len=... to fix them all: prompt + max_new_tokens.",
            )
        if seq_len is not None and as_whole(seq_len) is None:
            raise RopeError(
                "generate: `seq_len` must be a whole number of tokens.",
                facts={"seq_len": seq_len},
                cure="Omit it, or pass prompt + max_new_tokens.",
            )
        if seq_len is not None:
            # The last token is not fed back, so the cache needs one less than the final length.
            short = [rope for rope in ropes if max(final) - 1 > rope.longest_at(seq_len)]
            if seq_len < 1 or short:
                raise RopeError(
                    "generate: `seq_len` is less than prompt + max_new_tokens, and frequencies depend on length.",
                    facts={"seq_len": seq_len, "needed": max(final)},
                    cure="Raise it, or omit it.",
                )
        draws = draws_of(seed, len(tokens))
        return cls(
            model, tokens, max_new_tokens, temperature, top_k, top_p, frozenset(ends), draws, seq_len,
            follows=seq_len is None and True in long, final=final,
        )  # fmt: skip

    def fixed_length(self, rows: Sequence[int]) -> SeqLen | None:
        """Return the `seq_len` of a new cache for these rows."""
        if not self.model.config.needs_seq_len:
            return None
        if self.seq_len is not None:
            return self.seq_len
        lengths = [len(self.tokens[row]) if self.follows else self.final[row] for row in rows]
        return lengths[0] if len(set(lengths)) == 1 else torch.tensor(lengths, device="cpu")

    def switches(self, row: int, seq_len: int) -> bool:
        """Return whether the row has outgrown the frequencies of its cache."""
        ropes = {rope for rope in self.model.config.ropes if rope is not None}
        return self.follows and any(len(self.tokens[row]) > rope.longest_at(seq_len) for rope in ropes)


@torch.inference_mode()
def _steps(run: _Generation) -> Iterator[tuple[int, int]]:
    """Sample, yield and feed back until every row has ended; no mode of the model is changed across a yield."""
    rows = list(range(len(run.tokens)))
    cache, logits = _prefill(run, rows)
    for step in range(run.max_new_tokens):
        active = []
        for at, (row, token) in enumerate(zip(rows, _sample(run, rows, logits), strict=True)):
            if token in run.stop_tokens:
                continue
            run.tokens[row].append(token)
            active.append(at)
            yield row, token
        rows = [rows[at] for at in active]
        if not rows or step == run.max_new_tokens - 1:
            return
        cache.select(active)
        logits = _feed(run, rows, cache)


def _prefill(run: _Generation, rows: Sequence[int]) -> tuple[KVCache, Tensor]:
    """Return a cache with all tokens of these rows, and the logits `[rows, vocab]` after the last of each."""
    model, lengths = run.model, [len(run.tokens[row]) for row in rows]
    longest = max(lengths)
    fixed = run.fixed_length(rows)
    capacity = longest + min(run.max_new_tokens, 256)
    cache = model.new_cache(len(rows), seq_len=fixed, capacity=capacity)
    padded = torch.zeros(len(rows), longest, dtype=torch.long, device="cpu")
    for at, row in enumerate(rows):
        padded[at, : lengths[at]] = torch.tensor(run.tokens[row], device="cpu")
    padded = padded.to(cache.device)
    ends = torch.tensor(lengths, device=cache.device)
    real = torch.arange(longest, device=cache.device) < ends[:, None]
    last: Tensor | None = None
    with _evaluating(model):
        for begin in range(0, longest, _PREFILL):
            end = min(begin + _PREFILL, longest)
            # only the last chunk runs the head; before it, hidden states are kept
            head_fn = partial(_at_ends, ends=ends - 1 - begin, before=last, logits=end == longest)
            last = model(padded[:, begin:end], attention_mask=real[:, begin:end], cache=cache, head_fn=head_fn)
    assert last is not None, "prompts are never empty"
    return cache, last


def _at_ends(hidden: Tensor, weight: Tensor, *, ends: Tensor, before: Tensor | None, logits: bool) -> Tensor:
    """Return hidden states `[rows, hidden]` at each row's last token (`before` if it is earlier), or their logits."""
    seq = hidden.shape[1]
    last = hidden[torch.arange(len(hidden), device=hidden.device), ends.clamp(0, seq - 1)]
    if before is not None:
        last = torch.where(((ends >= 0) & (ends < seq))[:, None], last, before)
    return multiplied(last, weight) if logits else last


def _is_compiled(model: Decoder) -> bool:
    """Return whether calls of the model run compiled: by `torch.compile(model)` or `model.compile()`."""
    dynamo = sys.modules.get("torch._dynamo")  # importing it takes longer than importing torch
    return model._compiled_call_impl is not None or (dynamo is not None and isinstance(model, dynamo.OptimizedModule))


def _feed(run: _Generation, rows: Sequence[int], cache: KVCache) -> Tensor:
    """Return the logits after the newest token of each row; recompute rows with changed frequencies."""
    outdated: list[int] = []
    fixed = cache.seq_len
    if run.follows and fixed is not None:
        of_row = [fixed] * len(rows) if isinstance(fixed, int) else fixed.tolist()
        outdated = [at for at, row in enumerate(rows) if run.switches(row, of_row[at])]
    if len(outdated) == len(rows):
        fresh, recomputed = _prefill(run, rows)
        cache.replace(range(len(rows)), fresh)
        return recomputed
    newest = torch.tensor([[run.tokens[row][-1]] for row in rows], device=cache.device)
    mask = None
    if outdated:
        mask = torch.ones_like(newest)
        mask[outdated] = 0
    with _evaluating(run.model):
        logits: Tensor = run.model(newest, attention_mask=mask, cache=cache)[:, 0]
    if outdated:
        fresh, recomputed = _prefill(run, [rows[at] for at in outdated])
        cache.replace(outdated, fresh)
        logits[outdated] = recomputed
    return logits


def _sample(run: _Generation, rows: Sequence[int], logits: Tensor) -> list[int]:
    """Return one token per row, from logits `[rows, vocab]`."""
    draws = [run.draws[row] for row in rows]
    return sample(logits, draws, temperature=run.temperature, top_k=run.top_k, top_p=run.top_p)


@contextmanager
def _evaluating(model: Decoder) -> Iterator[None]:
    """Disable dropout and compilation inside, and restore each module's mode afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.compiler.set_stance("force_eager") if _is_compiled(model) else nullcontext():
            yield
    finally:
        for module in training:
            module.training = True
