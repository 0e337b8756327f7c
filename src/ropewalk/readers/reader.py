"""`Reader`: what measuring, retrieval and extending need of a model, whatever library computes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ropewalk.attention.attention import Attention
from ropewalk.attention.cache import KVCache
from ropewalk.attention.tables import tables_at
from ropewalk.errors import RopeError
from ropewalk.methods import ConfigForm
from ropewalk.models.config import Positions
from ropewalk.models.decoder import Decoder
from ropewalk.models.prompts import Prompts, Tokenizer
from ropewalk.readers import CHUNK as CHUNK
from ropewalk.rotation.rotate import rotate


class Beginning:
    """Keys and values of a window's first tokens, and their losses; a copy, that the model's cache can go on without.

    - `model`: the one that read them. `cache`: of one row of rotated keys, with at least `tokens` tokens in it.
    - `losses`: float32 `[tokens]`, nats of the tokens from 1 to `tokens`, the last after all that is kept.
    - `seconds`: that it took to read them.

    Raises `RopeError` for a cache of unrotated keys, and for one that holds fewer tokens.
    """

    def __init__(self, model: Decoder, cache: KVCache, losses: Tensor, seconds: float) -> None:
        held = cache.lay_out(1, 0)
        if not cache.rotated or held.total < len(losses):
            raise RopeError(
                "Beginning: it is taken from a cache of rotated keys that holds all its tokens.",
                facts={"cache": cache, "tokens": len(losses)},
                cure="Take it after they were read, under a model without an extension.",
            )
        self.tokens, self.seconds, self.losses = len(losses), seconds, losses.clone()
        self._ropes = model.config.ropes
        self._layers = [
            tuple(part[:, :, : self.tokens].clone() for part in cache.held(layer, held))
            for layer in range(model.config.num_hidden_layers)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes of its keys and values."""
        return sum(part.nbytes for layer in self._layers for part in layer)

    def put(self, model: Decoder, cache: KVCache, tokens: int) -> None:
        """Write the first `tokens` into an empty cache of the same model under an extension.

        Keys that the cache keeps unrotated are turned back: in float32 to 1e-7, in a half type with one more rounding.
        Raises `RopeError` where the ropes are others, or fewer tokens are kept.
        """
        if model.config.ropes != self._ropes or tokens > self.tokens:
            raise RopeError(
                "Beginning: these tokens were read under another rope, or fewer of them.",
                facts={"ropes": set(self._ropes), "model": set(model.config.ropes), "tokens": (tokens, self.tokens)},
                cure="Read on with the same weights under the same ropes.",
            )
        layout = cache.lay_out(1, tokens)
        for number, (attention, (keys, values)) in enumerate(zip(_attentions(model), self._layers, strict=True)):
            kept, values = keys[:, :, :tokens].transpose(1, 2), values[:, :, :tokens].transpose(1, 2)
            cache.write(number, kept if cache.rotated else _turned_back(kept, attention), values, layout)
        cache.commit(layout)


def _attentions(model: Decoder) -> Iterator[Attention]:
    for layer in model.layers:
        attention = layer.self_attn
        assert isinstance(attention, Attention)
        yield attention


def _turned_back(keys: Tensor, attention: Attention) -> Tensor:
    """Keys `[1, tokens, heads, head_dim]` at positions 0, 1, ... as they were before their rotation."""
    if attention.rotary is None:
        return keys
    rope, positions = attention.rotary.config, torch.arange(keys.shape[1], device=keys.device)
    exact = torch.float64 if keys.dtype == torch.float64 else torch.float32
    cos, sin, factor = tables_at(attention.rotary, positions, None, exact)
    return rotate(
        keys, cos, sin, interleaved=rope.interleaved, rotary_dim=rope.rotary_dim, blocks=rope.blocks, scale=1 / factor,
        inverse=True,
    )  # fmt: skip


Losses = npt.NDArray[np.float64]
Advance = Callable[[int], None]
"""Called with the number of tokens that have gone through the model."""
IsDone = Callable[[int, Sequence[int]], bool]
"""Whether a row of a generation, by its number and its new tokens, has ended."""
QuestionIds = tuple[Sequence[int], Sequence[Sequence[int]]]
"""Token ids read after a prefix (none: nothing is), and the continuations that are asked for after them."""


@runtime_checkable
class Prefix(Protocol):
    """Tokens that have gone through a model once, and are kept in its cache: continuations are asked of them."""

    @property
    def tokens(self) -> int:
        """How many tokens it holds."""

    def log_probs(self, continuations: Sequence[Sequence[int]]) -> list[float]:
        """The log-probability in nats of each continuation after the prefix: the sum over its tokens.

        The prefix stays as it was. Continuations are token ids, at least one each.
        """

    def ask(self, questions: Sequence[QuestionIds]) -> list[list[float]]:
        """For each question, read after the prefix, the log-probability in nats of each of its continuations.

        As if each question alone had been read after the prefix, which stays as it was. Raises `RopeError` for an empty
        continuation.
        """

    def top(self, count: int) -> list[tuple[int, float]]:
        """The `count` likeliest next tokens and their log-probabilities in nats, the likeliest first."""

    def fork(self) -> Prefix:
        """A copy that can be read on independently."""

    def read(self, input_ids: Sequence[int], *, advance: Advance | None = None) -> None:
        """Put more tokens at the end."""


@runtime_checkable
class Reader(Protocol):
    """One model that can be measured. Two adapters give it: our `Decoder`, and a live transformers model.

    Nothing here changes the model that was passed in. Token ids are int64 and one-dimensional unless said otherwise;
    losses and log-probabilities are in nats.
    """

    @property
    def name(self) -> str:
        """What the model is called in reports: no folders."""

    @property
    def library(self) -> str:
        """What computes it: "ropewalk", or another library with its version and the model's class there."""

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer, or None."""

    @property
    def positions(self) -> Positions:
        """What each layer knows of positions."""

    @property
    def config_form(self) -> ConfigForm:
        """Where its config.json says each layer's rope."""

    @property
    def trained_length(self) -> int | None:
        """Tokens that it was trained to, with the scaling that belongs to it, where its config says so."""

    @property
    def device(self) -> torch.device:
        """Where its weights are."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its weights."""

    @property
    def parameters(self) -> int:
        """How many numbers were learned."""

    def digest(self) -> str:
        """A short hash of everything that its numbers depend on: the config, and every bit of every weight."""

    def under(self, positions: Positions) -> Reader:
        """The same model, weights shared, with these positions in its layers.

        `method.positions(reader.positions, reach)` makes them for an extension method. Raises `RopeError` where this
        model cannot be put under them.
        """

    def cache_bytes(self, tokens: int) -> int:
        """About how many bytes a cache of so many tokens takes."""

    def window_losses(
        self,
        input_ids: Tensor,
        *,
        first: int = 1,
        seq_len: int | None = None,
        chunk: int = CHUNK,
        advance: Advance | None = None,
    ) -> Losses:
        """Nats of every token of one window from token `first` on, each given all tokens before it.

        **Arguments:**
        - `input_ids`: int64 `[tokens]`, at positions 0, 1, ...
        - `first`: the first token that is scored, at least 1: nothing comes before token 0.
        - `seq_len`: tokens, for frequencies that depend on the length; default the number of tokens.
        - `chunk`: tokens of one forward; `advance` is called with their number after each.

        **Returns:** float64 `[tokens - first]`; entry i belongs to token `first + i`.
        **Raises:** `RopeError` if fewer than two tokens are given or `first` is out of range.
        """

    def prefix(
        self,
        input_ids: Sequence[int],
        *,
        seq_len: int,
        chunk: int = CHUNK,
        advance: Advance | None = None,
    ) -> Prefix:
        """Read at least one token into a cache with room for `seq_len` in all, at the frequencies of that length."""

    def top_after(
        self, input_ids: Sequence[int], lengths: Sequence[int], *, count: int, seq_len: int, chunk: int = CHUNK
    ) -> list[list[tuple[int, float]]]:
        """For each n of `lengths`, which ascend: the `count` likeliest tokens after the first n, from one pass.

        With their log-probabilities in nats, the likeliest first; at the frequencies of `seq_len` tokens.
        """

    def continuation_log_probs(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        *,
        batch: int = 8,
        chunk: int = CHUNK,
        done: Callable[[int, tuple[float, bool]], None] | None = None,
    ) -> list[tuple[float, bool]]:
        """For each (context, continuation): its log-probability, and whether greedy decoding would give it."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        seq_len: int | None = None,
        is_done: IsDone | None = None,
        **options: Any,
    ) -> list[list[int]]:
        """The new tokens of each prompt, without the prompt; greedy unless `options` say otherwise.

        **Arguments:**
        - `seq_len`: tokens, for frequencies that depend on the length; default prompt + max_new_tokens.
        - `is_done`: called with a row's number and its new tokens so far; True ends that row.
        - `options`: `temperature`, `top_k`, `top_p`, `stop_tokens` and `seed`, as in `ropewalk.generate`.
        """

    def stream(self, prompts: Prompts, **options: Any) -> Iterator[tuple[int, int]]:
        """(row, token) for each new token as it comes; arguments as for `ropewalk.generate`."""


@runtime_checkable
class ReadingOn(Reader, Protocol):
    """A reader that can take over the beginning of a window which it has read under other positions."""

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
        """Nats of every token of a window but the first.

        **Arguments:** as `window_losses`; `after`: a beginning, and how many of its tokens are taken from it instead of
        read. `keep`: so many tokens, whole chunks, are given to `kept` as a beginning once they are read.
        """


@runtime_checkable
class TunableReader(Reader, Protocol):
    """A reader whose model can be trained further and saved."""

    @property
    def module(self) -> nn.Module:
        """The model itself."""

    def trainable_copy(self, parts: str, *, rank: int) -> TunableReader:
        """A copy whose chosen parts are float32 and require gradients; the rest is shared and frozen.

        `parts` names them, joined by "+"; see `extend.settings.parts_of`. `rank` is that of low-rank adapters ("lora").
        """

    def trained_count(self, parts: str, *, rank: int) -> int:
        """How many numbers `trainable_copy` lets be trained."""

    def next_token_loss(
        self,
        inputs: Tensor,
        targets: Tensor,
        document_ids: Tensor | None,
        *,
        precision: str,
        position_ids: Tensor | None = None,
        seq_len: int | None = None,
    ) -> Tensor:
        """The mean loss of a batch `[windows, seq]`: a float32 scalar to call `backward` on.

        When positions skip, pass `position_ids` (same shape) and the length `seq_len` that they belong to.
        """

    def activation_checkpointing(self, on: bool = True) -> AbstractContextManager[None]:
        """Within, a layer keeps its input alone and is computed again in the backward pass."""

    def merged(self) -> TunableReader:
        """The trained model in eval mode, its adapters added to the weights; this reader is used up."""

    def under(self, positions: Positions) -> TunableReader:
        """As `Reader.under`."""

    def to(self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> TunableReader:
        """The model on another device or in another dtype; this reader's own stays as it is."""

    def write_checkpoint(
        self,
        folder: Path,
        *,
        rope_fields: Mapping[str, Any] | None,
        length: int,
        dtype: torch.dtype,
        source: Path | None = None,
        shard_bytes: int,
    ) -> dict[str, Any]:
        """Write weights, tokenizer and the files beside them; returns the content of config.json, not yet written.

        **Arguments:**
        - `folder`: exists and is empty. `dtype`: of the weights. `shard_bytes`: the largest weight file.
        - `rope_fields`: the keys of config.json that say the rope, in place of the model's own. None: a form of the
          library's own that holds everything, also what config.json cannot express.
        - `length`: tokens that the written model is meant for. `source`: what it was loaded from.

        **Raises:** `RopeError` where the model cannot be written so.
        """


def check_window(input_ids: Tensor, first: int, chunk: int) -> None:
    """Raise `RopeError` unless a window has two tokens and `first` is one of them after the first."""
    if input_ids.ndim != 1 or not 1 <= first < len(input_ids) or chunk < 1:
        raise RopeError(
            "window_losses: give [tokens] of at least two, and `first` among them.",
            facts={"input_ids": input_ids, "first": first, "chunk": chunk},
            cure="Pass the token ids of one window, and 1 <= first < tokens.",
        )


def check_pairs(pairs: Sequence[tuple[Sequence[int], Sequence[int]]], batch: int, chunk: int) -> None:
    """Raise `RopeError` for an empty context or continuation, and for a batch or a chunk below 1."""
    if batch < 1 or chunk < 1:
        raise RopeError(
            "continuation_log_probs: `batch` and `chunk` are at least 1.",
            facts={"batch": batch, "chunk": chunk},
            cure="Give whole numbers of rows and tokens.",
        )
    for index, (context, continuation) in enumerate(pairs):
        if not len(context) or not len(continuation):
            raise RopeError(
                "continuation_log_probs: nothing comes before the first token, and an empty text has no probability.",
                facts={"pair": index, "context tokens": len(context), "continuation tokens": len(continuation)},
                cure="Begin with the tokenizer's bos where there is no context.",
            )


def check_read(input_ids: Sequence[int], tokens: int) -> None:
    """Raise `RopeError` where a prefix of so many tokens is to read none."""
    if not len(input_ids):
        raise RopeError(
            "prefix: there are no tokens to read.",
            facts={"input_ids": list(input_ids), "tokens so far": tokens},
            cure="Begin with the tokenizer's bos where there is no text.",
        )


def check_questions(questions: Sequence[QuestionIds]) -> None:
    """Raise `RopeError` for an empty continuation of a question."""
    for question, continuations in questions:
        if not all(len(continuation) for continuation in continuations):
            raise RopeError(
                "prefix: an empty continuation has no probability.",
                facts={"question": list(question), "tokens of each": list(map(len, continuations))},
                cure="Give at least one token each.",
            )
