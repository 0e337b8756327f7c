"""What our own decoder says of the next token under each hypothesis, and the prompts at which hypotheses part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ropewalk.errors import RopeError
from ropewalk.readers.reader import Reader
from ropewalk.verification.hypotheses import Hypothesis

KEPT = 1000  # likeliest tokens that are kept of a prediction; the others count as unlikely as the last of them
DESIGN_TOP = 20  # tokens by which two predictions are compared before an engine is asked
Values = npt.NDArray[np.float64]


class Prediction:
    """The log-probabilities of the likeliest next tokens, in nats."""

    def __init__(self, top: Sequence[tuple[int, float]]) -> None:
        self.values = dict(top)
        self.least = min(self.values.values())

    @property
    def likeliest(self) -> list[int]:
        """The tokens, the likeliest first."""
        return list(self.values)

    def of(self, tokens: Sequence[int]) -> Values:
        """The log-probability of each of these tokens."""
        return np.array([self.values.get(token, self.least) for token in tokens])


def predict(
    reader: Reader, hypothesis: Hypothesis, input_ids: Sequence[int], lengths: Sequence[int]
) -> dict[int, Prediction]:
    """What follows the first n of these ids, for each n in `lengths`, under a hypothesis.

    One pass over the longest serves them all, except where frequencies depend on the length of the prompt: an engine
    that gets a prompt of n tokens computes those of n.
    """
    under, found = reader.under(hypothesis.positions), {}
    if hypothesis.positions.needs_seq_len:
        for length in lengths:
            found[length] = Prediction(under.prefix(input_ids[:length], seq_len=length).top(KEPT))
        return found
    ordered = sorted(lengths)
    prefix = under.prefix(input_ids[: ordered[0]], seq_len=ordered[-1])
    for before, length in zip([ordered[0], *ordered], ordered, strict=False):
        if length > before:
            prefix.read(input_ids[before:length])
        found[length] = Prediction(prefix.top(KEPT))
    return found


def distance(one: Prediction, other: Prediction) -> float:
    """The mean absolute difference in nats, over the tokens that `one` finds likeliest."""
    tokens = one.likeliest[:DESIGN_TOP]
    return float(np.abs(one.of(tokens) - other.of(tokens)).mean())


def candidates(first: int, last: int, count: int = 8) -> list[int]:
    """Lengths from `first` to `last` tokens, evenly spaced.

    >>> candidates(10, 40, 4)
    [10, 20, 30, 40]
    """
    return sorted({round(first + (last - first) * step / max(1, count - 1)) for step in range(count)})


def choose(
    predictions: Mapping[str, Mapping[int, Prediction]], reference: str, lengths: Sequence[int], count: int
) -> list[int]:
    """The lengths at which the hypotheses lie furthest from `reference`, the least separated counting most.

    Greedy: each next one adds most to the sum of the square roots of what separates each hypothesis so far.
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
    """So many token ids of a text from a place in it: `start` is a share of its length.

    Raises `RopeError` where the text is too short.
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
            "verify: the text is too short for the prompts that are needed.",
            facts={"tokens": len(ids), "needed": tokens},
            cure="Pass a longer --text, or a smaller --max-tokens.",
        )
    return ids[:tokens]
