"""What `ropewalk doctor` prints: how it measured, the losses and the recommendation, and retrieval."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ropewalk.cli.tables import difference_tables, loss_tables, print_inspection, stacked
from ropewalk.diagnosis.document import answer_lines, at_run_time, config_changes, shared_sentences
from ropewalk.retrieval.summary import accuracy_rows, sentences

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.diagnosis.diagnosis import Diagnosis
    from ropewalk.diagnosis.measurement import Measurement
    from ropewalk.retrieval.result import RetrievalMeasurement


def print_diagnosis(console: Console, found: Diagnosis) -> None:
    """The audit and the lint, how it was measured, and what was found."""
    print_inspection(console, found.name, found.audits, found.findings)
    console.print(f"\n{found.measurement.protocol.sentence()}", markup=False, highlight=False)
    print_losses(console, found.measurement)
    for line in () if found.use is None else found.use.sentences():
        console.print(line, markup=False, highlight=False)
    if found.retrieval is not None:
        print_retrieval(console, found.retrieval)


def print_losses(console: Console, measurement: Measurement) -> None:
    """The tables of losses, the recommendation, and what a config needs for it."""
    console.print()
    for table in (*loss_tables(measurement, console), *difference_tables(measurement, console)):
        console.print(table)
    answer = measurement.recommendation()
    for line in (*shared_sentences(measurement), *answer_lines(answer)):
        console.print(line, markup=False, highlight=False)
    call = None if answer.method is None else at_run_time(answer.method, measurement)
    if call is not None:
        line = f"No config can hold {answer.method}: at run time, {call}."
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    elif answer.method not in (None, "plain"):
        pasted = json.dumps(config_changes(answer.method, measurement), indent=2)
        line = f"For the checkpoint's config.json:\n{pasted}"
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
