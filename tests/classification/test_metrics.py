"""Scores against scikit-learn's, and intervals that hold what they promise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as theirs

from ropewalk.classification.metrics import accuracy, bootstrap, confusion_counts, macro_f1, per_class

pair = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(st.lists(pair, min_size=1, max_size=60))
def test_scores_are_scikit_learns(rows: list[tuple[int, int]]) -> None:
    """Accuracy, macro-F1 over the classes that occur, confusion, precision, recall and F1 of each class."""
    truth, predicted = np.array(rows, dtype=np.int64).T
    counts = confusion_counts(truth, predicted, 5)
    assert (counts == theirs.confusion_matrix(truth, predicted, labels=range(5))).all()
    assert accuracy(counts) == pytest.approx(theirs.accuracy_score(truth, predicted), abs=1e-12)
    assert macro_f1(counts) == pytest.approx(
        theirs.f1_score(truth, predicted, average="macro", zero_division=0.0), abs=1e-12
    )
    columns = theirs.precision_recall_fscore_support(truth, predicted, labels=range(5), zero_division=np.nan)
    for mine, *wanted in zip(per_class(counts, list("abcde")), *columns, strict=True):
        assert mine["rows"] == wanted[3]
        for name, value in zip(("precision", "recall", "f1"), wanted, strict=False):
            assert mine[name] == (None if np.isnan(value) else pytest.approx(value, abs=1e-12))


def test_intervals_hold_the_true_score() -> None:
    """A predictor that is right four times in five: 95 % of intervals around samples of it hold 0.8."""
    generator = np.random.default_rng(0)
    inside, trials = 0, 100
    for _ in range(trials):
        truth = generator.integers(0, 2, 200)
        right = generator.random(200) < 0.8
        low, high = bootstrap(truth, np.where(right, truth, 1 - truth), classes=2, resamples=300)[0]["accuracy"]
        inside += low <= 0.8 <= high
    assert 87 <= inside <= 100  # 95 expected; the binomial's standard deviation is 2.2


def test_a_difference_is_paired() -> None:
    """Two predictors that err on the same rows but one: its interval is narrow, and their order gives the sign."""
    truth = np.arange(400) % 4
    first = np.where(np.arange(400) < 100, 3 - truth, truth)
    second = np.where(np.arange(400) < 110, 3 - truth, truth)
    one, two, difference = bootstrap(truth, first, second, classes=4)
    low, high = difference["accuracy"]
    assert 0 < low < 10 / 400 < high
    assert high - low < (one["accuracy"][1] - one["accuracy"][0]) / 2
    assert bootstrap(truth, first, second, classes=4) == [one, two, difference]
    assert bootstrap(truth, first, classes=4) == [one]
