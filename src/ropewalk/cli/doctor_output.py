"""What `ropewalk doctor` prints: the verdict, one table, what each method is, and what to type next."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from ropewalk.cli.tables import SEVERITIES, finding_line, stacked
from ropewalk.diagnosis.document import shared_sentences
from ropewalk.diagnosis.standings import standing_rows, used_in_words
from ropewalk.measure.answers import accuracy_rows, sentences
from ropewalk.methods import METHODS
from ropewalk.report.verdict import headline, reaches

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.diagnosis.diagnosis import Diagnosis
    from ropewalk.measure.answers import RetrievalMeasurement

_COLORS = {"extend": "green", "keep": "green", "cut": "yellow", "undecided": "yellow", "unfit": "red"}


def print_diagnosis(
    console: Console,
    found: Diagnosis,
    *,
    model: str,
    trained_length: int | None = None,
    record: Path | None = None,
) -> None:
    """The verdict first, then the evidence, then what to do; arguments as for `Diagnosis.next_command`."""
    print_verdict(console, found)
    print_table(console, found)
    if found.retrieval is not None:
        print_retrieval(console, found.retrieval)
    print_methods(console, found)
    for finding in found.findings:
        if finding.severity != SEVERITIES[-1]:
            console.print(finding_line(finding))
    print_next(console, found, found.next_command(model=model, trained_length=trained_length, record=record))


def print_verdict(console: Console, found: Diagnosis) -> None:
    """Its first sentence, the lengths beside it, and its reasons."""
    from rich.text import Text

    verdict, protocol = found.verdict, found.measurement.protocol
    first, others = headline(verdict.sentence)
    line = Text(f"{found.name}: ", style="bold")
    line.append(first, style=_COLORS[verdict.action])
    console.print(line.append(f" {others}", style="not bold"))
    for said in (*(() if found.reading is None else (found.reading.sentence,)), *found.left_out):
        console.print(Text(said))
    used = "" if found.use is None else used_in_words(found.use, verdict.method or "plain")
    used = "" if used in ("no", "open") else used
    facts = reaches(verdict.to_json(), protocol.trained_length, protocol.target, used)
    console.print(Text(", ".join(f"{what}: {length}" for what, length in facts).capitalize() + "."))


def print_table(console: Console, found: Diagnosis) -> None:
    """Every method's losses and differences."""
    from rich.text import Text

    protocol = found.measurement.protocol
    heads, rows = standing_rows(found.measurement, found.use)
    best = next((label for label in rows if label.split(" ")[0] == found.verdict.method), None)
    title = f"Loss within and beyond {protocol.trained_length:,} tokens, nats per token"
    console.print(Text(f"\n{title}", style="bold"))
    for table in stacked(console, None, [(head, "bold") for head in heads], rows, best):
        console.print(table)
    several = f"{protocol.total_windows} windows" if protocol.total_windows > 1 else "One window"
    texts = ", ".join(protocol.texts)
    plus_minus = " ±: 95 % intervals between windows." if protocol.total_windows > 1 else ""
    choice = found.environment.get("dtype_choice")
    if choice is not None:
        plus_minus += f" Computed in {found.environment['dtype']}: {choice}."
    if found.environment.get("library", "ropewalk") != "ropewalk":
        plus_minus += f" Computed by {found.environment['library']}."
    console.print(Text(f"{several} of {protocol.target:,} tokens of {texts}, seed {protocol.seed}.{plus_minus}\n"))


def print_methods(console: Console, found: Diagnosis) -> None:
    """What each method is, in a few words."""
    from rich.text import Text

    names = list(found.measurement.results)
    indent = " " * (4 + max(map(len, names)))
    for name in names:
        words = fill(
            METHODS[name].changes, max(console.width, len(indent) + 20), initial_indent=indent, subsequent_indent=indent
        )
        line = Text(f"  {name}", style="bold" if name == found.verdict.method else "")
        console.print(line.append(words[len(name) + 2 :], style="default"), soft_wrap=True)
    for said in ("", *shared_sentences(found.measurement)):
        console.print(Text(said))


def print_next(console: Console, found: Diagnosis, command: str | None) -> None:
    """The command that follows, and what to put into config.json by hand."""
    if command is not None:
        console.print("Next:", style="bold")
        console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
    if found.verdict.config is not None:
        line = f"or, in config.json: {json.dumps(found.verdict.config)}"
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
