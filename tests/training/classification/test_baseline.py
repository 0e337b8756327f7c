"""The baseline: it is what it says, it has the validation rows, and small classes do not stop it."""

from __future__ import annotations

import numpy as np
import pytest

from ropewalk.training.classification.baseline import run_baseline
from ropewalk.training.classification.dataset import Rows, split
from tests.training.classification.material import texts


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
