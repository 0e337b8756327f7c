"""Which texts were answered so far, in a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ropewalk.ledger import Ledger, fingerprint
from ropewalk.models.tokens import Tokenizer
from ropewalk.retrieval.protocol import Cell, RetrievalProtocol

FORMAT = 4  # of the results and of how examples are made: a change of either takes the next number


def open_ledger(
    folder: Path | None, protocol: RetrievalProtocol, tokenizer: Tokenizer, text: str, *, resume: bool
) -> Ledger:
    """The ledger of a retrieval measurement: what `folder` holds with `resume`, else begun again; None: in memory.

    Its key says what every text is made of and how it is scored; not how many there are: more tasks, lengths,
    depths, samples and methods may be asked for later. Raises `RopeError` for a folder that holds something else.
    """
    made = (FORMAT, torch.__version__, protocol.seed, protocol.scoring, protocol.haystack, tokenizer.bos_id)
    form = (protocol.form, getattr(tokenizer, "chat_template", None) if protocol.chat else None)
    ledger = Ledger(folder, kind="retrieval", key=fingerprint(made, form, text, tokenizer.tokenizer.to_str()))
    _ = ledger.resume() if resume else ledger.begin()
    return ledger


class Outcomes:
    """The results of one run in its ledger.

    `models` says for each method what its model depends on, to the bit: another form of a method has other keys.
    """

    def __init__(self, ledger: Ledger, models: Mapping[str, str]) -> None:
        self.ledger, self.models = ledger, models

    def key(self, method: str, cell: Cell, sample: int) -> str:
        """The key of one text in the ledger."""
        shortest = "" if cell.shortest is None else f" of {cell.shortest}"
        return f"{method}/{self.models[method]}/{cell.task}/{cell.length}{shortest}/{cell.depth}/{sample}"

    def due(self, method: str, cell: Cell) -> list[int]:
        """The texts of a cell without a result."""
        return [sample for sample in range(cell.examples) if self.key(method, cell, sample) not in self.ledger]

    def of_cell(self, method: str, cell: Cell) -> list[dict[str, Any]]:
        """The results of all texts of a cell, in order."""
        return [self.ledger[self.key(method, cell, sample)] for sample in range(cell.examples)]
