"""A run: correctness first, then one group after another, each a record of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ropewalk.backends import explain_backends
from ropewalk.bench.cases import CASES
from ropewalk.bench.gate import check, check_rotate
from ropewalk.bench.peers import peers_of
from ropewalk.bench.plan import Group, Preset, groups_of
from ropewalk.bench.record import Record, environment
from ropewalk.bench.timing import Clock, CudaClock, cpu_clock, host_clock, interleave
from ropewalk.bench.work import Contender, Skip, Work
from ropewalk.errors import RopeError
from ropewalk.progress import Progress, SilentProgress


def run(
    preset: Preset, *, device: str = "cpu", seconds: float | None = None, peers: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Iterator[Record]:  # fmt: skip
    """Check every case against the oracle, then check and time each group; a record as soon as it is there.

    `seconds` for each group replaces the preset's. `progress` counts cases, then groups. Raises `RopeError`
    if one of our own results is wrong; a peer that is missing, cannot do a case or is wrong stands in the record with
    its reason.
    """
    shared = {"run": uuid.uuid4().hex[:12], "preset": preset.name, "place": device, **environment(device)}
    groups = groups_of(preset, device=device, peers=peers)
    shown = progress or SilentProgress()
    share = check_rotate(CASES, device=device, progress=shown)
    yield {"kind": "gate", "cases": len(CASES), "share_of_bound": _rounded(share), **shared}
    for number, group in enumerate(groups, 1):
        shown.begin(f"{group.name} ({number} of {len(groups)})", 1)
        yield {**measure(group, device=device, seconds=preset.seconds if seconds is None else seconds), **shared}
        shown.advance(1)


def measure(group: Group, *, device: str = "cpu", seconds: float) -> Record:
    """Build the group's contenders, hold each against the oracle, and time those that are right."""
    work = Work(group.case, device)
    contenders, skipped = build(group, work)
    accuracy = {found.name: admit(work, found) for found in contenders if found.read is not None}
    wrong = {name: reason for name, reason in accuracy.items() if isinstance(reason, str)}
    timed = [found.timed() for found in contenders if found.name not in wrong]
    times = interleave(timed, seconds=seconds, clock=_clock(group, device)) if timed else {}
    case = group.case
    return {
        "kind": group.kind,
        "case": case.name,
        "tokens": case.batch * case.seq,
        "dtype": str(case.dtype).removeprefix("torch."),
        "bytes": case.bytes,
        "sets": work.sets,
        "seconds": seconds,
        "backends": explain_backends(work.inputs[0][0]).splitlines()[1:],
        "microseconds": times,
        "share_of_bound": _rounded({name: share for name, share in accuracy.items() if not isinstance(share, str)}),
        "skipped": {**skipped, **wrong},
    }


def build(group: Group, work: Work) -> tuple[list[Contender], dict[str, str]]:
    """The group's contenders, and the reasons of those that cannot take part."""
    contenders: list[Contender] = []
    skipped = {}
    theirs = peers_of(work.device)
    for name, make in group.builds.items():
        try:
            found = make(work)
        except Skip as reason:
            skipped[name] = str(reason)
        except Exception as error:
            if name not in theirs:
                raise
            skipped[name] = _short(error)
        else:
            contenders += found if isinstance(found, list) else [found]
    return contenders, skipped


def admit(work: Work, contender: Contender) -> float | str:
    """The share of its bound that a contender uses; for a peer that fails or is wrong, the reason to leave it out."""
    try:
        assert contender.read is not None
        return check(
            work.case, work.inputs[0], contender.read(contender.calls[0]()), who=contender.name,
            interleaved=contender.interleaved, inverse=contender.inverse, eps=contender.eps,
            own_angles=contender.own_angles, before=contender.before,
        )  # fmt: skip
    except Exception as error:
        if contender.name not in peers_of(work.device):
            raise
        if isinstance(error, RopeError) and "allowed" in error.facts:
            return f"wrong: {error.facts['error']:.2g} off, allowed {error.facts['allowed']:.2g}"
        return _short(error)


def _clock(group: Group, device: str) -> Clock:
    if device == "cpu":
        return cpu_clock
    return host_clock if group.host else CudaClock(device)


def _short(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200] if lines else 'no message'}"


def _rounded(values: dict[str, Any]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def usable(device: str) -> str:
    """The device, once a tensor has been there: "cpu", or a GPU as "cuda" or "cuda:1"."""
    problem = "" if device.partition(":")[0] in ("cpu", "cuda") else "the benchmarks run on cpu and cuda"
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        problem = problem or _short(error)
    if problem:
        raise RopeError(
            "bench: this device cannot be used.",
            facts={"device": device, "error": problem},
            cure="Try --device cpu.",
        )
    return device if device.startswith("cuda") else "cpu"
