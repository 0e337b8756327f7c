"""What a run reports while it trains, and how often it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ropewalk.errors import RopeError


@dataclass(frozen=True)
class Event:
    """What a run reports: `kind` is "start", "step", "log", "checkpoint", "score" or "done"."""

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

    log_every: int = field(default=10, metadata={"help": "Updates between lines of the log."})
    validate_every: int | None = field(
        default=None, metadata={"help": "Updates between validations [default: a twentieth of the run]."}
    )
    checkpoint_every: int | None = field(
        default=None, metadata={"help": "Updates between checkpoints [default: a twentieth of the run]."}
    )
    checkpoint_minutes: float = field(
        default=5.0, metadata={"help": "Minutes after which a checkpoint is written in any case."}
    )
    keep: int = field(default=2, metadata={"help": "How many checkpoints are kept."})

    def __post_init__(self) -> None:
        for name in ("log_every", "validate_every", "checkpoint_every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RopeError(
                    f"train: `{name}` must be at least 1.",
                    facts={name: value},
                    cure=f"Pass --{name.replace('_', '-')} 1 or more, or leave it out.",
                )
