"""Class probabilities of texts, in batches of like length."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ropewalk.models.classifier import TextClassifier
from ropewalk.training.classification.batches import by_length, pad
from ropewalk.training.objective import autocast


def logits_of(
    model: TextClassifier,
    ids: Sequence[Sequence[int]],
    *,
    batch_size: int = 128,
    precision: str = "float32",
    report: Callable[[int], None] | None = None,
) -> Tensor:
    """Logits `[texts, labels]` of token ids, on the CPU, in order; `report` is called with the number done."""
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
    """The likeliest label of each text, and its probability."""
    probabilities = logits_of(model, [model.encode(text) for text in texts], report=report).softmax(-1)
    best, index = probabilities.max(-1)
    return [(model.config.labels[i], p) for i, p in zip(index.tolist(), best.tolist(), strict=True)]


def predictions_csv(texts: Sequence[str], predictions: Sequence[tuple[str, float]]) -> str:
    """Texts with the labels and probabilities that `predict` gave them, as CSV with a header.

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
