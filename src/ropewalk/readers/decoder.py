"""The adapter of our `Decoder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.methods import ConfigForm, trained_length_of
from ropewalk.models.decoder import Decoder
from ropewalk.models.generate import stream
from ropewalk.models.positions import Positions
from ropewalk.models.prompts import Prompts
from ropewalk.models.tokens import Tokenizer
from ropewalk.readers.beginning import Beginning
from ropewalk.readers.digest import model_digest
from ropewalk.readers.likelihood import continuation_log_probs
from ropewalk.readers.losses import window_losses
from ropewalk.readers.prefix import ASK_TOKENS, DecoderPrefix
from ropewalk.readers.reader import CHUNK, Advance, IsDone, Losses
from ropewalk.readers.top import Top, top_after


class DecoderReader:
    """Our decoder as a reader: fast, in bounded memory; see `ropewalk.readers.reader.Reader`.

    - `name`: what reports call it.

    >>> from ropewalk.checkpoints.load import load_decoder
    >>> reader = DecoderReader(load_decoder("tiny"), "tiny")
    >>> reader.name, reader.trained_length, reader.parameters
    ('tiny', 256, 3443136)
    """

    def __init__(self, model: Decoder, name: str = "decoder") -> None:
        self.model, self._name = model, name

    @property
    def name(self) -> str:
        """What the model is called in reports."""
        return self._name

    @property
    def library(self) -> str:
        """What computes it."""
        return "ropewalk"

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer, or None."""
        return self.model.tokenizer

    @property
    def positions(self) -> Positions:
        """What each layer knows of positions."""
        return self.model.config.positions

    @property
    def config_form(self) -> ConfigForm:
        """The families that are built here have one block of rope parameters for all layers."""
        return ConfigForm()

    @property
    def trained_length(self) -> int | None:
        """Tokens that it was trained to, as the rope that reaches furthest says, or else the first that says it."""
        return trained_length_of(self.positions)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights."""
        return self.model.embed_tokens.weight.dtype

    @property
    def parameters(self) -> int:
        """How many numbers were learned."""
        return self.model.num_parameters()

    def digest(self) -> str:
        """A short hash of its config and of every bit of every weight."""
        return model_digest(self.model)

    def under(self, positions: Positions) -> DecoderReader:
        """The same model, weights shared, with these positions in its layers."""
        model = self.model.with_positions(rope=positions.ropes, extension=positions.extensions)
        return DecoderReader(model, self._name)

    def cache_bytes(self, tokens: int) -> int:
        """The bytes of keys and values of so many tokens."""
        config = self.model.config
        head_dim = config.head_dim or 0
        per_token = 2 * config.num_hidden_layers * config.kv_heads * head_dim * self.dtype.itemsize
        return per_token * tokens

    def window_losses(
        self,
        input_ids: Tensor,
        *,
        first: int = 1,
        seq_len: int | None = None,
        chunk: int = CHUNK,
        advance: Advance | None = None,
    ) -> Losses:
        """Nats of every token of one window from token `first` on, each given all tokens before it."""
        return window_losses(self.model, input_ids, first=first, seq_len=seq_len, chunk=chunk, advance=advance)

    def reading_on(
        self,
        input_ids: Tensor,
        *,
        after: tuple[Beginning, int] | None = None,
        keep: int = 0,
        kept: Callable[[Beginning], None] | None = None,
        chunk: int = CHUNK,
        advance: Advance | None = None,
    ) -> Losses:
        """Nats of every token of a window but the first, with a beginning taken over or kept; as `window_losses`."""
        return window_losses(self.model, input_ids, chunk=chunk, advance=advance, after=after, keep=keep, kept=kept)

    def prefix(
        self, input_ids: Sequence[int], *, seq_len: int, chunk: int = CHUNK, advance: Advance | None = None
    ) -> DecoderPrefix:
        """Read tokens into a cache with room for `seq_len` in all, at the frequencies of that length."""
        cache = self.model.new_cache(seq_len=seq_len, capacity=seq_len + ASK_TOKENS)
        prefix = DecoderPrefix(self.model, cache, chunk=chunk)
        prefix.read(input_ids, advance=advance)
        return prefix

    def top_after(
        self, input_ids: Sequence[int], lengths: Sequence[int], *, count: int, seq_len: int, chunk: int = CHUNK
    ) -> list[Top]:
        """For each n of `lengths`: the `count` likeliest tokens after the first n, from one pass."""
        return top_after(self.model, input_ids, lengths, count=count, seq_len=seq_len, chunk=chunk)

    def continuation_log_probs(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        batch: int = 8,
        chunk: int = CHUNK,
        done: Callable[[int, tuple[float, bool]], None] | None = None,
    ) -> list[tuple[float, bool]]:
        """For each (context, continuation): its log-probability, and whether greedy decoding would give it."""
        return continuation_log_probs(self.model, pairs, batch=batch, chunk=chunk, done=done)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        seq_len: int | None = None,
        is_done: IsDone | None = None,
        **options: Any,
    ) -> list[list[int]]:
        """The new tokens of each prompt; `options` are those of `ropewalk.generate`."""
        rows: list[list[int]] = [[] for _ in prompts]
        going = set(range(len(rows)))
        ids = [list(prompt) for prompt in prompts]
        for row, token in self.stream(ids, max_new_tokens=max_new_tokens, seq_len=seq_len, **options):
            if row not in going:
                continue
            rows[row].append(token)
            if is_done is not None and is_done(row, rows[row]):
                going.discard(row)
                if not going:
                    break
        return rows

    def stream(self, prompts: Prompts, **options: Any) -> Iterator[tuple[int, int]]:
        """(row, token) for each new token as it comes; arguments as for `ropewalk.generate`."""
        return stream(self.model, prompts, **options)


def adapt(model: object, name: str | None) -> DecoderReader | None:
    """A reader of a Decoder; None for anything else."""
    if not isinstance(model, Decoder):
        return None
    return DecoderReader(model) if name is None else DecoderReader(model, name)
