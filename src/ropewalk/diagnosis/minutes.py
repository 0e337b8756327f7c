"""`--minutes`: the windows and methods of a plan that are measured where the time is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ropewalk.diagnosis.estimate import Fitted, fit
from ropewalk.diagnosis.outlook import Outlook
from ropewalk.diagnosis.plan import KIND
from ropewalk.diagnosis.use import likely_methods
from ropewalk.ledger import Ledger
from ropewalk.ledger import fingerprint as hash_of
from ropewalk.processes import current
from ropewalk.readers.pace import Clock, Trial

FITTED = "fitted"  # the job of a plan's ledger
SHARE = 0.9  # of the minutes that is planned for: what an estimate may be wrong by


def fit_minutes(
    outlook: Outlook, window: Tensor, folder: Path, *, key: str, began: float, clock: Clock
) -> tuple[Fitted, Trial | None]:
    """The part of a plan that fits into the minutes of its settings from `began` on, and the trial that tells.

    - `window`: of the text, for the trial. `folder`, `key`: of the whole plan's results.

    What was chosen is kept beside the results: a run that is resumed has the same windows and methods, and no trial. Of
    several processes rank 0 chooses; the estimate is that of one process, so that they end sooner.
    """
    plan, minutes = outlook.plan, outlook.settings.minutes
    assert minutes is not None, "only then is a part of the plan chosen"
    ledger = Ledger(folder / "plan", kind="plan", key=hash_of(key, minutes, plan.methods))
    _ = ledger.resume() if outlook.settings.resume else ledger.begin()
    if FITTED in ledger:
        return _fitted(ledger[FITTED]), None
    jobs, texts = plan.due(Ledger(None, kind=KIND, key=key)), len(plan.protocol.texts)
    trial: Trial | None = None

    def seconds(windows: int, methods: Sequence[str]) -> float:
        assert trial is not None
        chosen = [job for job in jobs if job.method in methods and job.window < windows * texts]
        return outlook.seconds(chosen, likely_methods(methods), trial, windows=windows * texts)

    def choose() -> dict[str, Any]:
        nonlocal trial
        trial = outlook.try_out(window, jobs, clock)
        fitted = fit(
            SHARE * (60 * minutes - (clock() - began)),
            windows=plan.protocol.windows,
            texts=texts,
            methods=plan.methods,
            seconds=seconds,
        )
        ledger.add(FITTED, dataclasses.asdict(fitted))
        return ledger[FITTED]

    return _fitted(current().first(current().numbered(f"minutes/{key}"), choose)), trial


def _fitted(kept: Mapping[str, Any]) -> Fitted:
    return Fitted(kept["windows"], tuple(kept["methods"]), tuple(kept["left_out"]))
