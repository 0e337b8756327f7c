"""`extend.apply`: one method, the weights as they are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.extend.choice import Choice
from ropewalk.extend.gguf_export import apply_gguf, is_gguf
from ropewalk.extend.job import Draw, Extended, ExtendJob
from ropewalk.extend.settings import ApplySettings
from ropewalk.extend.source import Model
from ropewalk.progress import Progress, SilentProgress


def apply(
    model: Model,
    out: str | os.PathLike[str],
    settings: ApplySettings | None = None,
    *,
    record: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    overwrite: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
    draw: Draw | None = None,
) -> Extended:
    """Put an extension method into a checkpoint, and write it as a folder that transformers loads, or as a GGUF file.

    **Arguments:**
    - `model`: a path or name that `rw.load` takes, a `Decoder`, or a reader; left as it is.
    - `out`: the folder, or a file whose name ends in .gguf; it appears when all of it is done. `overwrite` replaces an
      earlier export.
    - `record`: the doctor's, as a file or as `Diagnosis.to_json()` gives it: its method and its lengths are taken.
    - `restart`: throw away a stopped tuning beside `out`. `draw`: makes the figure in the folder from the record.

    **Returns:** an `Extended`. **Raises:** `RopeError`, before any work, for settings that do not fit the model,
    methods that config.json (or llama.cpp) cannot express, and a record of another model or one that does not recommend
    to extend.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     done = apply("tiny", folder + "/longer", ApplySettings(method="ntk"))
    ...     done.exported.config["max_position_embeddings"]
    1024
    """
    choice = None if record is None else Choice.read(record)
    chosen = settings or ApplySettings()
    chosen = chosen if choice is None else choice.over(chosen)
    if is_gguf(out):
        return apply_gguf(
            model, out, chosen, choice, overwrite=overwrite, restart=restart, progress=progress or SilentProgress()
        )
    if chosen.quantization is not None:
        raise RopeError(
            "extend: --quantization is of .gguf files, and would be ignored.",
            facts={"out": str(out), "quantization": chosen.quantization},
            cure="Pass --out MODEL.gguf, or --dtype for a folder.",
        )
    job = ExtendJob(model, out, chosen, overwrite=overwrite, restart=restart, progress=progress, draw=draw)
    if choice is not None:
        choice.check_model(job.source.reader, job.source.name)
    if not chosen.measures:
        return job.export(job.adapted)
    with job.work.claimed(None, restart=restart):
        job.measure_before()
        return job.export(job.adapted)
