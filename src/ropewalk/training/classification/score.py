"""Predictions of a classifier, and their scores with bootstrap intervals next to TF-IDF with logistic regression."""

from __future__ import annotations

import csv
import io
import platform
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ropewalk.atomic_io import sha256
from ropewalk.models.classifier import TextClassifier
from ropewalk.optional import need
from ropewalk.training.classification.dataset import Rows, by_length, joined, pad
from ropewalk.training.objective import autocast

Classes = NDArray[np.int64]
Counts = NDArray[np.int64]
Scores = NDArray[np.float64]
Intervals = dict[str, tuple[float, float]]
SCORES = ("accuracy", "macro_f1")
CONFIDENCE = 0.95
RESAMPLES = 2000
_AT_ONCE = 2**22  # rows of all resamples that are scored together


def confusion_counts(truth: Classes, predicted: Classes, classes: int) -> Counts:
    """Return the number of rows by true class (first axis) and predicted class (second)."""
    counts: Counts = _metrics().confusion_matrix(truth, predicted, labels=range(classes))
    return counts


def scores_of(truth: Classes, predicted: Classes) -> dict[str, float]:
    """Return the accuracy, and the macro-F1 over the classes that occur in truth or in predictions.

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
    """Return 95 % percentile intervals of accuracy and macro-F1 for each set of predictions on the same rows.

    With two sets there is a third entry: the intervals of the first's scores minus the second's, paired by row. All
    sets use the same resampled rows. Source: Efron and Tibshirani 1993, chapter 13.
    """

    def statistic(rows: NDArray[Any], axis: int) -> Scores:
        """Return the scores of all sets on each resample's rows: `[sets * 2, resamples]`."""
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
    """Run McNemar's exact test of two classifiers on the same rows: rows that only one has right, two-sided p.

    Source: McNemar 1947, Psychometrika 12.

    >>> mcnemar(np.array([True, True, True, False]), np.array([False, False, True, False]))
    {'ours_alone': 2, 'theirs_alone': 0, 'p': 0.5}
    """
    one, other = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    p = float(need("scipy.stats", extra="classify").binomtest(one, one + other).pvalue) if one + other else 1.0
    return {"ours_alone": one, "theirs_alone": other, "p": p}


def _resampled_scores(truth: Classes, predicted: Classes, classes: int) -> Scores:
    """Return accuracy and macro-F1, `[2, resamples]`, of labels `[resamples, rows]`, as `scores_of` does for each row.

    scikit-learn processes one resample at a time, which takes seconds for 2,000 of them.
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
    """Return rows, precision, recall and F1 of each class; None if it was never predicted or does not occur."""
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


STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)
"""Values of inverse regularisation (scikit-learn's C) for cross-validation; without it, the third is used."""
FOLDS = 3
SCORING = {"accuracy": "accuracy", "macro_f1": "f1_macro", "loss": "neg_log_loss"}


def run_baseline(
    train: Rows, validation: Rows | None, test: Rows, labels: Sequence[str], *, class_weights: str, select: str
) -> tuple[Classes, dict[str, Any]]:
    """Return predictions for `test` as indices into `labels`, and facts about them (settings, seconds).

    TF-IDF of words and word pairs in lower case (sublinear), then logistic regression. It is fitted on the training and
    validation rows, while our classifier trains only on the training rows, which favours the baseline. C is the best of
    `STRENGTHS` by `select` in a cross-validation over the same rows (none if a class has one row). The folds follow the
    order of the file, so they do not depend on the choice of validation rows.
    """
    started = time.perf_counter()
    rows = train if validation is None else joined(train, validation)
    if validation is not None and validation.path == train.path:
        rows = rows.take(sorted(range(len(rows)), key=rows.lines.__getitem__))
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


def logits_of(
    model: TextClassifier,
    ids: Sequence[Sequence[int]],
    *,
    batch_size: int = 128,
    precision: str = "float32",
    report: Callable[[int], None] | None = None,
) -> Tensor:
    """Return the logits `[texts, labels]` of token ids, on the CPU, in order; call `report` with the number done."""
    place = model.classifier.weight.device
    logits = torch.empty(len(ids), len(model.config.labels), dtype=torch.float32)
    training, done = model.training, 0
    model.eval()
    with torch.inference_mode(), autocast(precision, place):
        for batch in by_length([len(text) for text in ids], batch_size):
            padded, mask = pad([ids[i] for i in batch])
            mask = None if mask is None else mask.to(place)
            logits[batch] = model(padded.to(place), attention_mask=mask).float().cpu()
            done += len(batch)
            if report is not None:
                report(done)
    model.train(training)
    return logits


def predict(
    model: TextClassifier, texts: Sequence[str], *, report: Callable[[int], None] | None = None
) -> list[tuple[str, float]]:
    """Return the likeliest label of each text, and its probability."""
    probabilities = logits_of(model, [model.encode(text) for text in texts], report=report).softmax(-1)
    best, index = probabilities.max(-1)
    return [(model.config.labels[i], p) for i, p in zip(index.tolist(), best.tolist(), strict=True)]


def predictions_csv(texts: Sequence[str], predictions: Sequence[tuple[str, float]]) -> str:
    """Return texts with the labels and probabilities that `predict` returned, as CSV with a header.

    >>> predictions_csv(["a jib"], [("sail", 0.75)])
    'text,label,probability\\na jib,sail,0.7500\\n'
    """
    written = io.StringIO(newline="")
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["text", "label", "probability"])
    writer.writerows(
        [text, label, f"{probability:.4f}"] for text, (label, probability) in zip(texts, predictions, strict=True)
    )
    return written.getvalue()


def score(
    model: TextClassifier,
    run: Mapping[str, Any],
    train: Rows,
    validation: Rows | None,
    test: Rows,
    baseline: bool,
) -> dict[str, Any]:
    """Return the content of result.json: scores as fractions of 1, times in seconds, counts in rows.

    `confusion` lists [true class, predicted class, rows] off the diagonal, most rows first. Classes are indices into
    `classes`.
    """
    labels = list(model.config.labels)
    index = {label: i for i, label in enumerate(labels)}
    truth = np.array([index[label] for label in test.labels], dtype=np.int64)
    started = time.perf_counter()
    logits = logits_of(model, [model.encode(text) for text in test.texts])
    predicted = logits.argmax(-1).numpy()
    took = time.perf_counter() - started
    settings = run["settings"]
    result: dict[str, Any] = {
        "data": {
            "train_rows": len(train),
            "validation_rows": 0 if validation is None else len(validation),
            "test_rows": len(test),
            "test_texts_also_in_training": len(set(test.texts) & set(train.texts)),
            "train_sha256": run["sha256"]["text"][0],
            "test_sha256": sha256(test.path),
        },
        "training": {
            key: run[key] for key in ("parameters", "epochs_run", "best", "seconds", "cpu_seconds", "threads", "torch")
        }
        | {"processor": _processor(), "settings": _relative(settings)},
        "intervals": f"{CONFIDENCE:.0%} bootstrap percentile, {RESAMPLES} resamples of the test rows",
        "classes": labels,
    }
    counts = confusion_counts(truth, predicted, len(labels))
    [own] = bootstrap(truth, predicted, classes=len(labels))
    result["test"] = _with_intervals(scores_of(truth, predicted), own) | {"seconds": round(took, 2)}
    if baseline:
        labelled, facts = run_baseline(
            train, validation, test, labels, class_weights=settings["class_weights"], select=settings["select"]
        )
        result["baseline"], result["difference"] = _compared(truth, predicted, labelled, len(labels))
        result["baseline"] |= facts
    result["per_class"] = per_class(truth, predicted, labels)
    wrong = [(int(a), int(b), int(counts[a, b])) for a, b in np.argwhere(counts) if a != b]
    result["confusion"] = [list(cell) for cell in sorted(wrong, key=lambda cell: (-cell[2], cell))]
    return result


def _compared(truth: Classes, ours: Classes, theirs: Classes, classes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return another classifier's scores, and ours minus them, with intervals and McNemar's test."""
    _, other, difference = bootstrap(truth, ours, theirs, classes=classes)
    scores, own = scores_of(truth, theirs), scores_of(truth, ours)
    gained = {name: own[name] - scores[name] for name in SCORES}
    test = {"mcnemar": mcnemar(ours == truth, theirs == truth)}
    return _with_intervals(scores, other), _with_intervals(gained, difference) | test


def counts_of(result: Mapping[str, Any]) -> list[list[int]]:
    """Return the confusion matrix that a result describes, `[true][predicted]` in rows.

    >>> counts_of({"classes": ["a", "b"], "confusion": [[1, 0, 2]], "per_class": [{"rows": 3}, {"rows": 5}]})
    [[3, 0], [2, 3]]
    """
    size = len(result["classes"])
    counts = [[0] * size for _ in range(size)]
    for true, predicted, rows in result["confusion"]:
        counts[true][predicted] = rows
    for index, row in enumerate(counts):
        row[index] = result["per_class"][index]["rows"] - sum(row)
    return counts


def _with_intervals(scores: Mapping[str, float], intervals: Intervals) -> dict[str, Any]:
    return {name: {"value": value, "interval": list(intervals[name])} for name, value in scores.items()}


def _relative(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with only the file names of paths: a shared record names no folders."""
    names = ("data", "validation", "tokenizer")
    return {key: value.rpartition("/")[2] if key in names and value else value for key, value in settings.items()}


def _processor() -> str:
    return str(torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine())
