"""What token frequencies alone lose on a window: the least that a model of this text must beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ropewalk.diagnosis.protocol import Protocol


def frequency_losses(texts: Sequence[Sequence[int]], protocol: Protocol, *, vocab_size: int) -> tuple[float, ...]:
    """For each window the mean loss, within the trained length, of token frequencies counted outside the window.

    A token that occurs c times among the N tokens of its text outside the window, T of them distinct, has the
    probability (c + T / V) / (N + T): with the weight T / (N + T) for a token that is new, spread evenly over the V
    tokens of the vocabulary.

    **Arguments:**
    - `texts`: token ids of each text. `protocol`: where its windows lie. `vocab_size`: V, at least the largest id + 1.

    **Returns:** nats per token, window by window, over the tokens 1 .. trained_length - 1 of each: those of
    `Measurement.within`.
    **Source:** Witten and Bell 1991 (method C), interpolated with the uniform distribution as in Chen and Goodman 1999,
    "An empirical study of smoothing techniques for language modeling", section 2.

    >>> protocol = Protocol.choose(trained_length=2, target=2, text="t", windows=1)
    >>> round(frequency_losses([[0, 0]], protocol, vocab_size=2)[0], 4)  # nothing lies outside: log 2
    0.6931
    """
    length = min(protocol.trained_length, protocol.target)
    losses = []
    for number, text in enumerate(texts):
        ids = np.asarray(text, dtype=np.int64)
        counts = np.bincount(ids, minlength=vocab_size)
        for start in protocol.starts(len(ids), number):
            outside = counts - np.bincount(ids[start : start + protocol.target], minlength=vocab_size)
            total, distinct = int(outside.sum()), int(np.count_nonzero(outside))
            scored = ids[start + 1 : start + length]
            if total == 0:
                losses.append(float(np.log(vocab_size)))
            else:
                likely = (outside[scored] + distinct / vocab_size) / (total + distinct)
                losses.append(float(-np.log(likely).mean()))
    return tuple(losses)
