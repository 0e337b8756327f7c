"""Tokens in a decoder's cache, of which continuations are asked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.attention.cache import KVCache
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.models.layers import only_hidden
from ropewalk.models.precision import to_float64
from ropewalk.readers.reader import Advance

BATCH_BYTES = 2**28  # caches up to this size are copied for all continuations; a larger one is cut back after each


class DecoderPrefix:
    """Tokens that have gone through a decoder once; see `ropewalk.readers.reader.Prefix`.

    - `cache`: of one row, empty. `chunk`: tokens of one forward. Logits exist for the last token alone.
    """

    def __init__(self, model: Decoder, cache: KVCache, *, chunk: int) -> None:
        self.model, self.cache, self.chunk = model, cache, chunk
        self._tokens = 0
        self._next = torch.empty(0)  # log-probabilities of the next token

    @property
    def tokens(self) -> int:
        """How many tokens it holds."""
        return self._tokens

    @torch.inference_mode()
    def read(self, input_ids: Sequence[int], *, advance: Advance | None = None) -> None:
        """Put more tokens at the end, at least one."""
        if not len(input_ids):
            raise RopeError(
                "prefix: there are no tokens to read.",
                facts={"input_ids": list(input_ids), "tokens so far": self._tokens},
                cure="Begin with the tokenizer's bos where there is no text.",
            )
        ids = torch.tensor(list(input_ids), device=self.cache.device)
        for start in range(0, len(ids), self.chunk):
            part, ends = ids[start : start + self.chunk], start + self.chunk >= len(ids)
            last = self.model(part[None], cache=self.cache, head_fn=_last_log_probs if ends else only_hidden)
            if advance is not None:
                advance(len(part))
        self._next = last
        self._tokens += len(ids)

    @torch.inference_mode()
    def log_probs(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        """The log-probability in nats of each continuation, the sum over its tokens; the prefix stays as it was."""
        if not all(len(continuation) for continuation in continuations):
            raise RopeError(
                "prefix: an empty continuation has no probability.",
                facts={"tokens of each": list(map(len, continuations))},
                cure="Give at least one token each.",
            )
        totals = [float(self._next[continuation[0]]) for continuation in continuations]
        if not continuations or max(map(len, continuations)) == 1:
            return totals
        if self.cache.nbytes * len(continuations) <= BATCH_BYTES:
            rest = self._after_first(continuations)
        else:
            rest = [self._after_first([continuation])[0] for continuation in continuations]
        return [total + more for total, more in zip(totals, rest, strict=True)]

    def _after_first(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        """For each continuation, one row each, the log-probability of its tokens after the first."""
        most = max(map(len, continuations)) - 1
        if most == 0:
            return [0.0] * len(continuations)
        ids = torch.zeros(len(continuations), most, dtype=torch.long, device="cpu")
        targets, real = ids.clone(), ids.clone()
        for row, continuation in enumerate(continuations):
            count = len(continuation) - 1
            ids[row, :count] = torch.tensor(continuation[:-1], device="cpu")
            targets[row, :count] = torch.tensor(continuation[1:], device="cpu")
            real[row, :count] = 1
        ids, targets, real = (part.to(self.cache.device) for part in (ids, targets, real))
        mask = None if bool(real.all()) else real
        try:
            self.cache.select([0] * len(continuations))
            likely = self.model(ids, attention_mask=mask, cache=self.cache).float().log_softmax(-1)
        finally:
            self.cache.select([0])
            self.cache.truncate(self._tokens)
        of_targets = likely.gather(-1, targets[..., None])[..., 0] * real
        return [float(value) for value in to_float64(of_targets).sum(1)]

    def top(self, count: int) -> list[tuple[int, float]]:
        """The `count` likeliest next tokens and their log-probabilities in nats, the likeliest first."""
        best = self._next.topk(min(count, len(self._next)))
        return [(int(token), float(value)) for token, value in zip(best.indices, best.values, strict=True)]

    @torch.inference_mode()
    def fork(self) -> DecoderPrefix:
        """A copy that can be read on independently."""
        cache = self.model.new_cache(seq_len=self.cache.seq_len, capacity=self.cache.capacity, dtype=self.cache.dtype)
        cache.replace([0], self.cache)
        other = DecoderPrefix(self.model, cache, chunk=self.chunk)
        other._tokens, other._next = self._tokens, self._next
        return other


def _last_log_probs(hidden: Tensor, weight: Tensor) -> Tensor:
    """The log-probability of every token after the last one, `[vocab]`."""
    return F.linear(hidden[0, -1:], weight).float().log_softmax(-1)[0]
