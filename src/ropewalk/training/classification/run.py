"""A classifier from its CSV file to its scores: trained by the loop of every task, scored once for each test file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch

from ropewalk.atomic_io import read_json, sha256, write_json
from ropewalk.checkpoints.load import load_classifier
from ropewalk.training.classification.score import score
from ropewalk.training.classification.settings import ClassifySettings
from ropewalk.training.classification.task import ClassifierTask
from ropewalk.training.events import Event, Report
from ropewalk.training.loop import Run
from ropewalk.training.run_folder import RunFolder
from ropewalk.training.task import TrainingTask

RESULT = "result.json"


def train_classifier(
    settings: ClassifySettings,
    out: str | Path,
    *,
    test: str | Path | None = None,
    baseline: bool = True,
    against: str | Path | None = None,
    resume: bool = False,
    restart: bool = False,
    report: Report | None = None,
) -> dict[str, Any] | None:
    """Train a classifier, or continue the run that `out` holds; with `test` score it, and return the result.

    - `out`: the run's folder; a run with equal settings in it is continued from its last checkpoint, to the same bits
      as one that was never stopped (same machine and threads). In the end `ropewalk.load` reads it.
    - `test`: a CSV file with the same columns; the scores are written to result.json and returned. `baseline`: score
      TF-IDF and logistic regression (scikit-learn) on the same rows beside it. `against`: the folder of another
      classifier, of the same labels, to score beside it.
    - `resume`: insist that there is a run to continue. `restart`: throw the run in `out` away first.
    - `report`: called with each `ropewalk.training.Event`.

    Ctrl-C writes a checkpoint and raises KeyboardInterrupt. Raises `RopeError` for bad files or settings, for a run
    with other settings in `out`, and where the loss or a gradient is not finite.
    """
    folder = RunFolder(out, results=(RESULT,))
    report = report or (lambda event: None)
    with folder.locked(), torch.random.fork_rng():
        task = ClassifierTask(settings.on_this_machine(), test, against)
        run = Run(cast(TrainingTask, task), folder, report)
        unfinished = run.prepare(resume=resume, restart=restart)
        if unfinished:
            run.train()
            run.finish()
        result = None if task.test is None else _scored(run, task, baseline, against, report)
        report(Event("done", run.step, task.steps, {"out": str(folder.path), "already": not unfinished}))
    return result


def _scored(
    run: Run, task: ClassifierTask, baseline: bool, against: str | Path | None, report: Report
) -> dict[str, Any]:
    """The scores on the test rows, computed unless result.json has those of the same file already."""
    assert task.test is not None
    path = run.folder.path / RESULT
    result = read_json(path) if path.is_file() else None
    asked: dict[str, Any] = {"sha256": sha256(task.test.path), "baseline": baseline}
    if against is not None:
        asked["against"] = sha256(Path(against) / "model.safetensors")
    if result is None or result["asked"] != asked:
        report(Event("score", run.step, task.steps, {"rows": len(task.test)}))
        models = [load_classifier(folder) for folder in (run.folder.path, against) if folder is not None]
        result = {"asked": asked, **score(models, run.record, task.train, task.validation, task.test, baseline)}
        write_json(path, result)
    return result
