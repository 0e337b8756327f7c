"""`Tuned`: a model before and after tuning as one reader, for comparison by the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ropewalk.errors import RopeError
from ropewalk.ledger import fingerprint
from ropewalk.methods import METHODS, ConfigForm, Reach
from ropewalk.models.config import Positions
from ropewalk.models.prompts import Tokenizer
from ropewalk.readers.reader import Losses, Prefix, Reader


class Tuned:
    """A `Reader` that is the untuned model under plain, and the tuned model under all other positions.

    `measure.plan.plan` plans one method for it. plain is the unchanged untuned model. The method is the tuned weights
    under the method, and crop the tuned weights under the method in fresh windows of the trained length. So crop
    includes what tuning learned about the text in general, and this does not count as use of far tokens.

    **Arguments:**
    - `source`: the model before tuning, under its own positions. `tuned`: the same architecture with tuned weights; its
      positions are ignored.

    **Raises:** `RopeError` if the two differ in more than their weights.

    >>> from ropewalk.checkpoints.load import load
    >>> from ropewalk.readers.adapters import reader_of
    >>> tiny = reader_of(load("tiny"), "tiny")
    >>> Tuned(tiny, tiny).under(METHODS["yarn"].positions(tiny.positions, Reach(256, 1024))).trained_length
    256
    """

    def __init__(self, source: Reader, tuned: Reader) -> None:
        kinds = [(one.library, one.parameters, one.dtype, str(one.device)) for one in (source, tuned)]
        if kinds[0] != kinds[1]:
            raise RopeError(
                "Tuned: the tuned model must be the source with different weights.",
                facts={"source": kinds[0], "tuned": kinds[1]},
                cure="Pass both in the same dtype and on the same device.",
            )
        self.source, self.tuned = source, tuned
        any_length = Reach(1, 1)
        self._plain = METHODS["plain"].positions(source.positions, any_length)

    def under(self, positions: Positions) -> Reader:
        """Return the untuned model for the positions of plain, else the tuned one under these positions."""
        return (self.source if positions == self._plain else self.tuned).under(positions)

    def digest(self) -> str:
        """Return a short hash of both models."""
        return fingerprint("tuned", self.source.digest(), self.tuned.digest())

    @property
    def name(self) -> str:
        """Return the source's name."""
        return self.source.name

    @property
    def library(self) -> str:
        """Return the source's library."""
        return self.source.library

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Return the source's tokenizer."""
        return self.source.tokenizer

    @property
    def positions(self) -> Positions:
        """Return the source's positions."""
        return self.source.positions

    @property
    def config_form(self) -> ConfigForm:
        """Return the places of the ropes in the source's config.json."""
        return self.source.config_form

    @property
    def trained_length(self) -> int | None:
        """Return the source's trained length in tokens."""
        return self.source.trained_length

    @property
    def device(self) -> torch.device:
        """Return the device of both."""
        return self.source.device

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of both."""
        return self.source.dtype

    @property
    def parameters(self) -> int:
        """Return the number of parameters of one of them."""
        return self.source.parameters

    def cache_bytes(self, tokens: int) -> int:
        """Return the bytes of a cache of the source."""
        return self.source.cache_bytes(tokens)

    def window_losses(self, *arguments: Any, **options: Any) -> Losses:
        """Return the source's losses of a window."""
        return self.source.window_losses(*arguments, **options)

    def prefix(self, *arguments: Any, **options: Any) -> Prefix:
        """Read tokens into a cache of the source."""
        return self.source.prefix(*arguments, **options)

    def top_after(self, *arguments: Any, **options: Any) -> list[list[tuple[int, float]]]:
        """Return the source's likeliest tokens."""
        return self.source.top_after(*arguments, **options)

    def continuation_log_probs(self, *arguments: Any, **options: Any) -> list[tuple[float, bool]]:
        """Return the source's log-probabilities of continuations."""
        return self.source.continuation_log_probs(*arguments, **options)

    def generate(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """Return the source's new tokens of each prompt."""
        return self.source.generate(prompts, **options)

    def stream(self, prompts: Any, **options: Any) -> Iterator[tuple[int, int]]:
        """Yield the source's new tokens of prompts."""
        return self.source.stream(prompts, **options)
