"""Generation through a cache: one sampled token per row and step, for rows of any lengths."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ropewalk.errors import RopeError, check_kind
from ropewalk.models.cache import KVCache
from ropewalk.models.decoder import Decoder
from ropewalk.models.norm import evaluating
from ropewalk.precision import to_float64
from ropewalk.rope.values import as_whole, check_whole, is_number
from ropewalk.tokenizer import TextTokenizer

Prompts = Tensor | Sequence[int] | Sequence[Sequence[int]] | str | Sequence[str]
_PREFILL = 1024  # tokens per row of a prompt in one call of the model, which bounds memory


def draws_of(seed: int | None, rows: int) -> list[random.Random]:
    """Return a stream of random numbers for each row; None seeds them from torch's generator."""
    base = seed if seed is not None else int(torch.randint(2**62, (), device="cpu").item())
    return [random.Random(f"{base}:{row}") for row in range(rows)]


def sample(logits: Tensor, draws: Sequence[random.Random], *, temperature: float = 0.0) -> list[int]:
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
    for draw, scores in zip(draws, downward / float(temperature), strict=True):
        best = scores.sort(descending=True)
        reached = best.values.softmax(-1).cumsum(-1)
        at = torch.searchsorted(reached[:-1], draw.random() * reached[-1], right=True)  # the last takes what is left
        out.append(int(best.indices[at].item()))
    return out


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Prompts,
    *,
    max_new_tokens: int = 100,
    temperature: float = 0.0,
    stop_tokens: Collection[int] | None = None,
    seed: int | None = None,
    seq_len: int | None = None,
) -> list[list[int]]:
    """Return the new tokens of each prompt, without the stop token.

    **Arguments:**

    - `prompts`: one or several texts (for a model with a tokenizer), one or several lists of token ids, or integers
      `[batch, seq]`. They may differ in length; each result equals that of a separate call under the same
      `seq_len`. A text begins with the prefix tokens of the checkpoint; an empty text is the tokenizer's bos.
    - `max_new_tokens`: tokens per prompt.
    - `temperature`: 0 selects the most likely token; else logits are divided by it.
    - `stop_tokens`: ids that end a row; None: the tokenizer's `eos_ids` for texts, none for token ids.
    - `seed`: makes the result repeatable; each row has its own random numbers.
    - `seq_len`: tokens; frequencies that depend on length are fixed at this length. None: the longest prompt +
      max_new_tokens.

    A model from `torch.compile` runs uncompiled here: a cache that grows would need a graph for each length.

    **Raises:** `RopeError` for an empty prompt, an unknown token, text without a tokenizer, and options out of range.

    >>> from ropewalk.models.decoder import DecoderConfig
    >>> model = Decoder(DecoderConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
    ...                               num_attention_heads=2))
    >>> [len(new) for new in generate(model, [[1, 2, 3], [4]], max_new_tokens=5)]
    [5, 5]
    """
    check_kind("generate", nn.Module, 'Load it first: rw.load("tiny").', model=model)
    check_whole("generate", optional=False, max_new_tokens=max_new_tokens)
    check_whole("generate", seq_len=seq_len)
    if not is_number(temperature) or temperature < 0:
        cure = "Pass for example 0."
        raise _refused("`temperature` must be a finite number, at least 0.", cure, temperature=temperature)
    ends = stop_tokens
    if ends is None:
        texts = isinstance(prompts, str) or (
            isinstance(prompts, Sequence) and any(isinstance(row, str) for row in prompts)
        )
        ends = model.tokenizer.eos_ids if texts and model.tokenizer is not None else ()
    if not isinstance(ends, Collection) or not all(isinstance(token, int) for token in ends):
        cure = "Pass integers, for example tokenizer.encode(text)."
        raise _refused("`stop_tokens` must be token ids.", cure, stop_tokens=stop_tokens)
    tokens = token_lists(prompts, model.tokenizer, model.config.vocab_size)
    fixed = _fixed_length(model, [len(row) + max_new_tokens for row in tokens], seq_len)
    draws, new, rows = draws_of(seed, len(tokens)), [list[int]() for _ in tokens], list(range(len(tokens)))
    with evaluating(model), _uncompiled(model):
        cache, logits = _prefill(model, tokens, fixed, min(max_new_tokens, KVCache.step))
        for left in reversed(range(max_new_tokens)):
            of_rows = [draws[row] for row in rows]
            chosen = sample(logits, of_rows, temperature=temperature)
            active = [at for at, token in enumerate(chosen) if token not in ends]
            for at in active:
                new[rows[at]].append(chosen[at])
            rows = [rows[at] for at in active]
            if not rows or not left:
                break
            cache.select(active)
            logits = model(torch.tensor([[chosen[at]] for at in active], device=cache.device), cache=cache)[:, 0]
    return new


def _refused(rule: str, cure: str, **facts: object) -> RopeError:
    return RopeError(f"generate: {rule}", facts=facts, cure=cure)


def token_lists(prompts: Prompts, tokenizer: TextTokenizer | None, vocab_size: int) -> list[list[int]]:
    """Return the prompts as one list of ids per row; raise `RopeError` for empty ones and for unknown ids."""
    given: Any = prompts.tolist() if isinstance(prompts, Tensor) else prompts
    many = isinstance(given, Sequence) and not isinstance(given, str | bytes)
    rows: list[Any] = list(given) if many else [given if isinstance(given, str) else None]
    if any(as_whole(row) is not None for row in rows):
        rows = [rows]
    if rows and all(isinstance(row, str) for row in rows):
        if tokenizer is None:
            cure = "Pass token ids, or load a checkpoint with a tokenizer."
            raise _refused("this model has no tokenizer, so prompts must be token ids.", cure, prompts=prompts)
        rows = [tokenizer.encode_prompt(row) for row in rows]
        if not all(rows):
            cure = "Pass at least one character."
            raise _refused("the prompt is empty, and the checkpoint has no bos token.", cure, prompts=prompts)
    if not all(isinstance(row, Sequence) and all(as_whole(token) is not None for token in row) for row in rows):
        cure = "Pass str, list[str], list[int] or list[list[int]]; convert arrays with torch.as_tensor."
        rule = "prompts must be texts or lists of token ids, not a mixture, or a tensor of integers [batch, seq]."
        raise _refused(rule, cure, prompts=prompts)
    tokens = [[int(token) for token in row] for row in rows]
    if not tokens or not all(tokens):
        cure = "Pass at least one token, such as the tokenizer's bos."
        raise _refused("a prompt is empty.", cure, prompts=prompts)
    unknown = sorted({token for row in tokens for token in row if not 0 <= token < vocab_size})
    if unknown:
        cure = "Use the tokenizer that the model was trained with."
        raise _refused("a prompt contains tokens outside the vocabulary.", cure, tokens=unknown, vocab_size=vocab_size)
    return tokens


def _fixed_length(model: Decoder, final: list[int], seq_len: int | None) -> int | None:
    """Return the cache's `seq_len` for rows of these final lengths; raise `RopeError` if `seq_len` is too short."""
    ropes = {rope for rope in model.config.ropes if rope is not None and rope.needs_seq_len}
    # The last token is not fed back, so the cache needs one less than the final length.
    if seq_len is not None and any(max(final) - 1 > rope.longest_at(seq_len) for rope in ropes):
        rule = "`seq_len` is less than prompt + max_new_tokens, and frequencies depend on length."
        raise _refused(rule, "Raise it, or omit it.", seq_len=seq_len, needed=max(final))
    return (seq_len or max(final)) if ropes else None


def _prefill(model: Decoder, tokens: list[list[int]], seq_len: int | None, spare: int) -> tuple[KVCache, Tensor]:
    """Return a cache with all tokens of these rows, and the logits `[rows, vocab]` after the last of each."""
    lengths = [len(row) for row in tokens]
    longest = max(lengths)
    cache = model.new_cache(len(tokens), seq_len=seq_len, capacity=longest + spare)
    padded = torch.zeros(len(tokens), longest, dtype=torch.long, device="cpu")
    for at, row in enumerate(tokens):
        padded[at, : len(row)] = torch.tensor(row, device="cpu")
    padded = padded.to(cache.device)
    ends = torch.tensor(lengths, device=cache.device)
    real = torch.arange(longest, device=cache.device) < ends[:, None]
    last: Tensor | None = None
    for begin in range(0, longest, _PREFILL):
        end = min(begin + _PREFILL, longest)
        # only the last chunk runs the head; before it, hidden states are kept
        head_fn = partial(_at_ends, ends=ends - 1 - begin, before=last, logits=end == longest)
        last = model(padded[:, begin:end], attention_mask=real[:, begin:end], cache=cache, head_fn=head_fn)
    assert last is not None, "prompts are never empty"
    return cache, last


def _at_ends(hidden: Tensor, weight: Tensor, *, ends: Tensor, before: Tensor | None, logits: bool) -> Tensor:
    """Return hidden states `[rows, hidden]` at each row's last token (`before` if it is earlier), or their logits.

    Those of a row whose last token is later have no meaning, and that chunk replaces them.
    """
    seq = hidden.shape[1]
    last = hidden[torch.arange(len(hidden), device=hidden.device), ends.clamp(0, seq - 1)]
    if before is not None:
        last = torch.where((ends >= 0)[:, None], last, before)
    return F.linear(last, weight) if logits else last


def _uncompiled(model: Decoder) -> AbstractContextManager[Any]:
    """Return a block in which a compiled model runs uncompiled."""
    dynamo = sys.modules.get("torch._dynamo")  # importing it takes longer than importing torch
    compiled = dynamo is not None and isinstance(model, dynamo.OptimizedModule)
    compiled = compiled or model._compiled_call_impl is not None
    return torch.compiler.set_stance("force_eager") if compiled else nullcontext()
