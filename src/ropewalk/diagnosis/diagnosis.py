"""`Diagnosis`: what the doctor found, as data and as text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.atomic_io import finite, write_whole
from ropewalk.audit.audit import Audit
from ropewalk.audit.findings import Finding
from ropewalk.diagnosis.document import document, shared_sentences
from ropewalk.diagnosis.next_run import next_step
from ropewalk.diagnosis.standings import standing_rows
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.measure.answers import RetrievalMeasurement, sentences
from ropewalk.measure.copy_test import UseMeasurement
from ropewalk.measure.losses import Measurement
from ropewalk.measure.scaling import ScalingReading
from ropewalk.report.verdict import headline
from ropewalk.report.write import report_figure, report_page

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """What the doctor found of one model.

    - `name`: the model's. `measurement`: losses by method, window and block, in nats.
    - `verdict`: what to do with it, and what shows it.
    - `audits`: what each rope says without running the model. `findings`: known traps in its config.
    - `retrieval`: accuracies of the retrieval tasks, where they were asked for.
    - `use`: what distant tokens are worth to plain, the best method and crop, where it was measured.
    - `reading`: whether the model was trained with its scaling, where that had to be measured.
    - `environment`: versions, machine and settings. `left_out`: what did not fit into the minutes, in sentences.
    """

    name: str
    measurement: Measurement
    verdict: Verdict
    audits: tuple[Audit, ...]
    findings: tuple[Finding, ...]
    retrieval: RetrievalMeasurement | None = None
    use: UseMeasurement | None = None
    reading: ScalingReading | None = None
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """The answer in words."""
        lines = [] if self.reading is None else [self.reading.sentence]
        lines += [*shared_sentences(self.measurement), self.verdict.sentence]
        lines += [] if self.use is None else self.use.sentences()
        return lines if self.retrieval is None else [*lines, *sentences(self.retrieval)]

    def table(self) -> str:
        """Each method's loss within and beyond the trained length, and its differences beyond it, as aligned text."""
        heads, rows = standing_rows(self.measurement, self.use)
        cells = [["method", *heads], *([name, *row] for name, row in rows.items())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells
        )

    def next_command(
        self, *, model: str | None = None, trained_length: int | None = None, record: str | Path | None = None
    ) -> str | None:
        """What to type next; None where there is nothing to run.

        - `model`: as a command names it; None: its name here. `trained_length`: where it had to be given. `record`: the
          file of this diagnosis, where it was written.
        """
        return next_step(
            self.verdict,
            self.name if model is None else model,
            self.measurement.protocol.target,
            trained_length=trained_length,
            record=None if record is None else str(record),
            library=self.environment.get("library", "ropewalk"),
        )

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Every number as one JSON document; also written to `path`, whole or not at all, if one is given."""
        content = document(
            self.name,
            self.measurement,
            self.verdict,
            self.audits,
            self.findings,
            environment=dict(self.environment),
        )
        content["left_out"] = list(self.left_out)
        if self.use is not None:
            content["use"] = self.use.to_json()
            content["use_details"] = finite({"summary": self.use.sentences(), "seconds": dict(self.use.seconds)})
        if self.retrieval is not None:
            content["retrieval"] = finite(self.retrieval.rows())
            details = {**self.retrieval.details(), "summary": list(sentences(self.retrieval))}
            content["retrieval_details"] = finite(details)
        content["scaling_reading"] = None if self.reading is None else finite(self.reading.to_json())
        if path is not None:
            write_whole(Path(path), json.dumps(content, indent=1, allow_nan=False) + "\n")
        return content

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one HTML page with its figures; also written to `path`, whole or not at all, if one is given.

        Raises `RopeError` without the extra `figures`.
        """
        page = report_page(self.to_json())
        if path is not None:
            write_whole(Path(path), page)
        return page

    def figure(self, name: str = "loss") -> Figure:
        """One figure of the report, of matplotlib: "loss", "use", "retrieval", "frequencies" or "wavelengths".

        Raises `RopeError` for what was not measured, and without the extra `figures`.
        """
        return report_figure(self.to_json(), name)

    def __str__(self) -> str:
        first = [f"{self.name}: {self.verdict.sentence}", *self.left_out]
        following = self.next_command()
        rest = [line for line in self.sentences() if line != self.verdict.sentence]
        return "\n".join([*first, "", self.table(), *rest, *([f"Next: {following}"] if following else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The verdict, the table and the other sentences, for a notebook; needs no extra."""
        heads, rows = standing_rows(self.measurement, self.use)
        first, others = headline(self.verdict.sentence)
        following = self.next_command()
        lines = [f"<p><b>{escape(self.name)}: {escape(first)}</b> {escape(others)}</p>"]
        lines += [f"<p>{escape(line)}</p>" for line in self.left_out]
        lines += ["<table><tr>", *(f"<th>{escape(head)}</th>" for head in ("method", *heads))]
        for name, row in rows.items():
            lines += ["</tr><tr>", *(f"<td>{escape(cell)}</td>" for cell in (name, *row))]
        lines.append("</tr></table>")
        lines += [f"<p>{escape(line)}</p>" for line in self.sentences() if line != self.verdict.sentence]
        return "".join([*lines, *([f"<pre>{escape(following)}</pre>"] if following else [])])
