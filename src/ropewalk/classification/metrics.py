"""Scores of predictions: accuracy, macro-F1, each class's own, and bootstrap intervals. Numbers are fractions of 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Classes = NDArray[np.int64]
Counts = NDArray[np.int64]
CONFIDENCE = 0.95
RESAMPLES = 2000


def confusion_counts(truth: Classes, predicted: Classes, classes: int) -> Counts:
    """How many rows of each class (first axis) were given to each (second)."""
    return np.bincount(truth * classes + predicted, minlength=classes * classes).reshape(classes, classes)


def accuracy(counts: Counts) -> float:
    """The part on the diagonal."""
    return float(np.trace(counts) / counts.sum())


def f1_scores(counts: Counts) -> NDArray[np.float64]:
    """2 hits / (rows of the class + rows given to it); NaN where there are neither."""
    hits, total = np.diag(counts), counts.sum(0) + counts.sum(1)
    scores: NDArray[np.float64] = np.divide(2.0 * hits, total, out=np.full(len(counts), np.nan), where=total > 0)
    return scores


def macro_f1(counts: Counts) -> float:
    """The mean of F1 over the classes that occur, in truth or in predictions.

    >>> macro_f1(np.array([[1, 1], [0, 2]]))
    0.7333333333333334
    """
    return float(np.nanmean(f1_scores(counts)))


def bootstrap(
    truth: Classes, *predictions: Classes, classes: int, seed: int = 0, resamples: int = RESAMPLES
) -> list[dict[str, tuple[float, float]]]:
    """95 % percentile intervals of accuracy and macro-F1 for each set of predictions on the same rows.

    With two sets there is a third entry: the intervals of the first's scores minus the second's, paired by row. Rows
    are drawn with replacement, the same for all. Source: Efron and Tibshirani 1993, chapter 13.
    """
    generator = np.random.default_rng(seed)
    cells = [truth * classes + predicted for predicted in predictions]
    drawn = np.empty((len(predictions), resamples, 2))
    for number in range(resamples):
        rows = generator.integers(0, len(truth), len(truth))
        for index, cell in enumerate(cells):
            counts = np.bincount(cell[rows], minlength=classes * classes).reshape(classes, classes)
            drawn[index, number] = accuracy(counts), macro_f1(counts)
    scores = [*drawn, drawn[0] - drawn[1]] if len(predictions) == 2 else [*drawn]
    edges = [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]
    found = []
    for of_one in scores:
        low, high = np.quantile(of_one, edges, axis=0)
        found.append({name: (float(low[i]), float(high[i])) for i, name in enumerate(("accuracy", "macro_f1"))})
    return found


def per_class(counts: Counts, labels: Sequence[str]) -> list[dict[str, Any]]:
    """Rows, precision, recall and F1 of each class; None where it was never predicted, or does not occur."""
    rows, given, f1 = counts.sum(1), counts.sum(0), f1_scores(counts)
    return [
        {
            "label": label,
            "rows": int(rows[i]),
            "precision": float(counts[i, i] / given[i]) if given[i] else None,
            "recall": float(counts[i, i] / rows[i]) if rows[i] else None,
            "f1": None if np.isnan(f1[i]) else float(f1[i]),
        }
        for i, label in enumerate(labels)
    ]
