"""What token frequencies lose, against counts by hand and a second implementation."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from ropewalk.diagnosis.protocol import Protocol
from ropewalk.diagnosis.token_frequencies import frequency_losses


def protocol(**changes: int) -> Protocol:
    """Two trained tokens of four, one window."""
    return Protocol.choose(**{"trained_length": 2, "target": 4, "windows": 1, **changes}, text="t")  # type: ignore[arg-type]


def test_a_count_by_hand() -> None:
    """Outside: 7 tokens, 2 distinct, of 5 ids. The scored token occurs 3 times: (3 + 2/5) / (7 + 2)."""
    outside, window = [0, 1, 0, 1, 0, 1, 0], [0, 1, 4, 4]
    of = protocol()
    text = list(range(11))
    start = of.starts(11)[0]
    text[start : start + 4] = window
    text[:start], text[start + 4 :] = outside[:start], outside[start:]
    assert frequency_losses([text], of, vocab_size=5) == pytest.approx((-math.log(3.4 / 9),))


def test_probabilities_sum_to_one() -> None:
    """Over the whole vocabulary, the tokens that never occur included."""
    of, total = protocol(), 0.0
    for token in range(6):
        text = [0, 0, 1, 0, 2, 1, 0, 0, 0]
        start = of.starts(len(text))[0]
        text[start : start + 4] = [0, token, 0, 0]  # the counts outside stay as they are
        total += math.exp(-frequency_losses([text], of, vocab_size=6)[0])
    assert total == pytest.approx(1.0)


@pytest.mark.parametrize("texts", [1, 3])
def test_it_is_witten_and_bells(texts: int) -> None:
    """In exact fractions, token by token, with counts of the window's own text outside the window."""
    rng = np.random.default_rng(texts)
    ids = [rng.zipf(1.5, size).clip(max=40).tolist() for size in rng.integers(150, 300, texts)]
    of = Protocol.choose(trained_length=8, target=32, windows=3, text=[str(n) for n in range(texts)], seed=5)
    found = frequency_losses(ids, of, vocab_size=50)
    expected = []
    for number, text in enumerate(ids):
        for start in of.starts(len(text), number):
            counts = Counter(text[:start] + text[start + 32 :])
            tokens, types = sum(counts.values()), len(counts)
            new = Fraction(types, tokens + types)
            likely = [
                (1 - new) * Fraction(counts[token], tokens) + new * Fraction(1, 50)
                for token in text[start + 1 : start + 8]
            ]
            expected.append(-sum(math.log(one) for one in likely) / 7)
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_text_that_is_one_window_knows_nothing() -> None:
    """No token lies outside: every one is as likely."""
    assert frequency_losses([[3, 1, 2, 0]], protocol(), vocab_size=8) == pytest.approx((math.log(8),))
