"""The verdict on a measurement: the decision, what a config needs for it, and the command that would settle more."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ropewalk.diagnosis.decide import decide
from ropewalk.diagnosis.document import at_run_time, config_changes
from ropewalk.diagnosis.next_run import RunFacts, plain_command
from ropewalk.diagnosis.rules import Use
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.measure.losses import Measurement

NOT_REPEATED = ("state", "resume", "minutes")  # which change no number of a run with given windows and methods


def conclude(
    measurement: Measurement,
    use: Use | None = None,
    *,
    command: Callable[[int], str] = plain_command,
    room: int | None = None,
    workers: int = 1,
    further_seconds: float = 0.0,
    library: str = "ropewalk",
) -> Verdict:
    """The verdict on what was measured; `decide` has the rules.

    - `use`: what was measured of the use of far tokens. `command`: what measures the same with other windows of each
      text, of which the shortest holds `room`. `workers`: windows measured at one time. `further_seconds`: of work on
      these windows besides the losses. `library`: what computed the model.
    """
    seconds = further_seconds + sum(
        window.seconds
        for name, windows in measurement.results.items()
        if name not in measurement.same_as
        for window in windows
    )
    facts = RunFacts(texts=measurement.protocol.texts, room=room, seconds=seconds / workers, command=command)
    verdict = decide(measurement.losses(), use, facts)
    if verdict.method is None:
        return verdict
    call = at_run_time(verdict.method, measurement, library=library)
    config = config_changes(verdict.method, measurement)
    if call is None and config["rope_parameters"] is not None:
        return dataclasses.replace(verdict, config=measurement.config_form.whole(config))
    how = f"in Python it is {call}" if call else "it works while the model runs"
    return dataclasses.replace(verdict, sentence=f"{verdict.sentence} No config.json can express it; {how}.")


def doctor_command(model: object, settings: DoctorSettings, **changes: Any) -> str:
    """The command of a run with these settings, or the call in Python where no command can say the model or the text.

    Of an absolute path only its last name is in it, so that a record does not show anybody's folders.

    >>> doctor_command("tiny", DoctorSettings(methods="yarn,ntk", seed=3), windows=9)
    'ropewalk doctor tiny --windows 9 --methods yarn,ntk --seed 3'
    """
    settings = dataclasses.replace(settings, **changes)
    given = [
        (field, getattr(settings, field.name))
        for field in dataclasses.fields(settings)
        if field.name not in NOT_REPEATED and settings.changes(field.name)
    ]
    texts = settings.text if isinstance(settings.text, Sequence) and not isinstance(settings.text, str) else ()
    if not isinstance(model, str | Path) or any(isinstance(text, tuple) for text in texts):
        first = repr(_shown(model)) if isinstance(model, str | Path) else "model"
        words = [first, *(f"{field.name}={'text' if field.name == 'text' else repr(value)}" for field, value in given)]
        return f"rw.doctor({', '.join(words)})"
    words = ["ropewalk", "doctor", _shown(model)]
    for field, value in given:
        option = field.metadata.get("option", (f"--{field.name.replace('_', '-')}",))[0]
        several = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
        if field.metadata.get("commas"):
            several = [",".join(map(str, several))]
        for one in several:
            words += [option] if one is True else [option, _shown(one)]
    return shlex.join(words)


def _shown(value: object) -> str:
    """A value as it is typed; of an absolute path the last name."""
    path = Path(str(value))
    return path.name if path.is_absolute() else str(value)
