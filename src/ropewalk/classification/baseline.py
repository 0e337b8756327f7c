"""The baseline beside every result: TF-IDF of words and word pairs, and logistic regression, by scikit-learn."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ropewalk.classification.dataset import Rows
from ropewalk.classification.metrics import Classes
from ropewalk.models.extras import need

STRENGTHS = (1.0, 3.0, 10.0, 30.0)
"""Inverse regularisation (scikit-learn's C) tried on the validation part; with none, the third."""


def run_baseline(
    train: Rows, validation: Rows | None, test: Rows, labels: Sequence[str], *, class_weights: str, select: str
) -> tuple[Classes, dict[str, Any]]:
    """Predictions for `test` as indices into `labels`, and how they came about (settings, seconds).

    TF-IDF of words and word pairs in lower case (sublinear), logistic regression. C is the best of `STRENGTHS` on the
    validation part by `select`; then the model is fitted anew on training and validation part together, which our own
    training does not do: the baseline has the benefit.
    """
    started = time.perf_counter()
    weights = None if class_weights == "none" else class_weights
    tried: dict[float, float] = {}
    if validation is not None:
        for strength in STRENGTHS:
            tried[strength] = _score(_fit(train, strength, weights), validation, labels, select)
    strength = max(tried, key=lambda c: tried[c]) if tried else STRENGTHS[2]
    model = _fit(train if validation is None else _joined(train, validation), strength, weights)
    index = {label: i for i, label in enumerate(labels)}
    found = np.array([index[label] for label in model.predict(test.texts)], dtype=np.int64)
    facts = {
        "model": "TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression",
        "scikit-learn": need("sklearn", extra="classify").__version__,
        "C": strength,
        f"validation_{select}_by_C": {f"{c:g}": value for c, value in tried.items()},
        "fitted_on_rows": len(train) + (0 if validation is None else len(validation)),
        "seconds": round(time.perf_counter() - started, 2),
    }
    return found, facts


def _fit(rows: Rows, strength: float, class_weight: str | None) -> Any:
    text = need("sklearn.feature_extraction.text", extra="classify")
    linear = need("sklearn.linear_model", extra="classify")
    pipeline = need("sklearn.pipeline", extra="classify")
    model = pipeline.make_pipeline(
        # any run of characters is a word, so that texts without letters have features too
        text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]+"),
        linear.LogisticRegression(C=strength, max_iter=2000, class_weight=class_weight),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(rows.texts, rows.labels)


def _score(model: Any, rows: Rows, labels: Sequence[str], select: str) -> float:
    """Accuracy, macro-F1, or minus the loss: higher is better."""
    metrics = need("sklearn.metrics", extra="classify")
    if select == "loss":
        return -float(metrics.log_loss(rows.labels, model.predict_proba(rows.texts), labels=list(model.classes_)))
    predicted = model.predict(rows.texts)
    if select == "macro_f1":
        return float(metrics.f1_score(rows.labels, predicted, average="macro", zero_division=0.0))
    return float(metrics.accuracy_score(rows.labels, predicted))


def _joined(first: Rows, second: Rows) -> Rows:
    return Rows(first.path, first.texts + second.texts, first.labels + second.labels, first.lines + second.lines)
