"""`Diagnosis`: the doctor's one record. It is written to JSON and read back; pages, files and commands take it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from html import escape
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ropewalk.atomic_io import read_json, write_output
from ropewalk.diagnosis.evidence import Evidence, Standing, Window, WindowReading
from ropewalk.diagnosis.facts import Found
from ropewalk.diagnosis.page import Picture, figure_of, page_of, pictures_of
from ropewalk.diagnosis.plan import CROP, PLAIN
from ropewalk.diagnosis.rules import Action, works
from ropewalk.records import FORMAT, checked, document, restored
from ropewalk.serving.engines import ENGINES
from ropewalk.statistics import counted, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADS = ("method", "finds beyond", "near", "loss less crop's", "cost", "runs in")
BEYOND = (HEADS[1], HEADS[3])  # only if the target exceeds the trained length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The doctor's answer about one model on one or several texts.

    - `action`: "unfit" (nothing can be said about this model on this text), "keep" (use it unchanged), "extend" (by
      `method`), "cut" (pass it only the last tokens, up to its trained length) or "undecided".
    - `headline`: the answer in one sentence. `reasons`: the sentences that support it.
    - `method`: the method to extend with. `length`: tokens up to which "keep" or "extend" holds, with 90 % confidence.
    - `equal`: methods that are not shown to find less. `engine`: where this holds: "python" or the name of an engine;
      None: any engine.
    - `config`: the keys of config.json that make a checkpoint use the method; None if no config can express it.
    - `command`: the shell command, or the lines of Python, that apply the method; None if it is not "extend".
    - `beside`: the answer for engines, if no engine was named and `method` runs in Python only; the answer for Python,
      if the named engine cannot run what finds more; else None.
    - `otherwise`: the headline if a loss that lies at a limit were on its other side, or None.
    - `settled`: whether further windows are unlikely to change the answer. `stopped`: why the run ended, or None.
    - `next`: the command that may decide, or None; `next_sentence`: the same in words.
    """

    action: Action
    headline: str
    reasons: tuple[str, ...] = ()
    method: str | None = None
    length: int | None = None
    equal: tuple[str, ...] = ()
    engine: str | None = None
    config: dict[str, Any] | None = None
    command: str | None = None
    beside: Verdict | None = None
    otherwise: str | None = None
    settled: bool = True
    stopped: str | None = None
    next: str | None = None
    next_sentence: str | None = None

    @property
    def sentence(self) -> str:
        """Return the headline and the reasons as one text."""
        return " ".join((self.headline, *self.reasons))

    @property
    def steps(self) -> list[str]:
        """Return the lines that follow the sentence: what to run, as it is to be pasted, and the change of a config."""
        lines = [self.next_sentence or "", (self.command and self.next) or ""]
        command = self.command or self.next
        lines += [] if command is None else ["Next:", command]
        lines += [] if self.config is None else [f"or, in config.json: {json.dumps(self.config)}"]
        return [line for line in lines if line]


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodForm:
    """How a method is set: the keys of config.json; None if no config expresses it.

    - `same_as`: the method with equal frequencies at this length that was measured instead, or None.
    - `engines`: those that can run it; none: only Python.
    """

    config: dict[str, Any] | None = None
    same_as: str | None = None
    engines: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookBack:
    """The answer after a number of windows; `seconds` of measuring."""

    windows: int
    seconds: float
    action: Action
    method: str | None
    length: int | None
    headline: str


Kept = TypeVar("Kept", bound="Measurement")


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Measurement:
    """What all records of the doctor contain. Lengths are in tokens.

    - `name`: the model's, without folders. `kind`: of facts. `texts`: their names. `seed`: of windows and facts.
    - `environment`: versions, machine and settings. `notes`: sentences about the run.
    """

    HEAD: ClassVar[Mapping[str, str]] = {}  # what tells a record of this class from others

    name: str
    trained_length: int
    target: int
    kind: str
    texts: tuple[str, ...]
    seed: int
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Return all results as one JSON document; if `path` is given, write it, completely or not at all.

        Numbers are finite or null. Its commands contain the model's complete path.
        """
        return document(self, path, format=FORMAT, **self.HEAD)

    @classmethod
    def from_json(cls: type[Kept], content: Mapping[str, Any]) -> Kept:
        """Return the record that `to_json` wrote. Raises `RopeError` for anything else."""
        with checked(content):
            names = {field.name for field in dataclasses.fields(cls)}
            made: Kept = restored(cls, {name: value for name, value in content.items() if name in names})
            str(made)  # raises for missing numbers
            return made


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis(Measurement):
    """All that the doctor measured and concluded. Losses are in nats per token, times in seconds.

    - `blocks`: [start, end) of positions.
    - `windows`: the facts of each window. `readings`: by method, one for each window in order.
    - `methods`: how each is set. `evidence`: of the last look, which `verdict` follows from. `looks`: all of them.
    - `inspection`: the audits and findings of the config, as `ropewalk inspect` gives them.
    - `scaling`: whether the model was trained with its scaling, if this had to be measured.
    - The other fields are those of every `Measurement`.

    >>> import ropewalk as rw
    >>> found = rw.doctor("tiny", target=512, methods="dca", windows=1, progress=False)
    >>> found.trained_length, list(found.readings)
    (256, ['plain', 'dca', 'crop'])
    """

    blocks: tuple[tuple[int, int], ...]
    windows: tuple[Window, ...]
    readings: Mapping[str, tuple[WindowReading, ...]]
    methods: Mapping[str, MethodForm]
    evidence: Evidence
    verdict: Verdict
    looks: tuple[LookBack, ...]
    inspection: Mapping[str, Any]
    scaling: Mapping[str, Any] | None = None

    @property
    def following(self) -> list[str]:
        """Return the lines that follow the answer: notes, what to run next, and the answer beside."""
        verdict = self.verdict
        lines = [*([] if self.scaling is None else [str(self.scaling["sentence"])]), *self.notes, *verdict.steps]
        if (beside := verdict.beside) is not None:
            place = "Python" if beside.engine == "python" else "engines"
            lines += [f"\nIn {place}: {beside.sentence}", *beside.steps]
        return lines

    @classmethod
    def read(cls, path: str | Path) -> Diagnosis:
        """Return the diagnosis of a file. Raises `RopeError` if it cannot be read, and as `from_json`."""
        return cls.from_json(read_json(Path(path)))

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the report as one HTML page with figures; if `path` is given, write it, completely or not at all.

        Raises `RopeError` if the extra `figures` is not installed.
        """
        page = page_of(self)
        if path is not None:
            write_output(path, page)
        return page

    def figure(self, name: str = "facts") -> Figure:
        """Return one matplotlib figure of the report: "facts" or "loss".

        Raises `RopeError` for another name, or if the extra `figures` is not installed.
        """
        return figure_of(self, name)

    def pictures(self) -> dict[str, Picture]:
        """Return the figures of the report."""
        return pictures_of(self)

    @property
    def labels(self) -> dict[str, str]:
        """Return the methods but crop, each with the names of all that share its numbers: "ntk = dynamic"."""
        return {
            method: " = ".join([method, *(name for name, of in self.methods.items() if of.same_as == method)])
            for method in self.evidence.standings
            if method != CROP
        }

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the headers and the rows of the ranked table: what works first, then what finds most."""
        evidence, rows = self.evidence, []
        standings = [evidence.standings[name] for name in self.labels]
        standings.sort(
            key=lambda one: (
                not works(evidence, one.method),
                -(one.beyond.share if one.beyond else -1.0),
                one.method != PLAIN,
            )
        )
        for one in standings:
            loss = "not measured" if one.loss is None else plus_minus(one.loss.value, one.loss.interval)
            cost = "" if one.cost is None else f"{one.cost.value:+.2f}"
            row = [self.labels[one.method], _of(one.beyond, one), _of(one.near, one), loss, cost]
            rows.append([*row, _runs_in(self.methods[one.method].engines)])
        shown = [head not in BEYOND or self.target > self.trained_length for head in HEADS]
        return list(compress(HEADS, shown)), [list(compress(row, shown)) for row in rows]

    def terms(self) -> str:
        """Return what the table's words mean, and what was read."""
        trained, count = self.trained_length, self.evidence.windows
        names = dict.fromkeys(self.texts[window.text] for window in self.windows)
        said = (
            f"Measured: {counted(count, 'window')} of {self.target:,} tokens of {', '.join(names)}, seed {self.seed}. "
        )
        if self.target > trained:
            said += (
                f"beyond: facts told more than {trained:,} tokens before the question; chance finds one in four. "
                f"crop: only the last {trained:,} tokens. "
            )
        said += "cost: loss within the trained length, less that of the unchanged model (plain). "
        said += "Losses in nats per token, ±: 99.5 % interval."
        choice = self.environment.get("dtype_choice")
        return said if choice is None else f"{said} Computed in {self.environment['dtype']}: {choice}."

    def table(self) -> str:
        """Return the ranked table of methods as text."""
        heads, rows = self.rows()
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (heads, *rows)]
        return "\n".join("  ".join(line).rstrip() for line in lines)

    def __str__(self) -> str:
        return "\n".join([self.table(), "", f"{self.name}: {self.verdict.sentence}", *self.following])

    def __repr__(self) -> str:
        return f"Diagnosis({self.name}: {self.verdict.headline})"

    def _repr_html_(self) -> str:
        """Return the text for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"


def _of(count: Found | None, standing: Standing) -> str:
    if count is None:
        return "given up" if standing.broken else ""
    return f"{count.found} of {count.asked}"


def _runs_in(engines: tuple[str, ...]) -> str:
    """Return the engines of a row in few words."""
    if len(engines) == len(ENGINES):
        return "all engines"
    return ", ".join(engines) or "Python"
