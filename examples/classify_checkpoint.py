"""Classify texts with a pretrained language model: logistic regression on its features, then LoRA if you want it.

    python examples/classify_checkpoint.py --model FOLDER --data train.csv --test test.csv
    python examples/classify_checkpoint.py --model FOLDER --data train.csv --test test.csv --tune --out OUT

The CSV files have the columns `text` and `label`. Needs transformers and scikit-learn; --tune needs peft. Layer and
regularisation are chosen by cross-validation over the training rows. The test rows are scored once, next to TF-IDF with
logistic regression.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

SHARES = (0.4, 0.5, 0.6, 0.7)  # how deep the layers lie that are tried, as a fraction of the model
STRENGTHS = (0.001, 0.01, 0.1)  # scikit-learn's C, on standardised features


def read_rows(path: str) -> tuple[list[str], list[str]]:
    """Return the texts and the labels of a CSV file."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row["text"].strip() for row in rows], [row["label"].strip() for row in rows]


def pooled(model: nn.Module, batch: Any, layers: Sequence[int]) -> Tensor:
    """Return the mean state of each text after each layer, `[layers, texts, hidden]`, float32.

    Each token's state is first divided by its root mean square, so that large tokens do not dominate the mean.
    """
    states = model(**batch, output_hidden_states=True, use_cache=False).hidden_states
    mask = batch["attention_mask"][:, :, None]
    return torch.stack([(F.rms_norm(states[i].float(), states[i].shape[-1:]) * mask).sum(1) / mask.sum(1)
                        for i in layers])  # fmt: skip


def batches(tokenizer: Any, texts: Sequence[str], order: Sequence[int], size: int, length: int, device: str) -> Any:
    """Yield (indices, tokens) of `size` texts at a time, padded on the right."""
    for start in range(0, len(order), size):
        rows = list(order[start : start + size])
        tokens = tokenizer([texts[i] for i in rows], padding=True, truncation=True, max_length=length,
                           return_tensors="pt", return_token_type_ids=False)  # fmt: skip
        yield rows, tokens.to(device)


@torch.inference_mode()
def features(model: Any, tokenizer: Any, texts: Sequence[str], layers: Sequence[int], given: Any) -> np.ndarray:
    """Return the pooled states of all texts, `[layers, texts, hidden]`; texts of like length share a batch."""
    found = torch.empty(len(layers), len(texts), model.config.get_text_config().hidden_size)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for rows, tokens in batches(tokenizer, texts, order, given.batch_size, given.max_length, given.device):
        found[:, rows] = pooled(model, tokens, layers).cpu()
    return found.numpy()


def fit_head(found: np.ndarray, labels: Sequence[str]) -> tuple[int, Any]:
    """Return the index of the best layer and a regression fitted on all rows, both chosen by cross-validation."""
    searches = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # regressions that have not converged after 300 iterations
        for matrix in found:
            model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))
            searches.append(GridSearchCV(model, {"logisticregression__C": STRENGTHS}, cv=3).fit(matrix, labels))
    best = max(range(len(searches)), key=lambda i: searches[i].best_score_)
    return best, searches[best].best_estimator_


class Head(nn.Module):
    """The fitted regression as a module: standardised features and a linear layer."""

    def __init__(self, fitted: Any) -> None:
        super().__init__()
        scaler, regression = fitted[0], fitted[1]
        weight, bias = regression.coef_, regression.intercept_
        if len(weight) == 1:  # for two classes scikit-learn keeps the difference
            weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
        self.register_buffer("center", torch.tensor(scaler.mean_, dtype=torch.float32))
        self.register_buffer("spread", torch.tensor(scaler.scale_, dtype=torch.float32))
        self.linear = nn.Linear(weight.shape[1], weight.shape[0])
        with torch.no_grad():
            self.linear.weight.copy_(torch.from_numpy(weight))
            self.linear.bias.copy_(torch.from_numpy(bias))

    def forward(self, states: Tensor) -> Tensor:
        """Return logits `[texts, classes]`."""
        return self.linear((states - self.center) / self.spread)


def tune(model: Any, head: Head, tokenizer: Any, rows: Any, classes: list[str], layer: int, given: Any) -> Any:
    """Train LoRA adapters and the head; return the adapted model with the weights of the best epoch.

    A tenth of the rows is kept out to choose the epoch. The untuned model counts as epoch 0.
    """
    from peft import LoraConfig, get_peft_model

    texts, labels = rows
    target = torch.tensor([classes.index(label) for label in labels])
    fitted, held_out = train_test_split(range(len(texts)), test_size=0.1, random_state=given.seed, stratify=labels)
    read = [
        name
        for name, each in model.named_modules()
        if isinstance(each, nn.Linear) and (number := re.search(r"\b(\d+)\.", name)) and int(number[1]) < layer
    ]  # the linear modules of the layers below the head
    config = LoraConfig(r=given.rank, lora_alpha=2 * given.rank, target_modules=read)
    model = get_peft_model(model, config)
    trained = [weight for part in (model, head) for weight in part.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=given.lr)

    def accuracy() -> float:
        found = features(model, tokenizer, [texts[i] for i in held_out], [layer], given)[0]
        with torch.inference_mode():
            right = head(torch.from_numpy(found).to(given.device)).argmax(-1).cpu() == target[list(held_out)]
        return float(right.float().mean())

    def weights() -> list[Tensor]:
        return [weight.detach().clone() for weight in trained]

    best, kept = accuracy(), weights()
    for epoch in range(1, given.epochs + 1):
        order = [fitted[i] for i in torch.randperm(len(fitted)).tolist()]
        for chosen, tokens in batches(tokenizer, texts, order, given.batch_size, given.max_length, given.device):
            logits = head(pooled(model, tokens, [layer])[0])
            F.cross_entropy(logits, target[chosen].to(given.device)).backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        reached = accuracy()
        print(f"epoch {epoch}: validation accuracy {reached:.3f}")
        if reached > best:
            best, kept = reached, weights()
    with torch.no_grad():
        for weight, value in zip(trained, kept, strict=True):
            weight.copy_(value)
    return model


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Fit, tune if asked, score, and save; return what is printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder or a name on the hub")
    parser.add_argument("--data", required=True, help="CSV file to train on")
    parser.add_argument("--test", required=True, help="CSV file to score on")
    parser.add_argument("--out", help="a folder for the head, the adapters and the scores")
    parser.add_argument("--tune", action="store_true", help="train LoRA adapters after the head")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)

    torch.manual_seed(given.seed)
    (texts, labels), (test_texts, test_labels) = read_rows(given.data), read_rows(given.test)
    tokenizer = AutoTokenizer.from_pretrained(given.model, padding_side="right")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModel.from_pretrained(given.model, dtype=torch.float32).to(given.device).eval()
    depth = model.config.get_text_config().num_hidden_layers
    layers = sorted({max(1, round(depth * share)) for share in SHARES})
    place, fitted = fit_head(features(model, tokenizer, texts, layers, given), labels)
    classes, layer, head = fitted.classes_.tolist(), layers[place], Head(fitted).to(given.device)
    if given.tune:
        model = tune(model, head, tokenizer, (texts, labels), classes, layer, given)

    found = features(model, tokenizer, test_texts, [layer], given)[0]
    with torch.inference_mode():
        predicted = head(torch.from_numpy(found).to(given.device)).argmax(-1).tolist()
    baseline = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10.0))
    result = {
        "accuracy": float(np.mean([classes[i] == label for i, label in zip(predicted, test_labels, strict=True)])),
        "tf_idf": float(baseline.fit(texts, labels).score(test_texts, test_labels)),
        "layer": layer,
        "classes": classes,
    }
    print(f"accuracy {result['accuracy']:.3f}, TF-IDF {result['tf_idf']:.3f}, states after layer {layer} of {depth}")
    if given.out is not None:
        out = Path(given.out)
        out.mkdir(parents=True, exist_ok=True)
        save_file({name: each.cpu().contiguous() for name, each in head.state_dict().items()}, out / "head.safetensors")
        (out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        if given.tune:
            model.save_pretrained(out / "adapter")
    return result


if __name__ == "__main__":
    main()
