"""Our own decoder as an engine: what examples and tests ask, with any positions in it."""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.models.decoder import Decoder
from ropewalk.readers.adapters import reader_of
from ropewalk.verification.engine import TOP, NextTokens


class OurEngine:
    """A `Decoder` as an engine; see `ropewalk.verification.engine.Engine`.

    - `model`: in whatever positions it should be caught with.
    """

    name = "ropewalk"

    def __init__(self, model: Decoder) -> None:
        self.reader = reader_of(model)

    def token_ids(self, text: str) -> list[int] | None:
        """The ids by the model's tokenizer."""
        tokenizer = self.reader.tokenizer
        return None if tokenizer is None else tokenizer.encode(text)

    def ask(self, input_ids: Sequence[int]) -> NextTokens:
        """The likeliest next tokens."""
        top = self.reader.prefix(input_ids, seq_len=len(input_ids)).top(TOP)
        return NextTokens(dict(top), len(input_ids))
