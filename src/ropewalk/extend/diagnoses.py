"""Measure an extension with the doctor: the checkpoint under the method."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from ropewalk.builtin.texts import read_text
from ropewalk.diagnosis.document import Diagnosis
from ropewalk.diagnosis.prepare import prepare
from ropewalk.diagnosis.run import RunInterrupted
from ropewalk.diagnosis.settings import DoctorSettings, Protocol
from ropewalk.errors import RopeError
from ropewalk.ledger import fingerprint
from ropewalk.methods import Reach
from ropewalk.progress import Progress
from ropewalk.readers.reader import Reader

APPLIED = "applied"
"""The diagnosis of an applied method."""


def diagnose(
    reader: Reader,
    *,
    method: str,
    reach: Reach,
    text: Path | None = None,
    engine: str | None = None,
    windows: int | None = None,
    seed: int = 0,
    minutes: float | None = None,
    state: Path,
    progress: Progress | None = None,
) -> Diagnosis:
    """Measure plain, crop and one method with the doctor: losses, copies and the verdict.

    **Arguments:**
    - `reader`: the model on its device, under its own positions.
    - `method`, `reach`: its name, and the lengths in tokens.
    - `engine`: the engine for the method: "python" for a folder that only ropewalk loads; None: any.
    - `text`: to measure on; None: Moby-Dick. `windows`: most windows of it (None: 16); fewer if the verdict is final
      before. `seed`: draws them.
    - `minutes`: time limit; None: no limit. The target is never shortened.
    - `state`: folder of unfinished measurements. The same call resumes; each different call has its own subfolder.

    **Returns:** the doctor's `Diagnosis`. Its verdict contains no next command.
    **Raises:** `RopeError` as `rw.doctor`, and if the target cannot be measured within the time limit.
    KeyboardInterrupt on Ctrl-C.

    >>> import tempfile
    >>> from ropewalk.checkpoints.load import load
    >>> from ropewalk.readers.adapters import reader_of
    >>> tiny = reader_of(load("tiny"), "tiny")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = diagnose(tiny, method="ntk", reach=Reach(16, 32), windows=1, state=Path(folder))
    >>> list(found.measurement.results)
    ['plain', 'crop', 'ntk']
    """
    name, contents = read_text(text)
    key = fingerprint("extend", reader.digest(), method, reach, engine, name, contents, windows, seed)
    settings = DoctorSettings(
        target=reach.target,
        trained_length=reach.trained,
        text=[(name, contents)],
        methods=[method],
        engine=engine,
        minutes=math.inf if minutes is None else minutes,
        state=state / key,
        resume=True,
        protocol=Protocol(windows=windows, seed=seed, unscaled_tokens=reach.unscaled_tokens),
    )
    shown = False if progress is None else progress
    run = prepare(reader, settings, shown)
    if run.plan.protocol.target != reach.target:
        raise RopeError(
            "extend: the target cannot be measured within the time limit.",
            facts={"minutes": minutes, "target": reach.target},
            cure="Pass more minutes, or do not measure.",
        )
    try:
        return dataclasses.replace(run, more=lambda **_: None).measure(shown)
    except RunInterrupted as stop:
        raise KeyboardInterrupt(f"stopped; {stop.kept} results are saved, {stop.due} are missing") from stop
