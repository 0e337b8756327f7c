"""Use of far tokens as the doctor measures it: on the windows of the losses, for plain, the best method and crop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ropewalk.diagnosis.estimate import IN_ATTENTION, seconds_at_once
from ropewalk.diagnosis.evidence import TOLERATED, forgets
from ropewalk.diagnosis.measurement import Measurement
from ropewalk.diagnosis.plan import Plan
from ropewalk.diagnosis.protocol import Protocol
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.methods import METHODS
from ropewalk.readers.pace import Pace
from ropewalk.readers.reader import Reader
from ropewalk.use.inputs import UseText
from ropewalk.use.protocol import UseProtocol
from ropewalk.use.run import UseModel, UseRun


def prepare_use(
    reader: Reader,
    protocol: Protocol,
    settings: DoctorSettings,
    texts: Sequence[tuple[str, str]],
    tokens: Sequence[Sequence[int]],
    folder: Path | None,
) -> UseRun | None:
    """The measurement of use that the settings ask for, on the protocol's windows; None where they do not ask for it.

    - `texts`, `tokens`: each text's name and contents, and their tokens. `folder`: of its results; None: in memory.

    Raises `RopeError` for what cannot be measured, before anything is.
    """
    if "use" not in settings.measured:
        return None
    parts = [
        UseText(name, contents, ids, protocol.starts(len(ids), number))
        for number, ((name, contents), ids) in enumerate(zip(texts, tokens, strict=True))
    ]
    of_use = UseProtocol.choose(
        trained_length=protocol.trained_length,
        target=protocol.target,
        texts=protocol.texts,
        windows=protocol.windows,
        seed=protocol.seed,
    )
    return UseRun.prepare(of_use, reader, parts, state=folder, resume=settings.resume, chunk=settings.chunk)


def examined_methods(measurement: Measurement) -> tuple[str, ...]:
    """The methods whose use of far tokens is measured: plain, the best method, and crop.

    The best has the lowest mean loss beyond the trained length of those that do not forget and whose mean within it is
    at most 0.05 nats above plain's; it may be plain.
    """
    beyond = {name: sum(found) for name in measurement.results if (found := measurement.beyond(name)) is not None}
    most = sum(measurement.within("plain")) + TOLERATED * measurement.protocol.total_windows
    able = [name for name in beyond if not forgets(name) and sum(measurement.within(name)) <= most]
    best = min(able, key=lambda name: beyond[name], default="plain")
    return tuple(name for name in measurement.results if name in ("plain", best) or METHODS[name].crops)


def use_model(name: str, reader: Reader, plan: Plan) -> UseModel:
    """A method of the plan as its use is measured; one that shares another's numbers is that one."""
    positions = plan.positions[plan.same_as.get(name, name)]
    return UseModel(reader.under(positions), plan.protocol.stride if METHODS[name].crops else None)


def likely_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """Methods that take as long as those whose use will be measured, before anybody knows which one is the best.

    >>> likely_methods(["plain", "dca", "yarn", "crop"])
    ('plain', 'dca', 'crop')
    """
    others = [name for name in methods if name != "plain" and not METHODS[name].forgets]
    slowest = sorted(others, key=lambda name: METHODS[name].in_attention)[-1:]
    return tuple(name for name in methods if name == "plain" or METHODS[name].crops or name in slowest)


def use_seconds(
    run: UseRun, models: Mapping[str, UseModel], pace: Pace, *, workers: int, windows: int | None = None
) -> float:
    """Return about how many seconds the readings that are due will take; `windows`: only of so many in all."""
    return seconds_at_once(
        (
            pace.seconds(job.work) * (IN_ATTENTION if METHODS[job.method].in_attention else 1.0)
            for job in run.due(models)
            if windows is None or job.window < windows
        ),
        workers,
    )
