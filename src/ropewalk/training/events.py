"""What a run tells while it goes, and how often it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ropewalk.errors import RopeError


@dataclass(frozen=True)
class Event:
    """What a run tells while it goes: `kind` is "start", "step", "log", "checkpoint" or "done"."""

    kind: str
    step: int
    steps: int
    facts: dict[str, Any] = field(default_factory=dict)


Report = Callable[[Event], None]


@dataclass(frozen=True)
class Housekeeping:
    """How often things are written, in updates; no effect on what is computed.

    None: a twentieth of the run, but no more often than each 50 updates. A checkpoint is also written when
    `checkpoint_minutes` have passed since the last; the newest `keep` stay.
    """

    log_every: int = 10
    validate_every: int | None = None
    checkpoint_every: int | None = None
    checkpoint_minutes: float = 5.0
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("log_every", "validate_every", "checkpoint_every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RopeError(
                    f"train: `{name}` must be at least 1.",
                    facts={name: value},
                    cure=f"Pass --{name.replace('_', '-')} 1 or more, or leave it out.",
                )
