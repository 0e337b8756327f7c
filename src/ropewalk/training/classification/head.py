"""A logistic regression on frozen features: layer, pooling and regularisation by cross-validation."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.optional import need
from ropewalk.training.classification.baseline import FOLDS, SCORING
from ropewalk.training.classification.features import Features, Matrix

STRENGTHS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Inverse regularisation (scikit-learn's C) tried on standardised features."""
_FIRST = 3  # which of them layers and poolings are compared with
_ITERATIONS = 300


@dataclass(frozen=True)
class FittedHead:
    """The regression: logits are `(x - center) / spread @ weight.T + bias`, the names in `arrays`.

    `facts`: "layer", "pooling" and "C", and how they were chosen, for run.json.
    """

    arrays: dict[str, Matrix]
    facts: dict[str, Any]


def fit_head(
    features: Features,
    labels: Sequence[str],
    classes: Sequence[str],
    poolings: Sequence[str],
    *,
    class_weights: str,
    select: str,
    report: Callable[[int, int], None],
) -> FittedHead:
    """Choose layer, pooling and C by `select`, then fit all rows.

    Layers and poolings are compared at one C on one of three folds of each class. From that C on, larger values and
    then smaller ones are tried on all three, as long as the next is better than the last. Without a class of two rows
    nothing is compared: the last layer and the first pooling are taken, and that C. `report` is called with the fits
    done and their number at most. Each class has a row of weights, also where there are two.
    """
    started = time.perf_counter(), time.process_time()
    index = {name: i for i, name in enumerate(classes)}
    truth = np.array([index[label] for label in labels], dtype=np.int64)
    folds = min(FOLDS, *Counter(labels).values())
    choices = [(layer, pooling) for layer in features.layers for pooling in poolings]
    fits, done = (len(choices) + folds * len(STRENGTHS) if folds > 1 else 0) + 1, 0  # at most

    def scored(matrix: Matrix, strength: float, parts: Sequence[Any]) -> float:
        nonlocal done
        scorer = need("sklearn.metrics", extra="classify").get_scorer(SCORING[select])
        values = []
        for kept, held_out in parts:
            values.append(
                float(
                    scorer(
                        _fitted(matrix[kept], truth[kept], strength, class_weights), matrix[held_out], truth[held_out]
                    )
                )
            )
            done += 1
            report(done, fits)
        return float(np.mean(values))

    (layer, pooling), strength = (features.layers[-1], poolings[0]), STRENGTHS[_FIRST]
    compared: dict[str, Any] = {}
    if folds > 1:
        splitter = need("sklearn.model_selection", extra="classify").StratifiedKFold(
            folds, shuffle=True, random_state=0
        )
        parts = list(splitter.split(truth, truth))
        of_choice = {each: scored(features.matrix(*each), strength, parts[:1]) for each in choices}
        layer, pooling = max(of_choice, key=lambda each: of_choice[each])
        matrix = features.matrix(layer, pooling)
        of_strength = {strength: scored(matrix, strength, parts)}
        for further in (STRENGTHS[_FIRST + 1 :], STRENGTHS[_FIRST - 1 :: -1]):
            last = of_strength[STRENGTHS[_FIRST]]
            for each in further:
                of_strength[each] = scored(matrix, each, parts)
                if of_strength[each] <= last:
                    break
                last = of_strength[each]
        strength = max(of_strength, key=lambda each: of_strength[each])
        compared = {
            "score": SCORING[select],
            "by_layer_and_pooling": [[*each, round(score, 5)] for each, score in of_choice.items()],
            "by_C": {f"{each:g}": round(score, 5) for each, score in sorted(of_strength.items())},
            "folds": folds,
        }
    matrix = features.matrix(layer, pooling)
    model = _fitted(matrix, truth, strength, class_weights)
    report(fits, fits)
    scaler, regression = model[0], model[1]
    weight, bias = regression.coef_, regression.intercept_
    if len(weight) == 1:  # of two classes scikit-learn keeps the difference
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    facts = {
        "layer": layer,
        "pooling": pooling,
        "C": strength,
        "fitted_on_rows": len(labels),
        **compared,
        "iterations": int(np.max(regression.n_iter_)),
        "features_seconds": round(features.seconds, 2),
        "features_cpu_seconds": round(features.cpu_seconds, 2),
        "fit_seconds": round(time.perf_counter() - started[0], 2),
        "fit_cpu_seconds": round(time.process_time() - started[1], 2),
    }
    arrays = {"center": scaler.mean_, "spread": scaler.scale_, "weight": weight, "bias": bias}
    return FittedHead({name: array.astype(np.float32) for name, array in arrays.items()}, facts)


def _fitted(matrix: Matrix, truth: NDArray[np.int64], strength: float, class_weights: str) -> Any:
    """Standardised features and a logistic regression, fitted."""
    linear = need("sklearn.linear_model", extra="classify")
    model = need("sklearn.pipeline", extra="classify").make_pipeline(
        need("sklearn.preprocessing", extra="classify").StandardScaler(),
        linear.LogisticRegression(
            C=strength, max_iter=_ITERATIONS, class_weight=None if class_weights == "none" else class_weights
        ),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it has not converged, which is no harm: the iterations are recorded
        return model.fit(matrix, truth)
