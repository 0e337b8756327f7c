"""Class probabilities of texts, in batches of like length."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ropewalk.classification.batches import by_length, pad
from ropewalk.models.classifier import TextClassifier
from ropewalk.training.objective import autocast


def logits_of(
    model: TextClassifier,
    ids: Sequence[Sequence[int]],
    *,
    batch_size: int = 128,
    precision: str = "float32",
    report: Callable[[int], None] | None = None,
) -> Tensor:
    """Logits `[texts, labels]` of token ids, on the CPU, in the order given; `report` is told how many are done."""
    place = model.classifier.weight.device
    found = torch.empty(len(ids), len(model.config.labels), dtype=torch.float32)
    training, done = model.training, 0
    model.eval()
    with torch.inference_mode(), autocast(precision, place):
        for batch in by_length([len(text) for text in ids], batch_size):
            padded, mask = pad([ids[i] for i in batch])
            mask = None if mask is None else mask.to(place)
            found[batch] = model(padded.to(place), attention_mask=mask).float().cpu()
            done += len(batch)
            if report is not None:
                report(done)
    model.train(training)
    return found


def predict(
    model: TextClassifier, texts: Sequence[str], *, report: Callable[[int], None] | None = None
) -> list[tuple[str, float]]:
    """The likeliest label of each text, and its probability."""
    probabilities = logits_of(model, [model.encode(text) for text in texts], report=report).softmax(-1)
    best, index = probabilities.max(-1)
    return [(model.config.labels[i], p) for i, p in zip(index.tolist(), best.tolist(), strict=True)]
