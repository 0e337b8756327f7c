"""Scores against their definitions, intervals that hold what they promise, and the baseline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.training.classification.dataset import Rows, split
from ropewalk.training.classification.score import (
    CONFIDENCE,
    bootstrap,
    confusion_counts,
    per_class,
    run_baseline,
    scores_of,
)
from tests.training.classification.material import texts

pair = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(st.lists(pair, min_size=1, max_size=60))
def test_scores_are_their_definitions(rows: list[tuple[int, int]]) -> None:
    """Accuracy, macro-F1 over the classes that occur, confusion, precision, recall and F1, counted row by row."""
    truth, predicted = np.array(rows, dtype=np.int64).T
    counts = [[rows.count((true, given)) for given in range(5)] for true in range(5)]
    assert confusion_counts(truth, predicted, 5).tolist() == counts
    f1 = []
    for index, entry in enumerate(per_class(truth, predicted, list("abcde"))):
        hits, own, given_to = counts[index][index], sum(counts[index]), sum(row[index] for row in counts)
        assert entry["label"] == "abcde"[index]
        assert entry["rows"] == own
        assert entry["precision"] == (pytest.approx(hits / given_to, abs=1e-12) if given_to else None)
        assert entry["recall"] == (pytest.approx(hits / own, abs=1e-12) if own else None)
        both = own + given_to
        assert entry["f1"] == (pytest.approx(2 * hits / both, abs=1e-12) if both else None)
        f1 += [2 * hits / both] if both else []
    assert scores_of(truth, predicted) == {
        "accuracy": pytest.approx(sum(true == given for true, given in rows) / len(rows), abs=1e-12),
        "macro_f1": pytest.approx(sum(f1) / len(f1), abs=1e-12),
    }


@given(st.lists(pair, min_size=1, max_size=30), st.integers(0, 3))
@settings(max_examples=40)
def test_intervals_are_quantiles_of_the_scores_of_resamples(rows: list[tuple[int, int]], seed: int) -> None:
    """The vectorised bootstrap is the plain one: draw rows, score them, take quantiles."""
    truth, predicted = np.array(rows, dtype=np.int64).T
    generator = np.random.default_rng(seed)
    drawn = [generator.integers(0, len(truth), len(truth)) for _ in range(20)]
    scores = [scores_of(truth[rows], predicted[rows]) for rows in drawn]
    (intervals,) = bootstrap(truth, predicted, classes=5, seed=seed, resamples=20)
    for name, interval in intervals.items():
        ends = np.quantile([each[name] for each in scores], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        assert interval == pytest.approx(ends, abs=1e-12)


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


def rows_of(pairs: list[tuple[str, str]]) -> Rows:
    """Rows of no file."""
    return Rows(
        "rows.csv", tuple(text for text, _ in pairs), tuple(label for _, label in pairs), tuple(range(len(pairs)))
    )


@pytest.mark.parametrize("select", ["accuracy", "macro_f1", "loss"])
def test_it_learns_from_training_and_validation_rows(select: str) -> None:
    """Nearly all right where words tell the class; C is the best of those tried, by the score asked for."""
    train, validation = split(rows_of(texts(120)), 0.3, 0)
    test, labels = rows_of(texts(60, seed=1)), ["knot", "sail", "weather"]
    found, facts = run_baseline(train, validation, test, labels, class_weights="none", select=select)
    right = [labels[i] == label for i, label in zip(found.tolist(), test.labels, strict=True)]
    assert np.mean(right) > 0.9
    assert facts["fitted_on_rows"] == 120
    (tried,) = [value for name, value in facts.items() if name.startswith("cross_validation")]
    assert tried[f"{facts['C']:g}"] == max(tried.values())


def test_its_folds_do_not_depend_on_the_split() -> None:
    """The same rows give the same scores of each C, with a validation part and without one."""
    rows = rows_of([(f"{text} {word}", label) for (text, label), word in zip(texts(60), "ab" * 30, strict=True)])
    whole, parted = (
        run_baseline(*parts, rows, ["knot", "sail", "weather"], class_weights="none", select="loss")[1]
        for parts in ((rows, None), split(rows, 0.3, 0))
    )
    key = "cross_validation_neg_log_loss_by_C"
    assert whole[key] == pytest.approx(parted[key], rel=1e-9)


def test_it_uses_the_validation_rows() -> None:
    """A word that the validation part alone holds is known."""
    train = rows_of([("alpha", "a"), ("beta", "b"), ("alpha", "a"), ("beta", "b"), ("beta", "b")])
    validation = rows_of([("gamma", "a"), ("gamma", "a")])
    found, _ = run_baseline(
        train, validation, rows_of([("gamma", "a")]), ["a", "b"], class_weights="none", select="accuracy"
    )
    assert found.tolist() == [0]


def test_a_class_with_one_row_and_texts_without_letters() -> None:
    """No folds then; and "!!!" is a feature."""
    train = rows_of([("!!!", "loud"), ("...", "quiet"), ("...", "quiet")])
    found, facts = run_baseline(train, None, train, ["loud", "quiet"], class_weights="balanced", select="accuracy")
    assert found.tolist() == [0, 1, 1]
    assert (facts["folds"], facts["C"]) == (None, 10.0)
