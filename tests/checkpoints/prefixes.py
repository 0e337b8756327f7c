"""Prefixes outside a window's reading, and a decoder of ours as an engine that answers from them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ropewalk.checkpoints.live_model import ASK_TOKENS, Prefix, likeliest, new_cache
from ropewalk.checkpoints.opening import reader_of
from ropewalk.checkpoints.reader import CHUNK, Reader
from ropewalk.models.decoder import Decoder
from ropewalk.verification.engine import TOP, NextTokens


@torch.inference_mode()
def read(prefix: Prefix, input_ids: Sequence[int], chunk: int = CHUNK) -> torch.Tensor:
    """Append tokens in chunks; return the log-probabilities of the next token."""
    for start in range(0, len(input_ids), chunk):
        part = list(input_ids[start : start + chunk])
        last = prefix._hidden(part)[-1:]
        prefix.tokens += len(part)
    return prefix.live.logits(last)[0].log_softmax(-1)


def prefix_of(reader: Reader, input_ids: Sequence[int], *, seq_len: int, chunk: int = CHUNK) -> Prefix:
    """A prefix of these tokens, at the frequencies of `seq_len` tokens."""
    prefix = Prefix(reader._at(seq_len), new_cache(reader.model.config, seq_len + ASK_TOKENS), 0)
    read(prefix, input_ids, chunk)
    return prefix


class OurEngine:
    """A `Decoder` as an `Engine`. It applies the positions of `model`."""

    name = "ropewalk"

    def __init__(self, model: Decoder | Reader) -> None:
        self.reader = reader_of(model)

    def token_ids(self, text: str) -> list[int] | None:
        return None if self.reader.tokenizer is None else self.reader.tokenizer.encode(text)

    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """The answer to a prompt alone, which tests change."""
        return self._steps(input_ids, 1)[0]

    def generate(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        return [self.ask(input_ids)] if tokens == 1 else self._steps(input_ids, tokens)

    def _steps(self, input_ids: Sequence[int], tokens: int) -> list[NextTokens]:
        seq_len = len(input_ids) + tokens - 1
        prefix = Prefix(self.reader._at(seq_len), new_cache(self.reader.model.config, seq_len), 0)
        steps, ids = list[NextTokens](), list(input_ids)
        while len(steps) < tokens:
            top = likeliest(read(prefix, ids), TOP)
            steps.append(NextTokens(dict(top), len(input_ids), token=top[0][0]))
            ids = [top[0][0]]
        return steps
