"""What a trained classifier is worth: its scores on test rows with intervals, beside a baseline's."""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ropewalk.atomic_io import sha256
from ropewalk.models.classifier import TextClassifier
from ropewalk.training.classification.baseline import run_baseline
from ropewalk.training.classification.dataset import Rows
from ropewalk.training.classification.metrics import (
    CONFIDENCE,
    RESAMPLES,
    SCORES,
    Classes,
    Intervals,
    bootstrap,
    confusion_counts,
    mcnemar,
    per_class,
    scores_of,
)
from ropewalk.training.classification.predict import logits_of


def score(
    models: Sequence[TextClassifier],
    run: Mapping[str, Any],
    train: Rows,
    validation: Rows | None,
    test: Rows,
    baseline: bool,
) -> dict[str, Any]:
    """The content of result.json: scores as fractions of 1, times in seconds, counts in rows.

    `models`: the one that was trained, and perhaps another one to compare it with.

    `confusion` lists [true class, predicted class, rows] off the diagonal, most rows first, by the classes' indices in
    `classes`.
    """
    labels = list(models[0].config.labels)
    index = {label: i for i, label in enumerate(labels)}
    truth = np.array([index[label] for label in test.labels], dtype=np.int64)
    started = time.perf_counter()
    predicted = _predicted(models[0], test, index)
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
        result["baseline"], result["difference"] = _beside(truth, predicted, labelled, len(labels))
        result["baseline"] |= facts
    for other in models[1:]:
        result["against"], result["difference_against"] = _beside(
            truth, predicted, _predicted(other, test, index), len(labels)
        )
        result["against"] |= {"model": "other classifier", "parameters": other.num_parameters()}
    result["per_class"] = per_class(truth, predicted, labels)
    wrong = [(int(a), int(b), int(counts[a, b])) for a, b in np.argwhere(counts) if a != b]
    result["confusion"] = [list(cell) for cell in sorted(wrong, key=lambda cell: (-cell[2], cell))]
    return result


def _predicted(model: TextClassifier, test: Rows, index: Mapping[str, int]) -> Classes:
    """The classes that a model gives the test rows, as `index` counts them."""
    own = np.array([index[label] for label in model.config.labels], dtype=np.int64)
    found: Classes = own[logits_of(model, [model.encode(text) for text in test.texts]).argmax(-1).numpy()]
    return found


def _beside(truth: Classes, ours: Classes, theirs: Classes, classes: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Another classifier's scores, and ours less them, paired by row, each with intervals and McNemar's exact test."""
    _, other, difference = bootstrap(truth, ours, theirs, classes=classes)
    scores, own = scores_of(truth, theirs), scores_of(truth, ours)
    gained = {name: own[name] - scores[name] for name in SCORES}
    test = {"mcnemar": mcnemar(ours == truth, theirs == truth)}
    return _with_intervals(scores, other), _with_intervals(gained, difference) | test


def counts_of(result: Mapping[str, Any]) -> list[list[int]]:
    """The confusion matrix that a result describes, `[true][predicted]` in rows.

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
    """The settings with file names alone: a record that is shared tells no folders."""
    names = ("data", "validation", "tokenizer")
    return {key: value.rpartition("/")[2] if key in names and value else value for key, value in settings.items()}


def _processor() -> str:
    return str(torch.cpu.get_capabilities().get("cpu_name") or platform.processor() or platform.machine())
