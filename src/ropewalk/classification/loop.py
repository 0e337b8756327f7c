"""The training loop of a classifier: updates, validation after each epoch, early stopping, checkpoints."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ropewalk.classification.batches import epoch_order, leave_out, pad
from ropewalk.classification.clock import Clock
from ropewalk.classification.dataset import Rows, balanced_weights, check_known, classes_of, read_rows, split
from ropewalk.classification.folder import ClassifierFolder, Weights, snapshot
from ropewalk.classification.metrics import accuracy, confusion_counts, macro_f1
from ropewalk.classification.predict import logits_of
from ropewalk.classification.score import score
from ropewalk.classification.settings import ClassifySettings
from ropewalk.classification.tokenizers import text_tokenizer
from ropewalk.errors import RopeError
from ropewalk.models.classifier import TextClassifier
from ropewalk.models.tokenizer import TextTokenizer
from ropewalk.training.events import Event, Report
from ropewalk.training.interrupt import polite_interrupt
from ropewalk.training.objective import autocast
from ropewalk.training.optimizer import make_optimizer
from ropewalk.training.resume import sha256
from ropewalk.training.schedule import learning_rate

CHECKPOINT_MINUTES = 2.0
KEEP = 2


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
    """Train a classifier, or go on with the run that `out` holds; with `test` score it, and return the result.

    - `out`: the run's folder; a run with equal settings in it is continued from its last checkpoint, to the same bits
      as one that was never stopped (same machine and threads). In the end `TextClassifier.load` reads it.
    - `test`: a CSV file with the same columns; the scores are written to result.json and returned. `baseline`: score
      TF-IDF and logistic regression (scikit-learn) on the same rows beside it.
    - `resume`: insist that there is a run to continue. `restart`: throw the run in `out` away first.
    - `report`: is told what happens; see `ropewalk.training.Event`.

    Ctrl-C writes a checkpoint and raises KeyboardInterrupt. Raises `RopeError` for bad files or settings, for a run
    with other settings in `out`, and where the loss or a gradient is not finite.
    """
    folder = ClassifierFolder(out)
    tell: Report = report or (lambda event: None)
    with folder.run.locked(), torch.random.fork_rng():
        run = _Run(settings.on_this_machine(), folder, tell)
        run.read(test)
        if run.prepare(resume=resume, restart=restart):
            run.trained_now = True
            run.go()
            run.finish()
        return run.scored(test, baseline)


class _Run:
    """One run: its rows, model, optimizer and place on disk."""

    def __init__(self, settings: ClassifySettings, folder: ClassifierFolder, tell: Report) -> None:
        self.settings, self.folder, self.tell = settings, folder, tell
        self.step, self.loss_sum, self.loss_count = 0, 0.0, 0
        self.clock = Clock()
        self.best: dict[str, Any] | None = None
        self.best_weights: Weights = {}
        self.ended = self.trained_now = False

    def read(self, test: str | Path | None) -> None:
        """Read and check the files: everything that can be refused is refused before anything is trained."""
        settings = self.settings
        columns = {"text_column": settings.text_column, "label_column": settings.label_column}
        self.train = read_rows(settings.data, **columns)
        self.labels = classes_of(self.train)
        self.validation: Rows | None = None
        if settings.validation is not None:
            self.validation = read_rows(settings.validation, **columns)
            check_known(self.validation, self.labels, settings.data)
        elif settings.validation_fraction > 0:
            self.train, self.validation = split(self.train, settings.validation_fraction, settings.seed)
        self.test: Rows | None = None
        if test is not None:
            self.test = read_rows(test, **columns)
            check_known(self.test, self.labels, settings.data)

    def prepare(self, *, resume: bool, restart: bool) -> bool:
        """Find or begin the run, build the model; False where it is trained already."""
        settings, folder = self.settings, self.folder
        files = [settings.data], [settings.validation] if settings.validation is not None else []
        asked = {
            "settings": settings.to_json(),
            "sha256": {"text": [sha256(path) for path in files[0]], "validation": [sha256(path) for path in files[1]]},
        }
        begun = folder.run.find(asked, resume=resume, restart=restart)
        if begun is not None and begun.get("finished"):
            self.run = begun
            return False
        folder.run.remove_leftovers()
        if begun is None:
            self.tokenizer = text_tokenizer(settings, self.train.texts)
        else:
            self.tokenizer = TextTokenizer.from_folder(folder.path)
        self._prepare_model()
        self._prepare_data()
        if begun is None:
            if restart:
                folder.clear()  # not before everything that could be refused has been accepted
            self.tokenizer.save(folder.path)
            self.run = {
                **asked,
                "task": "classify",
                "train_rows": len(self.train),
                "validation_rows": 0 if self.validation is None else len(self.validation),
                "classes": len(self.labels),
                "parameters": self.model.num_parameters(),
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "finished": False,
            }
            folder.run.begin(self.run)
        else:
            self.run = begun
        checkpoints = folder.run.checkpoints()
        if checkpoints:
            state, self.best_weights = folder.read_checkpoint(checkpoints[-1], self.model, self.optimizer)
            self.step, self.best = state["step"], state["best"]
            self.clock = Clock(state["seconds"], state["cpu_seconds"])
            self.loss_sum, self.loss_count, self.ended = state["loss_sum"], state["loss_count"], state["ended"]
        folder.run.cut_log(self.step if checkpoints else -1)
        return True

    def _prepare_model(self) -> None:
        torch.manual_seed(self.settings.seed)
        model = TextClassifier(self.settings.config(self.labels, self.tokenizer.vocab_size))
        model.tokenizer = self.tokenizer
        self.model = model.to(self.settings.device).train()
        self.optimizer = make_optimizer(self.model, self.settings)

    def _prepare_data(self) -> None:
        settings = self.settings
        index = {label: i for i, label in enumerate(self.labels)}
        self.ids = [self.model.encode(text) for text in self.train.texts]
        self.targets = torch.tensor([index[label] for label in self.train.labels])
        held_out = self.validation
        self.held_ids = [self.model.encode(text) for text in held_out.texts] if held_out else []
        self.held_targets = torch.tensor(
            [index[label] for label in held_out.labels] if held_out else [], dtype=torch.int64
        )
        self.per_epoch = len(epoch_order([len(ids) for ids in self.ids], settings.batch_size, seed=0, epoch=0))
        self.steps = settings.epochs * self.per_epoch
        self.warmup = min(200, self.steps // 20) if settings.warmup is None else settings.warmup
        self.weights: Tensor | None = None
        if settings.class_weights == "balanced":
            self.weights = torch.tensor(balanced_weights(self.train.labels, self.labels), device=settings.device)

    def go(self) -> None:
        """Update until the last step, or until validation has not improved for long enough."""
        facts = {key: self.run[key] for key in ("train_rows", "validation_rows", "classes", "parameters")}
        cut = sum(len(ids) >= self.settings.max_length for ids in self.ids)
        facts |= {"precision": self.settings.precision, "threads": torch.get_num_threads(), "cut": cut}
        facts |= {"vocab_size": self.tokenizer.vocab_size, "device": self.settings.device}
        self.tell(Event("start", self.step, self.steps, facts))
        saved = time.monotonic()
        self.clock.begin()
        with polite_interrupt() as interrupted:
            order: list[list[int]] = []
            while self.step < self.steps and not self.ended:
                epoch, place = divmod(self.step, self.per_epoch)
                if not order or place == 0:
                    lengths = [len(ids) for ids in self.ids]
                    order = epoch_order(lengths, self.settings.batch_size, seed=self.settings.seed, epoch=epoch)
                rate = self._update(order[place])
                self.step += 1
                self.tell(Event("step", self.step, self.steps))
                if self.step % self.per_epoch == 0:
                    self._end_epoch(epoch + 1, rate)
                stop = interrupted()
                if stop or self.ended or self.step == self.steps or time.monotonic() - saved > 60 * CHECKPOINT_MINUTES:
                    self._checkpoint()
                    saved = time.monotonic()
                if stop and not self.ended and self.step < self.steps:
                    raise KeyboardInterrupt(f"stopped at step {self.step} of {self.steps}; the checkpoint is written")

    def _update(self, batch: list[int]) -> float:
        """One optimizer update; the learning rate used."""
        settings = self.settings
        rate = learning_rate(self.step, peak=settings.lr, warmup=self.warmup, steps=self.steps, final=settings.final_lr)
        ids, mask = pad(leave_out([self.ids[i] for i in batch], settings.token_dropout))
        mask = None if mask is None else mask.to(settings.device)
        with autocast(settings.precision, torch.device(settings.device)):
            logits = self.model(ids.to(settings.device), attention_mask=mask)
        loss = self._loss(logits.float(), self.targets[batch].to(settings.device), settings.label_smoothing)
        self._finite("loss", float(loss.detach()))
        loss.backward()  # type: ignore[no-untyped-call]
        self._finite("gradient norm", float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss_sum, self.loss_count = self.loss_sum + float(loss.detach()), self.loss_count + 1
        return rate

    def _loss(self, logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        losses = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
        # by row: torch's own `weight` also weighs the smoothed part of every target, which draws all to rare classes
        return losses.mean() if self.weights is None else (losses * self.weights.to(logits.device)[targets]).mean()

    def _finite(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            raise RopeError(
                f"classify: the {name} is not finite, so the run stops before the weights are spoiled.",
                facts={name: value, "step": self.step + 1},
                cure="Begin again (--restart) with a smaller --lr, a longer --warmup, or --precision float32.",
            )

    def _end_epoch(self, epoch: int, rate: float) -> None:
        """Validate, keep the weights if they are the best, write a line of the log."""
        line: dict[str, Any] = {"step": self.step, "epoch": epoch, "loss": self.loss_sum / self.loss_count, "lr": rate}
        self.loss_sum, self.loss_count = 0.0, 0
        if self.validation is not None:
            logits = logits_of(self.model, self.held_ids, precision=self.settings.precision)
            counts = confusion_counts(
                self.held_targets.numpy(), logits.argmax(-1).numpy().astype(np.int64), len(self.labels)
            )
            found = {
                "loss": float(self._loss(logits, self.held_targets)),
                "accuracy": accuracy(counts),
                "macro_f1": macro_f1(counts),
            }
            line |= {f"validation_{name}": value for name, value in found.items()}
            rank = self._rank(found)
            line["best"] = self.best is None or rank > tuple(self.best["rank"])
            if line["best"]:
                self.best = {"epoch": epoch, "rank": rank, **found}
                self.best_weights = snapshot(self.model)
            assert self.best is not None
            self.ended = epoch - self.best["epoch"] >= self.settings.patience
        line["seconds"] = self.clock.read()["seconds"]
        self.folder.run.append_log(line)
        self.tell(Event("log", self.step, self.steps, line))

    def _rank(self, found: dict[str, float]) -> tuple[float, float]:
        """What is compared between epochs, higher is better: the score asked for, then the loss."""
        first = -found["loss"] if self.settings.select == "loss" else found[self.settings.select]
        return first, -found["loss"]

    def _checkpoint(self) -> None:
        carried = {
            "loss_sum": self.loss_sum,
            "loss_count": self.loss_count,
            **self.clock.read(),
            "best": self.best,
            "ended": self.ended,
        }
        self.folder.write_checkpoint(self.step, self.model, self.optimizer, self.best_weights, carried, KEEP)
        self.tell(Event("checkpoint", self.step, self.steps))

    def finish(self) -> None:
        """Write the best weights as the run's model, and mark the run finished."""
        if self.best_weights:
            self.model.load_state_dict(self.best_weights)
        self.folder.write_model(self.model)
        self.run |= {
            "finished": True,
            "epochs_run": self.step // self.per_epoch,
            "best": self.best and {key: value for key, value in self.best.items() if key != "rank"},
            **self.clock.read(),
        }
        self.folder.run.begin(self.run)

    def scored(self, test: str | Path | None, baseline: bool) -> dict[str, Any] | None:
        """The scores on the test rows, computed unless result.json has those of the same file already."""
        out = {"out": str(self.folder.path), "already": not self.trained_now}
        if self.test is None:
            self.tell(Event("done", 0, 0, out))
            return None
        result = self.folder.result()
        same = {"sha256": sha256(self.test.path), "baseline": baseline}
        if result is None or result["asked"] != same:
            self.tell(Event("score", 0, 0, {"rows": len(self.test)}))
            model = TextClassifier.load(self.folder.path)
            result = {"asked": same, **score(model, self.run, self.train, self.validation, self.test, baseline)}
            self.folder.write_result(result)
        self.tell(Event("done", 0, 0, out))
        return result
