"""`extend.tune`: one method, and training at the target length."""

from __future__ import annotations

import dataclasses
import os

from ropewalk.extend.job import Draw, Extended, ExtendJob, tuning_record
from ropewalk.extend.settings import TrainingSettings, TuneSettings
from ropewalk.extend.source import Model
from ropewalk.extend.tuning import TuningRecipe, check_tunable, tune_reader, tuning_positions
from ropewalk.optional import need
from ropewalk.progress import Progress
from ropewalk.training.events import Housekeeping, Report


def tune(
    model: Model,
    out: str | os.PathLike[str],
    settings: TuneSettings,
    *,
    overwrite: bool = False,
    restart: bool = False,
    housekeeping: Housekeeping | None = None,
    report: Report | None = None,
    progress: Progress | None = None,
    draw: Draw | None = None,
) -> Extended:
    """Put an extension method into a checkpoint, train it at the target length, and write it as a folder.

    **Arguments:** as `apply`; `report` is called with each `training.Event`, `housekeeping` says how often is written.
    Unfinished work stands beside `out`, in a folder of the same name and `.tuning`: stopped, the same call continues,
    to the same bits; `restart` throws it away.

    **Returns:** an `Extended`. Ctrl-C writes a checkpoint and raises KeyboardInterrupt. **Raises:** `RopeError` as
    `apply`, for a held-out text that shares passages with those to tune on, and where a loss is not finite.
    """
    if "lora" in settings.train:
        need("peft", extra="tune")
    job = ExtendJob(model, out, settings, overwrite=overwrite, restart=restart, progress=progress, draw=draw)
    positions = tuning_positions(job.adapted.positions, settings.method)
    source = job.adapted.under(positions)
    recipe = TuningRecipe(
        **{field.name: getattr(settings, field.name) for field in dataclasses.fields(TrainingSettings)},
        source=source.digest(),
        method=settings.method,
        reach=job.reach,
        validation=() if settings.validation is None else (str(settings.validation),),
    )
    job.refuse_seen(settings.text)
    check_tunable(source, recipe)
    with job.work.claimed(recipe, restart=restart):
        job.measure_before()
        folder = job.work.run.path
        tuned = tune_reader(source, recipe, folder, restart=restart, housekeeping=housekeeping, report=report)
        final = tuned.under(job.adapted.positions)
        count = source.trained_count(recipe.train, rank=recipe.rank or 1)
        job.tuning = tuning_record(folder, recipe.to_json(), count)
        job.measure_after(final)
        return job.export(final)
