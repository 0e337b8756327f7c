"""Our own log-probabilities under each hypothesis, and the choice of prompts at which hypotheses differ most."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ropewalk.checkpoints.reader import Reader
from ropewalk.errors import RopeError
from ropewalk.ledger import Ledger, fingerprint
from ropewalk.methods.faults import Hypothesis
from ropewalk.methods.faulty_rules import FaultyPositions
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.verification.outcome import Prediction, distance
from ropewalk.version import __version__

if TYPE_CHECKING:
    from ropewalk.checkpoints.live_model import Top

KEPT = 400  # likeliest tokens of a prediction that are saved; other tokens get the value of the last one


class Predictions:
    """The predictions of our own model, saved under a key of all their inputs.

    Hypotheses that agree on a prompt are computed once.

    **Arguments:**
    - `reader`: our model.
    - `folder`: for saved predictions, which the next run reuses; None: in memory.
    """

    def __init__(self, reader: Reader, folder: Path | None = None) -> None:
        self.reader = reader
        key = "" if folder is None else fingerprint(__version__, KEPT, reader.library, reader.dtype, reader.digest())
        self.ledger = Ledger(None if folder is None else folder / key, kind="verify", key=key)
        self.ledger.resume()
        self._known = {key: top for saved in self.ledger.results.values() for key, top in saved.items()}
        self._readers: dict[ModelRopes, Reader] = {}

    def of(self, hypothesis: Hypothesis, input_ids: Sequence[int], lengths: Sequence[int]) -> dict[int, Prediction]:
        """Return the prediction after the first n of these ids, for each n in `lengths`, under a hypothesis."""
        keys = {length: self._key(hypothesis, input_ids[:length]) for length in sorted(lengths)}
        due = [length for length, key in keys.items() if key not in self._known]
        if due:
            tops = self._compute(hypothesis, input_ids, due)
            new = {keys[length]: _packed(top) for length, top in zip(due, tops, strict=True)}
            self.ledger.add(fingerprint(*new), new)
            self._known |= new
        return {length: Prediction(_unpacked(self._known[key])) for length, key in keys.items()}

    def under(self, positions: ModelRopes) -> Reader:
        """Return the reader under these positions; a copy of the model for each is kept, and shares its weights.

        transformers' layers have one pairing and width, or no rotation. For others, our own attention rotates under an
        extension that does not change positions; layers with a window do not support it.

        **Raises:** `RopeError` if the reader supports neither.
        """
        if positions not in self._readers:
            try:
                self._readers[positions] = self.reader.under(positions)
            except RopeError:
                if any(positions.extensions):
                    raise
                layers = zip(positions.ropes, positions.sliding_windows, strict=True)
                neutral = tuple(
                    FaultyPositions("shifted", 1) if rope and not window else None for rope, window in layers
                )
                self._readers[positions] = self.reader.under(replace(positions, extensions=neutral))
        return self._readers[positions]

    @staticmethod
    def _key(hypothesis: Hypothesis, input_ids: Sequence[int]) -> str:
        at = hypothesis.at(len(input_ids))  # what agrees at this length has one key
        return fingerprint(at, hypothesis.positions.sliding_windows, list(input_ids))

    def _compute(self, hypothesis: Hypothesis, input_ids: Sequence[int], lengths: Sequence[int]) -> list[Top]:
        """Compute all lengths in one pass over the longest prompt, or one by one if frequencies depend on the length.

        **Raises:** `RopeError` if the model returns no finite numbers.
        """
        under = self.under(hypothesis.positions)
        passes = [[length] for length in lengths] if hypothesis.positions.needs_seq_len else [lengths]
        tops = [top for ends in passes for top in under.top_after(input_ids, ends, count=KEPT, seq_len=ends[-1])]
        if not all(math.isfinite(nats) for top in tops for _, nats in top):
            raise RopeError(
                "verify: our own forward pass of this checkpoint returns NaN or infinity.",
                facts={"model": self.reader.name, "hypothesis": hypothesis.name},
                cure="Check the checkpoint's weights.",
            )
        return tops


def _packed(top: Top) -> str:
    """Encode token ids as int32 and nats as float32, in base64."""
    ids, nats = (np.array(values) for values in zip(*top, strict=True))
    return base64.b64encode(ids.astype("<i4").tobytes() + nats.astype("<f4").tobytes()).decode()


def _unpacked(text: str) -> Top:
    data = base64.b64decode(text)
    ids, nats = np.frombuffer(data[: len(data) // 2], "<i4"), np.frombuffer(data[len(data) // 2 :], "<f4")
    return list(zip(ids.tolist(), nats.tolist(), strict=True))


def candidates(first: int, last: int, count: int = 8) -> list[int]:
    """Return lengths from `first` to `last` tokens, evenly spaced.

    >>> candidates(10, 40, 4)
    [10, 20, 30, 40]
    """
    return sorted({round(first + (last - first) * step / max(1, count - 1)) for step in range(count)})


def choose(
    predictions: Mapping[str, Mapping[int, Prediction]], reference: str, lengths: Sequence[int], count: int
) -> list[int]:
    """Choose the lengths at which the hypotheses differ most from `reference`; close hypotheses count most.

    The choice is greedy: each length adds most to the sum over hypotheses of the square root of their total distance.
    """
    others = [name for name in predictions if name != reference]
    apart = {
        length: np.array([distance(predictions[reference][length], predictions[name][length]) for name in others])
        for length in lengths
    }
    chosen: list[int] = []
    so_far = np.zeros(len(others))
    while len(chosen) < min(count, len(lengths)):
        best = max((length for length in lengths if length not in chosen),
                   key=lambda length: float(np.sqrt(so_far + apart[length]).sum()))  # fmt: skip
        chosen.append(best)
        so_far = so_far + apart[best]
    return sorted(chosen)


def stretch(encode: Callable[[str], list[int]], text: str, start: float, tokens: int) -> list[int]:
    """Return `tokens` token ids of a text; `start` is the fraction of the text before them.

    **Raises:** `RopeError` if the text is too short.
    """
    begin = int(start * len(text))
    begin = text.find(" ", begin) + 1 if begin else 0
    size = 8 * tokens + 64
    ids = encode(text[begin : begin + size])
    if len(ids) < tokens and begin:
        ids = encode(text[max(0, len(text) - size) :])
    while len(ids) < tokens and size < len(text):
        size *= 2
        ids = encode(text[:size])
    if len(ids) < tokens:
        raise RopeError(
            "verify: the text is too short for the prompts.",
            facts={"tokens": len(ids), "needed": tokens},
            cure="Pass a longer --text, or a smaller --max-tokens.",
        )
    return ids[:tokens]
