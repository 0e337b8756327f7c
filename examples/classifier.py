"""Train a text classifier from scratch on a CSV file, and score it on another, next to a linear model:

    python examples/classifier.py --data train.csv --test test.csv --out model

The columns are `text` and `label`. The classifier is a bidirectional encoder with any position encoding. A twentieth of
the rows is held out to choose the epoch. The linear model is a weight for each token and class: it counts tokens and
ignores their order. It has the same tokens, rows and updates. The record is OUT/scores.json. To label texts later:

    model = rw.load("model")
    model.config.labels[model(torch.tensor([model.encode(text)])).argmax()]
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import normalizers
from torch import Tensor, nn

import ropewalk as rw
from ropewalk.checkpoints.load import save
from ropewalk.models.training import fit
from ropewalk.statistics import mean_and_interval
from ropewalk.tokenizer import TextTokenizer


class LinearModel(nn.Module):
    """The mean over a text's tokens of a weight for each class."""

    def __init__(self, vocab_size: int, labels: int) -> None:
        super().__init__()
        self.weights = nn.Embedding(vocab_size, labels)
        nn.init.zeros_(self.weights.weight)

    def forward(self, ids: Tensor, *, attention_mask: Tensor) -> Tensor:
        """Return logits `[batch, labels]`, scaled so that one rare token can decide."""
        real = attention_mask[:, :, None]
        return 30.0 * (self.weights(ids) * real).sum(1) / real.sum(1)


def read_rows(path: str, text: str, label: str) -> tuple[list[str], list[str]]:
    """Return the texts and the labels of a CSV file."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row[text] for row in rows], [row[label].strip() for row in rows]


def make_tokenizer(texts: Sequence[str], vocab_size: int) -> TextTokenizer:
    """Return a tokenizer that folds case and puts a space before a text, so that a first word is like any other."""
    normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Prepend(" ")])
    tokenizer = TextTokenizer.train([normalizer.normalize_str(text.strip()) for text in texts], vocab_size)
    tokenizer.tokenizer.normalizer = normalizer
    return tokenizer


def padded(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return token ids and their mask, `[texts, longest]`, padded on the right."""
    ids = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    lengths = torch.tensor([len(text) for text in texts])
    return ids, torch.arange(ids.shape[1]) < lengths[:, None]


@torch.inference_mode()
def predicted(model: nn.Module, texts: Sequence[Sequence[int]]) -> Tensor:
    """Return the index of each text's likeliest label."""
    model.eval()
    parts = [padded(texts[i : i + 128]) for i in range(0, len(texts), 128)]
    return torch.cat([model(ids, attention_mask=mask).argmax(-1) for ids, mask in parts])


def train(model: nn.Module, texts: list[list[int]], labels: Tensor, held_out: Tensor, given: Any) -> list[float]:
    """Train, leave the weights of the best epoch in the model, and return the accuracy on held-out rows by epoch."""
    rows = (~held_out).nonzero()[:, 0]
    per_epoch = -(-len(rows) // given.batch_size)
    order, best, kept, curve = torch.Generator().manual_seed(given.seed), -1.0, {}, []
    shuffled: list[Tensor] = []

    def loss(step: int) -> Tensor:
        if step % per_epoch == 0:
            shuffled[:] = rows[torch.randperm(len(rows), generator=order)].split(given.batch_size)
        batch = shuffled[step % per_epoch]
        ids, mask = padded([texts[i] for i in batch])
        mask &= torch.rand(mask.shape) >= given.token_dropout
        mask[:, 0] = True
        return F.cross_entropy(model.train()(ids, attention_mask=mask), labels[batch], label_smoothing=0.1)

    def after(step: int, nats: float) -> None:
        nonlocal best, kept
        if step % per_epoch == 0:
            right = predicted(model, [texts[i] for i in held_out.nonzero()[:, 0]]) == labels[held_out]
            curve.append(round(float(right.float().mean()), 4))
            print(f"{type(model).__name__}, epoch {len(curve)}: loss {nats:.3f}, held out {curve[-1]:.3f}", flush=True)
            if curve[-1] > best:
                best, kept = curve[-1], {name: weight.clone() for name, weight in model.state_dict().items()}

    fit(model, loss, steps=given.epochs * per_epoch, lr=given.lr, final_lr=0.01, betas=(0.9, 0.98), after=after)
    model.load_state_dict(kept)
    return curve


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Train both models, score them, write the classifier, and return the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="CSV file to train on")
    parser.add_argument("--test", required=True, help="CSV file to score on")
    parser.add_argument("--text-column", default="text")
    parser.add_argument("--label-column", default="label")
    parser.add_argument("--encoding", default="rope", help="a name of `ropewalk.encodings`")
    parser.add_argument("--pooling", default="mean", choices=["mean", "first"], help="first: the [CLS] of BERT")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--heads", type=int, default=3)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--token-dropout", type=float, default=0.1, help="share of the tokens that an update ignores")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    if given.out.exists():
        parser.error(f"{given.out} exists")

    texts, names = read_rows(given.data, given.text_column, given.label_column)
    test_texts, test_names = read_rows(given.test, given.text_column, given.label_column)
    classes = tuple(sorted(set(names)))
    labels, truth = (torch.tensor([classes.index(name) for name in part]) for part in (names, test_names))
    tokenizer = make_tokenizer(texts, given.vocab_size)
    torch.manual_seed(given.seed)
    held_out = torch.rand(len(texts)) < 0.05
    model = rw.TextClassifier(rw.models.TextClassifierConfig(
        vocab_size=tokenizer.vocab_size, labels=classes, hidden_size=given.hidden, num_hidden_layers=given.layers,
        intermediate_size=-(-given.hidden * 8 // 96) * 32, num_attention_heads=given.heads, encoding=given.encoding,
        pooling=given.pooling, dropout=given.dropout, initializer_range=0.04, embedding_range=0.3,
    ))  # fmt: skip
    model.tokenizer = tokenizer
    encode: Callable[[str], list[int]] = model.encode
    rows, test_rows = [encode(text) for text in texts], [encode(text) for text in test_texts]
    right, record = {}, dict[str, Any]()
    for name, one in (("classifier", model), ("linear", LinearModel(tokenizer.vocab_size, len(classes)))):
        started = time.process_time()
        curve = train(one, rows, labels, held_out, given)
        right[name] = (predicted(one, test_rows) == truth).double().tolist()
        accuracy, interval = mean_and_interval(right[name])
        record[name] = {
            "accuracy": accuracy, "interval": interval, "held_out_by_epoch": curve,
            "parameters": sum(weight.numel() for weight in one.parameters()),
            "cpu_seconds": round(time.process_time() - started, 1),
        }  # fmt: skip
    gain, interval = mean_and_interval([a - b for a, b in zip(*right.values(), strict=True)])
    settings = {name: value for name, value in vars(given).items() if name not in ("data", "test", "out")}
    record |= {
        "difference": {"accuracy": gain, "interval": interval}, "classes": len(classes), "train_rows": len(rows),
        "test_rows": len(test_rows), "data": [Path(path).name for path in (given.data, given.test)],
        "settings": settings, "threads": torch.get_num_threads(),
        "ropewalk": rw.__version__, "torch": torch.__version__,
    }  # fmt: skip
    save(model, given.out)
    (given.out / "scores.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    for name in ("classifier", "linear", "difference"):
        low, high = record[name]["interval"]
        print(f"{name:10} {record[name]['accuracy']:.3f} ({low:.3f} to {high:.3f})")
    return record


if __name__ == "__main__":
    main()
