"""What was found: gains by distance with their intervals, and what they say about the use of far tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ropewalk.atomic_io import finite
from ropewalk.statistics import Interval, signed

LEAST_COPY_GAIN = 0.1
"""Nats per token: below it the copy test says nothing about a model, because it cannot copy."""
SHARE = 0.5
"""Of the gain within the trained length: what a distance must be shown to reach."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class UseRow:
    """The gain of one method at one distance: loss(absent) - loss(present) of the same tokens at the same positions.

    - `test`: always "copy"; old records also hold rows of the exchange test.
    - `distance`: tokens from the block back to its copy.
    - `gain`: nats per token, the mean over windows. `interval`: between windows, simultaneous over the distances of one
      method; None for one window.
    - `window`: tokens of each window. `control`: whether it is the control, in windows of the trained length.
    - `windows`, `tokens`: how many windows and scored tokens there are in all.
    """

    method: str
    test: str
    distance: int
    gain: float
    interval: Interval
    window: int
    control: bool
    windows: int
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        found: dict[str, Any] = finite(dataclasses.asdict(self))
        return found


@dataclasses.dataclass(frozen=True)
class Control:
    """The gain within the trained length, in nats per token, over all distances of the control together."""

    gain: float
    interval: Interval

    def shows(self, least: float, share: float = SHARE) -> bool:
        """Whether it is shown to be above `least` and known to within `share` of itself."""
        return self.interval is not None and self.interval[0] > max(least, share * self.gain)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UseMeasurement:
    """The gains of every method, and the controls.

    - `rows`: those of the methods at the target, and the control's under "plain". `controls`: by test, plain's gain
      within the trained length, all distances together.
    - `notes`: why a test is absent. `seconds`: of work, by method.

    >>> far = [UseRow(method="yarn", test="copy", distance=d, gain=6.0, interval=(5.0, 7.0), window=8192, control=False,
    ...               windows=3, tokens=300) for d in (1024, 4096)]
    >>> found = UseMeasurement(trained_length=2048, target=8192, rows=tuple(far),
    ...                        controls={"copy": Control(6.5, (6.0, 7.0))})
    >>> found.reach("yarn"), found.shows_use("yarn"), found.shows_use("crop")
    (4096, True, None)
    """

    trained_length: int
    target: int
    rows: tuple[UseRow, ...]
    controls: Mapping[str, Control]
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods measured at the target, in order."""
        return tuple(dict.fromkeys(row.method for row in self.rows if not row.control))

    @property
    def windows(self) -> int:
        """How many windows were read."""
        return max((row.windows for row in self.rows), default=0)

    def of(self, method: str, test: str) -> list[UseRow]:
        """The rows of a method and test at the target, the nearest distance first."""
        found = [row for row in self.rows if (row.method, row.test, row.control) == (method, test, False)]
        return sorted(found, key=lambda row: row.distance)

    @property
    def can_copy(self) -> bool:
        """Whether the copy test's control works: within the trained length the gain is clear and well known."""
        control = self.controls.get("copy")
        return control is not None and control.shows(LEAST_COPY_GAIN)

    @property
    def needed(self) -> float | None:
        """Half of the copy test's gain within the trained length, in nats per token; None where it is not measured."""
        return SHARE * self.controls["copy"].gain if self.can_copy else None

    def reach(self, method: str) -> int | None:
        """The largest distance in tokens up to which the copy test shows use.

        At it and at every nearer distance measured the interval lies above half of the gain within the trained length.
        None where the control does not work, or not even the nearest distance shows it.
        """
        reached = None
        for row in self.of(method, "copy"):
            if self.needed is None or row.interval is None or row.interval[0] <= self.needed:
                break
            reached = row.distance
        return reached

    def shown_at(self, method: str) -> tuple[int, ...]:
        """The distances in tokens at which the copy test's interval lies above half of the gain within."""
        needed = self.needed
        if needed is None:
            return ()
        found = self.of(method, "copy")
        return tuple(row.distance for row in found if row.interval is not None and row.interval[0] > needed)

    def shows_use(self, method: str) -> bool | None:
        """Whether the method uses tokens that lie beyond the trained length.

        True if at a distance beyond the trained length the gain is shown to be above half of that within, False if at
        every such distance it is shown to be below, None if the control does not work or the windows are too few.

        A method may use far tokens and have no `reach`, where it uses nearer ones less than that.
        """
        needed = self.needed
        if needed is None:
            return None
        beyond = [row.interval for row in self.of(method, "copy") if row.distance > self.trained_length]
        if any(interval is not None and interval[0] > needed for interval in beyond):
            return True
        refuted = beyond and all(interval is not None and interval[1] < needed for interval in beyond)
        return False if refuted else None

    def sentences(self) -> list[str]:
        """What was found, in words."""
        return [*_copy_lines(self), *self.notes]

    def to_json(self) -> list[dict[str, Any]]:
        """Return every row as JSON holds it, with `needed`: half of the gain within."""
        return [{**row.to_json(), "needed": self.needed} for row in self.rows]


def span_of(shown: Sequence[int], measured: Sequence[int]) -> str:
    """At which of the measured distances, in order, use is shown, in a few words; empty for none.

    >>> span_of([128, 240], [128, 240, 464]), span_of([240, 464], [128, 240, 464]), span_of([464], [128, 240, 464])
    ('to 240', '240 to 464', 'at 464')
    >>> span_of([128, 464], [128, 240, 464])
    'in part'
    """
    if not shown:
        return ""
    first = measured.index(shown[0])
    if list(shown) != list(measured[first : first + len(shown)]):
        return "in part"
    if first == 0:
        return f"to {shown[-1]:,}"
    return f"at {shown[0]:,}" if len(shown) == 1 else f"{shown[0]:,} to {shown[-1]:,}"


def _copy_lines(found: UseMeasurement) -> Iterator[str]:
    """The control of the copy test, and how far each method's use reaches."""
    control = found.controls.get("copy")
    if control is None:
        return
    gain = f"{signed(control.gain, control.interval)} nats per token"
    if not found.can_copy:
        yield (
            f"Copy test: not measured. Within the trained length a block of random words gains {gain} from an earlier "
            "copy: too little, or too uncertain, to tell anything about distant tokens."
        )
        return
    yield f"Copy test: within the trained length a block of random words gains {gain} from an earlier copy."
    beyond = f"tokens more than {found.trained_length:,} back"
    for method in found.methods:
        uses, where = found.shows_use(method), _where_half_is_shown(found, method)
        if uses:
            yield f"{method} uses {beyond}: at least half of that gain is shown {where}."
        elif uses is None:
            yield (
                f"{method}: {found.windows} windows do not tell whether it uses {beyond}; half of that gain is shown "
                f"{where}."
            )
        else:
            yield f"{method} is not shown to use {beyond}: the gain from them is less than half of that."


def _where_half_is_shown(found: UseMeasurement, method: str) -> str:
    """At which distances the copy test's interval lies above half of the control's gain."""
    rows, shown = found.of(method, "copy"), list(found.shown_at(method))
    if not shown:
        return "at no distance"
    if shown[-1] == found.reach(method):
        return f"at every distance up to {shown[-1]:,} tokens back"
    others = [row.distance for row in rows if row.distance not in shown]
    return f"at {_listed(shown)} tokens back, not at {_listed(others)}"


def _listed(distances: list[int]) -> str:
    """Distances in a sentence: 1, 2 and 3."""
    *most, last = [f"{distance:,}" for distance in distances]
    return f"{', '.join(most)} and {last}" if most else last
