"""The baseline beside every result: TF-IDF of words and word pairs, and logistic regression, by scikit-learn."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ropewalk.optional import need
from ropewalk.training.classification.dataset import Rows, joined
from ropewalk.training.classification.metrics import Classes

STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Inverse regularisation (scikit-learn's C) tried in cross-validation; without it, the third."""
FOLDS = 3
SCORING = {"accuracy": "accuracy", "macro_f1": "f1_macro", "loss": "neg_log_loss"}


def run_baseline(
    train: Rows, validation: Rows | None, test: Rows, labels: Sequence[str], *, class_weights: str, select: str
) -> tuple[Classes, dict[str, Any]]:
    """Predictions for `test` as indices into `labels`, and how they came about (settings, seconds).

    TF-IDF of words and word pairs in lower case (sublinear), logistic regression, fitted on training and validation
    part together, which our own training does not do: the baseline has the benefit. C is the best of `STRENGTHS` by
    `select` in a cross-validation over the same rows (none where a class has one row).
    """
    started = time.perf_counter()
    rows = train if validation is None else joined(train, validation)
    choosing = need("sklearn.model_selection", extra="classify")
    folds = min(FOLDS, *Counter(rows.labels).values())
    model, tried = _pipeline(STRENGTHS[2], class_weights), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if folds > 1:
            search = choosing.GridSearchCV(
                model,
                {"logisticregression__C": STRENGTHS},
                scoring=SCORING[select],
                cv=choosing.StratifiedKFold(folds, shuffle=True, random_state=0),
            ).fit(rows.texts, rows.labels)
            model = search.best_estimator_
            tried = dict(zip(STRENGTHS, search.cv_results_["mean_test_score"].tolist(), strict=True))
        else:
            model.fit(rows.texts, rows.labels)
    index = {label: i for i, label in enumerate(labels)}
    predicted = np.array([index[label] for label in model.predict(test.texts)], dtype=np.int64)
    facts = {
        "model": "TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression",
        "scikit-learn": need("sklearn", extra="classify").__version__,
        "C": model[-1].C,
        f"cross_validation_{SCORING[select]}_by_C": {f"{c:g}": score for c, score in tried.items()},
        "folds": folds if tried else None,
        "fitted_on_rows": len(rows),
        "seconds": round(time.perf_counter() - started, 2),
    }
    return predicted, facts


def _pipeline(strength: float, class_weights: str) -> Any:
    text = need("sklearn.feature_extraction.text", extra="classify")
    linear = need("sklearn.linear_model", extra="classify")
    return need("sklearn.pipeline", extra="classify").make_pipeline(
        # any run of characters is a word, so that texts without letters have features too
        text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\w+|[^\w\s]+"),
        linear.LogisticRegression(
            C=strength, max_iter=2000, class_weight=None if class_weights == "none" else class_weights
        ),
    )
