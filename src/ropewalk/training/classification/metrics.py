"""Scores of predictions, by scikit-learn, with bootstrap intervals, by scipy. Numbers are fractions of 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.optional import need

Classes = NDArray[np.int64]
Counts = NDArray[np.int64]
Scores = NDArray[np.float64]
Intervals = dict[str, tuple[float, float]]
SCORES = ("accuracy", "macro_f1")
CONFIDENCE = 0.95
RESAMPLES = 2000
_AT_ONCE = 2**22  # rows of all resamples that are scored together


def confusion_counts(truth: Classes, predicted: Classes, classes: int) -> Counts:
    """How many rows of each class (first axis) were given to each (second)."""
    counts: Counts = _metrics().confusion_matrix(truth, predicted, labels=range(classes))
    return counts


def scores_of(truth: Classes, predicted: Classes) -> dict[str, float]:
    """Accuracy, and macro-F1 over the classes that occur in truth or in predictions.

    >>> scores_of(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1]))
    {'accuracy': 0.75, 'macro_f1': 0.7333333333333334}
    """
    metrics = _metrics()
    return {
        "accuracy": float(metrics.accuracy_score(truth, predicted)),
        "macro_f1": float(metrics.f1_score(truth, predicted, average="macro", zero_division=0.0)),
    }


def bootstrap(
    truth: Classes, *predictions: Classes, classes: int, seed: int = 0, resamples: int = RESAMPLES
) -> list[Intervals]:
    """95 % percentile intervals of accuracy and macro-F1 for each set of predictions on the same rows.

    With two sets there is a third entry: the intervals of the first's scores minus the second's, paired by row. Rows
    are drawn with replacement, the same for all. Source: Efron and Tibshirani 1993, chapter 13.
    """

    def statistic(rows: NDArray[Any], axis: int) -> Scores:
        """The scores of all sets on each resample's rows: `[sets * 2, resamples]`."""
        drawn = np.atleast_2d(np.asarray(rows, dtype=np.int64))
        sets = [_resampled_scores(truth[drawn], predicted[drawn], classes) for predicted in predictions]
        if len(sets) == 2:
            sets.append(sets[0] - sets[1])
        return np.concatenate(sets).reshape(-1, *rows.shape[:-1])

    count = len(truth)
    if count == 1:  # every resample is the row itself
        low = high = statistic(np.zeros((1, 1)), axis=-1)[:, 0]
    else:
        low, high = (
            need("scipy.stats", extra="classify")
            .bootstrap(
                (np.arange(count),),
                statistic,
                vectorized=True,
                batch=max(1, _AT_ONCE // count),
                n_resamples=resamples,
                confidence_level=CONFIDENCE,
                method="percentile",
                rng=np.random.default_rng(seed),
            )
            .confidence_interval
        )
    return [
        {name: (float(low[first + i]), float(high[first + i])) for i, name in enumerate(SCORES)}
        for first in range(0, len(low), len(SCORES))
    ]


def mcnemar(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> dict[str, Any]:
    """McNemar's exact test of two classifiers on the same rows: rows that one of them alone has right, two-sided p.

    Source: McNemar 1947, Psychometrika 12.

    >>> mcnemar(np.array([True, True, True, False]), np.array([False, False, True, False]))
    {'ours_alone': 2, 'theirs_alone': 0, 'p': 0.5}
    """
    one, other = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    p = float(need("scipy.stats", extra="classify").binomtest(one, one + other).pvalue) if one + other else 1.0
    return {"ours_alone": one, "theirs_alone": other, "p": p}


def _resampled_scores(truth: Classes, predicted: Classes, classes: int) -> Scores:
    """Accuracy and macro-F1, `[2, resamples]`, of labels `[resamples, rows]`: what `scores_of` gives for each row.

    scikit-learn takes one resample at a time, which for 2,000 of them takes seconds.
    """
    right = truth == predicted
    own = np.arange(len(truth))[:, None] * classes  # each resample counts into classes of its own

    def counted(labels: Classes) -> Counts:
        return np.bincount(labels.ravel(), minlength=len(truth) * classes).reshape(-1, classes)

    total = counted(own + truth) + counted(own + predicted)
    hits = counted((own + truth)[right])
    f1 = np.divide(2.0 * hits, total, out=np.full(total.shape, np.nan), where=total > 0)
    return np.stack([right.mean(1), np.nanmean(f1, 1)])


def per_class(truth: Classes, predicted: Classes, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Rows, precision, recall and F1 of each class; None where it was never predicted, or does not occur."""
    columns = _metrics().precision_recall_fscore_support(
        truth, predicted, labels=range(len(labels)), zero_division=np.nan
    )
    return [
        {"label": label, "rows": int(rows)}
        | {name: None if np.isnan(value) else float(value)
           for name, value in zip(("precision", "recall", "f1"), scores, strict=True)}
        for label, *scores, rows in zip(labels, *columns, strict=True)
    ]  # fmt: skip


def _metrics() -> Any:
    return need("sklearn.metrics", extra="classify")
