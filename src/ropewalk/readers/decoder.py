"""The adapter of our `Decoder`: losses, cached prefixes and log-probabilities of continuations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ropewalk.attention.cache import KVCache
from ropewalk.attention.masks import Branches
from ropewalk.methods import ConfigForm, trained_length_of
from ropewalk.models.config import Positions
from ropewalk.models.decoder import Decoder
from ropewalk.models.layers import only_hidden
from ropewalk.models.prompts import Tokenizer
from ropewalk.readers.digest import model_digest
from ropewalk.readers.losses import Top, all_log_probs, likeliest, logit_slices, top_after, window_losses
from ropewalk.readers.reader import (
    ASK_TOKENS,
    CHUNK,
    Advance,
    Asking,
    Losses,
    QuestionIds,
    check_pairs,
    check_read,
)
from ropewalk.readers.trees import answers


class DecoderPrefix:
    """Tokens in a decoder's cache; `ropewalk.readers.reader.Prefix` describes its members.

    - `cache`: of one row, with `tokens` tokens. `chunk`: tokens of one forward. Logits exist only for the last token;
      for none if the tokens were processed elsewhere, which allows only questions with their own tokens.
    """

    def __init__(self, model: Decoder, cache: KVCache, *, chunk: int, tokens: int = 0) -> None:
        self.model, self.cache, self.chunk = model, cache, chunk
        self._tokens = tokens
        self._next = torch.empty(0, device=cache.device)  # log-probabilities of the next token

    @property
    def tokens(self) -> int:
        return self._tokens

    @torch.inference_mode()
    def read(self, input_ids: Sequence[int], *, advance: Advance | None = None) -> None:
        check_read(input_ids, self._tokens)
        ids = torch.tensor(list(input_ids), device=self.cache.device)
        for start in range(0, len(ids), self.chunk):
            part, ends = ids[start : start + self.chunk], start + self.chunk >= len(ids)
            last = self.model(part[None], cache=self.cache, head_fn=_last_log_probs if ends else only_hidden)
            if advance is not None:
                advance(len(part))
        self._next = last
        self._tokens += len(ids)

    def log_probs(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        return self.ask([((), continuations)])[0]

    @torch.inference_mode()
    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        """Return the log-probability in nats of each continuation of each question.

        The tokens of all questions go through the model as branches of one row, 256 at a time. Common beginnings of
        continuations are processed once, and the prefix is neither copied nor changed.
        """
        return answers(questions, ASK_TOKENS, self._next, self._process)

    def _process(self, tokens: list[int], parents: list[int], nodes: Tensor, targets: Tensor) -> Tensor:
        """Return the log-probability of each target after its node, from one forward of branches."""
        likely: Tensor = self.model(
            torch.tensor([tokens], device=self.cache.device),
            cache=self.cache,
            branches=Branches(parents, self.cache.device),
            head_fn=partial(_log_probs_at, nodes=nodes, targets=targets),
        )
        return likely

    def top(self, count: int) -> list[tuple[int, float]]:
        return likeliest(self._next, count)

    @torch.inference_mode()
    def fork(self) -> DecoderPrefix:
        cache = self.model.new_cache(seq_len=self.cache.seq_len, capacity=self.cache.capacity, dtype=self.cache.dtype)
        cache.replace([0], self.cache)
        other = DecoderPrefix(self.model, cache, chunk=self.chunk)
        other._tokens, other._next = self._tokens, self._next
        return other


def _log_probs_at(hidden: Tensor, weight: Tensor, *, nodes: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probability of each target after its node, float32; with the logits of few nodes at a time."""
    likely = torch.empty(len(nodes), dtype=torch.float32, device=hidden.device)
    distinct, index = torch.unique(nodes, return_inverse=True)
    one_of_each = targets.new_empty(len(distinct)).scatter_reduce_(0, index, targets, "amin", include_self=False)
    for part, logits in logit_slices(hidden[0, distinct], weight, one_of_each):
        here = (index >= part.start) & (index < part.stop)
        likely[here] = logits.log_softmax(-1)[index[here] - part.start, targets[here]]
    return likely


def _last_log_probs(hidden: Tensor, weight: Tensor) -> Tensor:
    """Return the log-probability of every token after the last one, `[vocab]`."""
    return all_log_probs(hidden[0, -1], weight)


Pair = tuple[Sequence[int], Sequence[int]]


@torch.inference_mode()
def continuation_log_probs(
    model: Decoder,
    pairs: Sequence[Pair],
    *,
    batch: int = 8,
    chunk: int = CHUNK,
    done: Callable[[int, tuple[float, bool]], None] | None = None,
) -> list[tuple[float, bool]]:
    """Return the log-probability of each (context, continuation), and whether it is the greedy continuation.

    **Arguments:**
    - `pairs`: token ids, at least one in each context and each continuation.
    - `batch`: rows of similar lengths in one forward; a row's result does not depend on the others.
    - `chunk`: tokens of a row in one forward. Logits exist only for the continuations, 256 tokens at a time.
    - `done`: called with a pair's index and result after it is computed.

    **Returns:** (nats, summed over the continuation's tokens; greedy or not) in the order of `pairs`. Frequencies that
    depend on length are those of the tokens that each row reads: all but its last.
    **Raises:** `RopeError` for an empty context or continuation, and for a batch below 1.

    >>> from ropewalk.checkpoints.load import load
    >>> model = load("tiny")
    >>> ids = model.tokenizer.encode("The old man and the sea")
    >>> [(log_prob, greedy)] = continuation_log_probs(model, [(ids[:3], ids[3:])])
    >>> log_prob < 0, greedy
    (True, False)
    """
    check_pairs(pairs, batch, chunk)
    results: list[tuple[float, bool]] = [(0.0, False)] * len(pairs)
    order = sorted(range(len(pairs)), key=lambda index: -len(pairs[index][0]) - len(pairs[index][1]))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        for index, result in zip(rows, _batch(model, [pairs[index] for index in rows], chunk), strict=True):
            results[index] = result
            if done is not None:
                done(index, result)
    return results


def _batch(model: Decoder, pairs: Sequence[Pair], chunk: int) -> list[tuple[float, bool]]:
    """Return the results of one batch, padded on the right; the last token of each row is predicted, not processed."""
    device = model.embed_tokens.weight.device
    inputs = [[*context, *continuation][:-1] for context, continuation in pairs]
    lengths = torch.tensor([len(row) for row in inputs])
    longest = int(lengths.max())
    ids = torch.zeros(len(pairs), longest, dtype=torch.long)
    targets = torch.full((len(pairs), longest), -1)
    for row, (tokens, (_, continuation)) in enumerate(zip(inputs, pairs, strict=True)):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        targets[row, len(tokens) - len(continuation) : len(tokens)] = torch.tensor(list(continuation))
    real = torch.arange(longest) < lengths[:, None]
    ids, targets, real = ids.to(device), targets.to(device), real.to(device)
    padded = bool((lengths < longest).any())
    seq_len = lengths.to(device) if model.config.needs_seq_len else None
    cache = model.new_cache(len(pairs), seq_len=seq_len, capacity=longest)
    totals = torch.zeros(len(pairs), dtype=torch.float64, device="cpu")  # MPS has no float64
    greedy = torch.ones(len(pairs), dtype=torch.bool, device="cpu")
    for start in range(0, longest, chunk):
        part = slice(start, min(start + chunk, longest))
        model(
            ids[:, part],
            attention_mask=real[:, part] if padded else None,
            cache=cache,
            head_fn=partial(_add_chunk, targets=targets[:, part], totals=totals, greedy=greedy),
        )
    return [(float(total), bool(best)) for total, best in zip(totals, greedy, strict=True)]


def _add_chunk(hidden: Tensor, weight: Tensor, *, targets: Tensor, totals: Tensor, greedy: Tensor) -> None:
    """Add the continuations' log-probabilities in one chunk to their rows, and mark tokens that are not the likeliest.

    Logits are computed for few tokens at a time.
    """
    rows, places = (targets >= 0).nonzero(as_tuple=True)
    wanted = targets[rows, places]
    for part, logits in logit_slices(hidden[rows, places], weight, wanted):
        _add(logits, wanted[part], rows[part], totals, greedy)


def _add(logits: Tensor, targets: Tensor, rows: Tensor, totals: Tensor, greedy: Tensor) -> None:
    """Add each target's log-probability to its row, in float64 on the CPU; mark tokens that are not the likeliest."""
    likely = logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    totals.index_add_(0, rows.cpu(), likely.cpu().double())
    greedy[rows.cpu()[(logits.argmax(-1) != targets).cpu()]] = False


class DecoderReader:
    """A reader of our decoder; `ropewalk.readers.reader.Reader` describes its members.

    - `name`: the model's name in reports.

    >>> from ropewalk.checkpoints.load import load_decoder
    >>> reader = DecoderReader(load_decoder("tiny"), "tiny")
    >>> reader.name, reader.trained_length, reader.parameters
    ('tiny', 256, 3443136)
    """

    def __init__(self, model: Decoder, name: str = "decoder") -> None:
        self.model, self._name = model, name

    @property
    def name(self) -> str:
        return self._name

    @property
    def library(self) -> str:
        return "ropewalk"

    @property
    def tokenizer(self) -> Tokenizer | None:
        return self.model.tokenizer

    @property
    def positions(self) -> Positions:
        return self.model.config.positions

    @property
    def config_form(self) -> ConfigForm:
        """Return the form of all our families: one block of rope parameters for all layers."""
        return ConfigForm()

    @property
    def trained_length(self) -> int | None:
        return trained_length_of(self.positions)

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embed_tokens.weight.dtype

    @property
    def parameters(self) -> int:
        return self.model.num_parameters()

    def digest(self) -> str:
        return model_digest(self.model)

    def under(self, positions: Positions) -> DecoderReader:
        model = self.model.with_positions(rope=positions.ropes, extension=positions.extensions)
        return DecoderReader(model, self._name)

    def cache_bytes(self, tokens: int) -> int:
        config = self.model.config
        return 2 * config.num_hidden_layers * config.kv_heads * (config.head_dim or 0) * self.dtype.itemsize * tokens

    def window_losses(
        self,
        input_ids: Tensor,
        *,
        first: int = 1,
        seq_len: int | None = None,
        chunk: int = CHUNK,
        advance: Advance | None = None,
        asking: Asking | None = None,
    ) -> Losses:
        return window_losses(
            self.model,
            input_ids,
            first=first,
            seq_len=seq_len,
            chunk=chunk,
            advance=advance,
            asking=asking,
            prefix_of=self._prefix_so_far,
        )

    def _prefix_so_far(self, cache: KVCache) -> DecoderPrefix:
        """Return a prefix, for questions, of the tokens in a cache of one row."""
        return DecoderPrefix(self.model, cache, chunk=CHUNK, tokens=cache.lay_out(1, 0).total)

    def prefix(
        self, input_ids: Sequence[int], *, seq_len: int, chunk: int = CHUNK, advance: Advance | None = None
    ) -> DecoderPrefix:
        cache = self.model.new_cache(seq_len=seq_len, capacity=seq_len + ASK_TOKENS)
        prefix = DecoderPrefix(self.model, cache, chunk=chunk)
        prefix.read(input_ids, advance=advance)
        return prefix

    def top_after(
        self, input_ids: Sequence[int], lengths: Sequence[int], *, count: int, seq_len: int, chunk: int = CHUNK
    ) -> list[Top]:
        return top_after(self.model, input_ids, lengths, count=count, seq_len=seq_len, chunk=chunk)

    def continuation_log_probs(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        batch: int = 8,
        chunk: int = CHUNK,
        done: Callable[[int, tuple[float, bool]], None] | None = None,
    ) -> list[tuple[float, bool]]:
        return continuation_log_probs(self.model, pairs, batch=batch, chunk=chunk, done=done)


def adapt(model: object, name: str | None) -> DecoderReader | None:
    """Return a reader of a Decoder; None for anything else."""
    if not isinstance(model, Decoder):
        return None
    return DecoderReader(model) if name is None else DecoderReader(model, name)
