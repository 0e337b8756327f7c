"""Train a text classifier: early stopping, the best weights, predictions and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.atomic_io import read_json, sha256, write_json
from ropewalk.checkpoints.load import load_classifier, save
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.models.classifier import TextClassifier
from ropewalk.models.prompts import Tokenizer
from ropewalk.optional import need
from ropewalk.training.classification.dataset import (
    Rows,
    balanced_weights,
    check_known,
    classes_of,
    epoch_order,
    leave_out,
    pad,
    read_rows,
    split,
)
from ropewalk.training.classification.score import logits_of, score, scores_of
from ropewalk.training.classification.settings import ClassifySettings
from ropewalk.training.language_model import make_tokenizer
from ropewalk.training.loop import Run, TrainingTask
from ropewalk.training.objective import autocast
from ropewalk.training.run_folder import RunFolder, read_tensors, write_tensors
from ropewalk.training.settings import Event, Housekeeping, Report


def text_tokenizer(settings: ClassifySettings, texts: Sequence[str]) -> TextTokenizer:
    """Return the tokenizer of the settings, trained on the texts if it is "bpe".

    A trained tokenizer adds a space before the text, so the first word has the same token as elsewhere, and folds case
    if `lowercase` is set. tokenizer.json contains both rules.
    """
    if settings.tokenizer != "bpe":
        return make_tokenizer(settings, texts)
    normalizers = need("tokenizers").normalizers
    fold = [normalizers.Lowercase()] if settings.lowercase else []
    normalizer = normalizers.Sequence([*fold, normalizers.Prepend(" ")])
    tokenizer = make_tokenizer(settings, [normalizer.normalize_str(text) for text in texts])
    tokenizer.tokenizer.normalizer = normalizer
    return tokenizer


CHECKPOINT_MINUTES = 2.0
WEIGHTS, BEST = "model.safetensors", "best.safetensors"


class ClassifierTask:
    """The training of one classifier; `ropewalk.training.loop.TrainingTask` describes the methods.

    `test` is a file to score on when the run is finished. It is opened with the other files, so an invalid file raises
    before any training.
    """

    tokenizer: Tokenizer
    model: TextClassifier

    def __init__(self, settings: ClassifySettings, test: str | Path | None = None) -> None:
        self.settings, self._test_file = settings, test
        self.validation: Rows | None = None
        self.test: Rows | None = None
        self.best: dict[str, Any] | None = None
        """Epoch, rank and scores of the best epoch so far."""
        self.best_weights: dict[str, Tensor] = {}
        self.ended = False
        self._order: tuple[int, list[list[int]]] = (-1, [])

    @property
    def files(self) -> Mapping[str, tuple[str, ...]]:
        validation = self.settings.validation
        return {"text": (self.settings.data,), "validation": () if validation is None else (validation,)}

    @property
    def accumulation(self) -> int:
        return 1

    @property
    def validates(self) -> bool:
        return self.validation is not None

    @property
    def updates_per_epoch(self) -> int:
        """Return the number of batches of one epoch."""
        return -(-len(self.train) // self.settings.batch_size)

    @property
    def steps(self) -> int:
        return self.settings.epochs * self.updates_per_epoch

    @property
    def housekeeping(self) -> Housekeeping:
        """Log and validate after each epoch; write checkpoints after some minutes and at the end."""
        return Housekeeping(
            log_every=self.updates_per_epoch,
            validate_every=self.updates_per_epoch,
            checkpoint_every=max(1, self.steps),
            checkpoint_minutes=CHECKPOINT_MINUTES,
        )

    def read(self) -> None:
        settings = self.settings
        columns = {"text_column": settings.text_column, "label_column": settings.label_column}
        self.train = read_rows(settings.data, **columns)
        self.labels = classes_of(self.train)
        if settings.validation is not None:
            self.validation = read_rows(settings.validation, **columns)
            check_known(self.validation, self.labels, settings.data)
        elif settings.validation_fraction > 0:
            self.train, self.validation = split(self.train, settings.validation_fraction, settings.seed)
        if self._test_file is not None:
            self.test = read_rows(self._test_file, **columns)
            check_known(self.test, self.labels, settings.data)
        if self.validates or self.test is not None:
            need("sklearn.metrics", extra="classify")  # raises now, not after the first epoch

    def build(self, folder: Path, *, begun: bool) -> None:
        settings = self.settings
        self.tokenizer = TextTokenizer.from_folder(folder) if begun else text_tokenizer(settings, self.train.texts)
        torch.manual_seed(settings.seed)
        model = TextClassifier(settings.config(self.labels, self.tokenizer.vocab_size))
        model.tokenizer = self.tokenizer
        self.model = model.to(settings.device).train()
        self.ids, self.targets = self._encoded(self.train)
        self.lengths = [len(ids) for ids in self.ids]
        if self.validation is not None:
            self.held_out_ids, self.held_out_targets = self._encoded(self.validation)
        self.class_weights: Tensor | None = None
        if settings.class_weights == "balanced":
            self.class_weights = torch.tensor(balanced_weights(self.train.labels, self.labels), device=settings.device)

    def _encoded(self, rows: Rows) -> tuple[list[list[int]], Tensor]:
        """Return the token ids of each text, and the indices of their classes, int64 `[rows]`."""
        index = {label: i for i, label in enumerate(self.labels)}
        targets = torch.tensor([index[label] for label in rows.labels], dtype=torch.int64)
        return [self.model.encode(text) for text in rows.texts], targets

    def run_facts(self) -> dict[str, Any]:
        return {
            "task": "classify",
            "train_rows": len(self.train),
            "validation_rows": 0 if self.validation is None else len(self.validation),
            "classes": len(self.labels),
            "cut": sum(length >= self.settings.max_length for length in self.lengths),
            "parameters": self.model.num_parameters(),
        }

    def loss(self, step: int, part: int) -> Tensor:
        settings = self.settings
        batch = self._batch(step)
        ids, mask = pad(leave_out([self.ids[i] for i in batch], settings.token_dropout))
        mask = None if mask is None else mask.to(settings.device)
        with autocast(settings.precision, torch.device(settings.device)):
            logits = self.model(ids.to(settings.device), attention_mask=mask)
        return self._mean_loss(logits.float(), self.targets[batch].to(settings.device), settings.label_smoothing)

    def _batch(self, step: int) -> list[int]:
        """Return the rows of one update."""
        epoch, place = divmod(step, self.updates_per_epoch)
        if self._order[0] != epoch:
            order = epoch_order(self.lengths, self.settings.batch_size, seed=self.settings.seed, epoch=epoch)
            self._order = epoch, order
        return self._order[1][place]

    def _mean_loss(self, logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        losses = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
        if self.class_weights is None:
            return losses.mean()
        # by row: torch's own `weight` also weighs the smoothed part of every target, which favours rare classes
        return (losses * self.class_weights.to(logits.device)[targets]).mean()

    def progress(self, step: int) -> dict[str, Any]:
        return {"epoch": step // self.updates_per_epoch}

    def speed(self, updates: int, seconds: float) -> dict[str, float]:
        return {}

    def validate(self, step: int) -> dict[str, Any]:
        """Score the validation rows; keep the weights if they are the best so far, and decide whether to end."""
        logits = logits_of(self.model, self.held_out_ids, precision=self.settings.precision)
        predicted = logits.argmax(-1).numpy()
        scores = {
            "loss": float(self._mean_loss(logits, self.held_out_targets)),
            **scores_of(self.held_out_targets.numpy(), predicted),
        }
        rank, epoch = self._rank(scores), step // self.updates_per_epoch
        is_best = self.best is None or rank > tuple(self.best["rank"])
        if is_best:
            self.best = {"epoch": epoch, "rank": rank, **scores}
            self.best_weights = {
                name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()
            }
        assert self.best is not None
        self.ended = epoch - self.best["epoch"] >= self.settings.patience
        return {f"validation_{name}": value for name, value in scores.items()} | {"best": is_best}

    def _rank(self, scores: Mapping[str, float]) -> tuple[float, float]:
        """Return the rank of an epoch, higher is better: by the score `select`, then by the loss."""
        first = -scores["loss"] if self.settings.select == "loss" else scores[self.settings.select]
        return first, -scores["loss"]

    def rotations(self) -> list[str]:
        """Return nothing: the settings determine a classifier's positions."""
        return []

    def carried(self) -> dict[str, Any]:
        return {"best": self.best, "ended": self.ended}

    def restore(self, carried: Mapping[str, Any]) -> None:
        self.best, self.ended = carried["best"], carried["ended"]

    def write_weights(self, folder: Path) -> None:
        """Write the current and the best weights."""
        write_tensors(folder / WEIGHTS, self.model.state_dict())
        if self.best_weights:
            write_tensors(folder / BEST, self.best_weights)

    def read_weights(self, folder: Path) -> None:
        self.model.load_state_dict(read_tensors(folder / WEIGHTS))
        if (folder / BEST).is_file():
            self.best_weights = read_tensors(folder / BEST)

    def write_model(self, folder: Path) -> None:
        """Write the best weights; without validation, the last."""
        if self.best_weights:
            self.model.load_state_dict(self.best_weights)
        save(self.model, folder)

    def outcome(self, step: int) -> dict[str, Any]:
        best = self.best and {key: value for key, value in self.best.items() if key != "rank"}
        return {"epochs_run": step // self.updates_per_epoch, "best": best}


RESULT = "result.json"


def train_classifier(
    settings: ClassifySettings,
    out: str | Path,
    *,
    test: str | Path | None = None,
    baseline: bool = True,
    resume: bool = False,
    restart: bool = False,
    report: Report | None = None,
) -> dict[str, Any] | None:
    """Train a classifier, or resume the run in `out`; if `test` is given, score it, and return the result.

    **Arguments:**
    - `out`: the run's folder. A run with equal settings in it is resumed from its last checkpoint, to the same bits as
      one that was never stopped (same machine and threads). When the run is finished, `ropewalk.load` loads it.
    - `test`: a CSV file with the same columns. The scores are written to result.json and returned.
    - `baseline`: also score TF-IDF and logistic regression (scikit-learn) on the same rows.
    - `resume`: raise `RopeError` if there is no run to resume. `restart`: discard the run in `out` first.
    - `report`: called with each `ropewalk.training.Event`.

    **Raises:** `RopeError` for invalid files or settings, for a run with other settings in `out`, and if the loss or a
    gradient is not finite. Ctrl-C writes a checkpoint and raises KeyboardInterrupt.
    """
    folder = RunFolder(out, results=(RESULT,))
    report = report or (lambda event: None)
    with folder.locked(), torch.random.fork_rng():
        task = ClassifierTask(settings.on_this_machine(), test)
        run = Run(cast(TrainingTask, task), folder, report)
        unfinished = run.prepare(resume=resume, restart=restart)
        if unfinished:
            run.train()
            run.finish()
        result = None if task.test is None else _scored(run, task, baseline, report)
        report(Event("done", run.step, task.steps, {"out": str(folder.path), "already": not unfinished}))
    return result


def _scored(run: Run, task: ClassifierTask, baseline: bool, report: Report) -> dict[str, Any]:
    """Return the scores on the test rows, from result.json if it contains those of the same file."""
    assert task.test is not None
    path = run.folder.path / RESULT
    result = read_json(path) if path.is_file() else None
    asked = {"sha256": sha256(task.test.path), "baseline": baseline}
    if result is None or result["asked"] != asked:
        report(Event("score", run.step, task.steps, {"rows": len(task.test)}))
        model = load_classifier(run.folder.path)
        result = {"asked": asked, **score(model, run.record, task.train, task.validation, task.test, baseline)}
        write_json(path, result)
    return result
