"""The bounds: each a named ratio of medians that were taken in one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ropewalk.bench import norm, ours
from ropewalk.bench.record import Record

PEERS = ("every peer",)
FLOORS = (ours.COPY, ours.CLONE)


@dataclass(frozen=True)
class TimingRow:
    """`contender` takes at most `at_most` of the time of the fastest of `against`, in each group of its kind and dtype.

    `against` empty: it takes at most `at_most` microseconds. `least` is the tokens from which the bound holds.
    """

    kind: str
    dtype: str
    contender: str
    against: tuple[str, ...]
    at_most: float
    least: int = 0

    @property
    def name(self) -> str:
        """What is measured, in words."""
        words = [self.contender.removeprefix("ropewalk, "), self.dtype]
        words += [self.kind] if self.kind not in ("one tensor", "norm and rotation") else []
        words += [f"from {self.least:,} tokens"] if self.least else []
        return ", ".join(words)


@dataclass(frozen=True)
class Outcome:
    """A row, the worst value measured (None: it was not measured), and where."""

    row: TimingRow
    value: float | None
    where: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the bound is kept; None where nothing was measured."""
        return None if self.value is None else self.value <= self.row.at_most


def _both(kind: str, contender: str, against: str, at_most: float) -> list[TimingRow]:
    return [TimingRow(kind, dtype, contender, (against,), at_most) for dtype in ("float32", "bfloat16")]


CPU_ROWS = (
    *_both("one tensor", ours.IN_PLACE, ours.COPY, 0.90),
    *_both("one tensor", ours.GIVEN, ours.COPY, 1.25),
    TimingRow("one tensor", "float32", ours.NEW, (ours.CLONE,), 0.40),
    *_both("one tensor", ours.INTERLEAVED, ours.GIVEN, 1.15),
    *_both("one tensor", ours.BACKWARD, ours.FORWARD, 1.10),
    TimingRow("one tensor", "float32", ours.GIVEN, ("onnxruntime",), 0.80),
    TimingRow("one tensor", "bfloat16", ours.NEW, ("transformers",), 0.10),
    TimingRow("one tensor", "bfloat16", ours.NEW, ("torch.compile",), 0.30),
    *_both("one decoded token", ours.NEW, "transformers", 0.50),
    *_both("norm and rotation", norm.FUSED, norm.SEPARATE, 0.60),
)
CUDA_ROWS = (
    TimingRow("sweep", "bfloat16", ours.NEW, (ours.COPY,), 1 / 0.9, least=8192),
    TimingRow("sweep", "bfloat16", ours.BACKWARD, (ours.COPY,), 1 / 0.9, least=8192),
    TimingRow("sweep", "bfloat16", ours.NEW, PEERS, 1.0),
    TimingRow("norm and rotation", "bfloat16", norm.FUSED, (norm.SEPARATE,), 0.55),
    TimingRow("host", "bfloat16", ours.NEW, (), 15.0),
)


def rows_for(device: str) -> tuple[TimingRow, ...]:
    """The bounds on this kind of device."""
    return CPU_ROWS if device == "cpu" else CUDA_ROWS


def judge(rows: Sequence[TimingRow], records: Sequence[Record]) -> list[Outcome]:
    """Each row against the records of a run: its worst value, rounded to three digits after the point."""
    return [_outcome(row, records) for row in rows]


def _outcome(row: TimingRow, records: Sequence[Record]) -> Outcome:
    values = []
    for record in records:
        if (record["kind"], record.get("dtype")) != (row.kind, row.dtype) or record["tokens"] < row.least:
            continue
        medians = {name: times["p50"] for name, times in record["microseconds"].items()}
        rivals = [name for name in medians if not name.startswith("ropewalk") and name not in FLOORS]
        against = [medians[name] for name in (rivals if row.against == PEERS else row.against) if name in medians]
        if row.contender in medians and (against or not row.against):
            values.append((round(medians[row.contender] / min(against, default=1.0), 3), record["case"]))
    return Outcome(row, *max(values)) if values else Outcome(row, None)
