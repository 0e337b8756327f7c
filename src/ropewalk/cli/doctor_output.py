"""What `ropewalk doctor` prints: how it measured, the losses and the verdict, and retrieval."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ropewalk.cli.tables import difference_tables, loss_tables, print_inspection, stacked
from ropewalk.diagnosis.document import how_measured, shared_sentences
from ropewalk.retrieval.summary import accuracy_rows, sentences

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.diagnosis.diagnosis import Diagnosis
    from ropewalk.diagnosis.measurement import Measurement
    from ropewalk.diagnosis.verdict import Verdict
    from ropewalk.retrieval.result import RetrievalMeasurement


def print_diagnosis(console: Console, found: Diagnosis) -> None:
    """The audit and the lint, how it was measured, and what was found."""
    print_inspection(console, found.name, found.audits, found.findings)
    if found.reading is not None:
        console.print(f"  {found.reading.sentence}", markup=False, highlight=False)
    console.print(f"\n{how_measured(found.measurement)}", markup=False, highlight=False)
    choice = found.environment.get("dtype_choice")
    if choice is not None:
        console.print(f"Computed in {found.environment['dtype']}: {choice}.", markup=False, highlight=False)
    print_losses(console, found.measurement, found.verdict)
    for line in () if found.use is None else found.use.sentences():
        console.print(line, markup=False, highlight=False)
    if found.retrieval is not None:
        print_retrieval(console, found.retrieval)


def print_losses(console: Console, measurement: Measurement, verdict: Verdict) -> None:
    """The tables of losses, the verdict, and what a config needs for it."""
    console.print()
    for table in (*loss_tables(measurement, console, verdict), *difference_tables(measurement, console, verdict)):
        console.print(table)
    for line in (*shared_sentences(measurement), f"Verdict: {verdict.action}. {verdict.sentence}"):
        console.print(line, markup=False, highlight=False)
    if verdict.next is not None:
        console.print(verdict.next.command, markup=False, highlight=False, soft_wrap=True)
    if verdict.config is not None:
        line = f"For the checkpoint's config.json:\n{json.dumps(verdict.config, indent=2)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_retrieval(console: Console, measurement: RetrievalMeasurement) -> None:
    """Accuracy by length, over all tasks and for each, and how far each method reaches."""
    tasks = measurement.protocol.tasks
    several = len(tasks) > 1
    for task in (None, *tasks) if several else (None,):
        heads, rows = accuracy_rows(measurement, task)
        title = f"Retrieval: {task or (tasks[0] if not several else 'mean of all tasks')}, part found"
        columns = [(head, "bold") for head in heads[1:]]
        for table in stacked(console, title, columns, {row[0]: row[1:] for row in rows}):
            console.print(table)
    for line in sentences(measurement):
        console.print(line, markup=False, highlight=False)
