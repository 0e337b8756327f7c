"""examples/classifier.py on texts in which order decides: the classifier learns it, the linear model cannot."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from tests.examples.loading import example


def write_rows(path: Path, count: int, seed: int) -> str:
    """Write pairs of texts of five words with "rise" and "fall" exchanged; the label is the last of both."""
    draw = random.Random(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(count // 2):
            words = draw.sample(["Rise", "Fall", *draw.choices(["sea", "rope", "mast"], k=3)], 5)
            for one, other in (("Rise", "Fall"), ("Fall", "Rise")):
                text = " ".join({"Rise": one, "Fall": other}.get(word, word) for word in words)
                writer.writerow([text, "rise" if text.find("Rise") > text.find("Fall") else "fall"])
    return str(path)


@pytest.mark.thorough
def test_order_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scores with intervals, in the record and on screen; the folder loads and labels a text."""
    out = tmp_path / "model"
    record = example("classifier").main([
        "--data", write_rows(tmp_path / "train.csv", 800, 0), "--test", write_rows(tmp_path / "test.csv", 200, 1),
        "--hidden", "32", "--heads", "2", "--vocab-size", "270", "--epochs", "4", "--batch-size", "16",
        "--dropout", "0", "--token-dropout", "0", "--lr", "5e-3", "--out", str(out),
    ])  # fmt: skip
    assert json.loads(json.dumps(record)) == json.loads((out / "scores.json").read_text())
    assert record["classifier"]["accuracy"] > 0.95
    assert record["linear"]["accuracy"] == 0.5
    gain = record["classifier"]["accuracy"] - record["linear"]["accuracy"]
    assert record["difference"]["accuracy"] == pytest.approx(gain)
    assert record["difference"]["interval"][0] < gain < record["difference"]["interval"][1]
    assert (record["classes"], record["train_rows"], record["test_rows"]) == (2, 800, 200)
    assert f"classifier {record['classifier']['accuracy']:.3f}" in capsys.readouterr().out
    model = rw.load(out)
    for text, label in (("sea rise rope fall mast", "fall"), ("fall sea rise rope mast", "rise")):
        assert model.config.labels[model(torch.tensor([model.encode(text)])).argmax()] == label


def test_the_best_epoch_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of the epoch with the highest accuracy on held-out rows, not the last."""
    script = example("classifier")
    model = script.LinearModel(9, 2)
    labels, held_out = torch.tensor([0, 1] * 20), torch.arange(40) < 10
    accuracies, seen = iter([0.5, 0.9, 0.7]), []

    def predicted(one: torch.nn.Module, texts: object) -> torch.Tensor:
        seen.append(one.weights.weight.detach().clone())
        right = labels[held_out].clone()
        right[: round(10 * (1 - next(accuracies)))] -= 1
        return right

    monkeypatch.setattr(script, "predicted", predicted)
    given = type("Given", (), {"batch_size": 8, "epochs": 3, "lr": 0.1, "seed": 0, "token_dropout": 0.1})
    curve = script.train(model, [[1 + label, 3, 4] for label in labels.tolist()], labels, held_out, given)
    assert curve == pytest.approx([0.5, 0.9, 0.7])
    assert torch.equal(model.weights.weight, seen[1])
    assert not torch.equal(model.weights.weight, seen[2])
