"""`Diagnosis`: the doctor's one record. It is written to JSON and read back; pages, files and commands take it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, ClassVar, Self

from ropewalk.atomic_io import read_json
from ropewalk.audit.audit import Audit, answer
from ropewalk.diagnosis.evidence import Evidence, Standing, choice
from ropewalk.diagnosis.facts import Window
from ropewalk.diagnosis.rules import WORDS, Action, fault, works
from ropewalk.diagnosis.schedule import CROP, PLAIN, MethodForm, WindowReading
from ropewalk.records import FORMAT, checked, document, restored
from ropewalk.serving.engines import ENGINES
from ropewalk.statistics import counted, plus_minus

BEYOND = ("result", "finds beyond", "extra loss")  # only if the target exceeds the trained length


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The doctor's answer about one model on one or several texts.

    - `action`: "unfit" (nothing can be said about this model on this text), "keep" (use it unchanged), "extend" (by
      `method`), "cut" (pass it only the last tokens, up to its trained length) or "undecided".
    - `headline`: the answer in one sentence. `reasons`: the sentences that support it.
    - `method`: the method to extend with. `length`: tokens up to which "keep" or "extend" holds, with 90 % confidence;
      None, also under "keep": not known.
    - `equal`: methods that are not shown to find less. `engine`: where this holds: "python" or the name of an engine;
      None: any engine.
    - `config`: the keys of config.json that make a checkpoint use the method; None if no config can express it.
    - `command`: the shell command, or the lines of Python, that apply the method; None if it is not "extend".
      `python`: the lines of Python if `command` is of the shell.
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
    python: str | None = None
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
        """Return the lines that follow the sentence: what to run, as it is to be pasted."""
        lines = [self.next_sentence or "", (self.command and self.next) or ""]
        command = self.command or self.next
        lines += [] if command is None else ["Next:", command]
        lines += [] if self.python is None else ["\nOr in Python:", self.python]
        return [line for line in lines if line]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LookBack:
    """The answer after a number of windows; `seconds` of measuring."""

    windows: int
    seconds: float
    action: Action
    method: str | None
    length: int | None
    headline: str


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
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the record that `to_json` wrote. Raises `RopeError` for anything else."""
        with checked(content):
            names = {field.name for field in dataclasses.fields(cls)}
            made: Self = restored(cls, {name: value for name, value in content.items() if name in names})
            made._parts()  # raises for missing numbers, and for lists that do not fit together
            return made

    def _parts(self) -> list[Any]:
        """Return what a report needs of the record."""
        return [str(self)]


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
    def remarks(self) -> list[str]:
        """Return the sentences about the run."""
        return [*([] if self.scaling is None else [str(self.scaling["sentence"])]), *self.notes]

    @property
    def following(self) -> list[str]:
        """Return the lines that follow the answer: remarks, what to run next, and the answer beside."""
        verdict = self.verdict
        lines = [*self.remarks, *verdict.steps]
        if (beside := verdict.beside) is not None:
            place = "Python" if beside.engine == "python" else "engines"
            lines += [f"\nIn {place}: {beside.sentence}", *beside.steps]
        return lines

    @property
    def audit(self) -> list[str]:
        """Return the rope of the config and its findings, a line each."""
        audits = self.inspection.get("audits") or [self.inspection["audit"]]
        names = [field.name for field in dataclasses.fields(Audit)]  # older records have further ones
        rows = answer([Audit(**{name: one[name] for name in names if name in one}) for one in audits])
        lines = [f"{name.replace('_', ' ')}: {value}" for name, value in rows.items()]
        return lines + [
            f"{one['severity']} {one['code']}: {one['message']} {one['cure']}" for one in self.inspection["lint"]
        ]

    def _parts(self) -> list[Any]:
        return [*super()._parts(), *self.audit, self.evidence.standings[PLAIN], *map(self.facts, self.labels)]

    @classmethod
    def read(cls, path: str | Path) -> Diagnosis:
        """Return the diagnosis of a file. Raises `RopeError` if it cannot be read, and as `from_json`."""
        return cls.from_json(read_json(Path(path)))

    @property
    def labels(self) -> dict[str, str]:
        """Return the methods but crop, each with the names of all that share its numbers: "ntk = dynamic"."""
        return {
            method: " = ".join([method, *(name for name, of in self.methods.items() if of.same_as == method)])
            for method in self.evidence.standings
            if method != CROP
        }

    @property
    def ranked(self) -> list[Standing]:
        """Return the standing of each method but crop: the answer, then what works, then what finds most."""
        evidence = self.evidence
        return sorted(
            (evidence.standings[name] for name in self.labels),
            key=lambda one: (
                one.method != self.verdict.method,
                not works(evidence, one.method),
                -(one.beyond.share if one.beyond else -1.0),
                one.method != PLAIN,
            ),
        )

    def facts(self, method: str) -> list[list[tuple[int, bool]]]:
        """Return for each window that was asked: of each fact its distance in tokens, and whether it was found."""
        return [
            [(self.target - fact.start, choice(row) == fact.right)
             for fact, row in zip(window.facts, one.answers, strict=True)]
            for window, one in zip(self.windows, self.readings[method], strict=False) if one.answers
        ]  # fmt: skip

    def result(self, method: str) -> str:
        """Return a method's result in few words: whether it is the answer, and else why not."""
        verdict = self.verdict
        if method == (PLAIN if verdict.action == "keep" else verdict.method):
            return "chosen"
        if method in verdict.equal:
            return "as good"
        if not self.methods[method].runs_in(verdict.engine):
            return f"not in {verdict.engine}"
        return fault(self.evidence, method)[0] or {"extend": "finds less", "keep": "not needed"}.get(verdict.action, "")

    def rows(self) -> dict[str, dict[str, str]]:
        """Return the table of methods, in the order of `ranked`: by method, its cells by the head of the column."""
        rows, within = {}, () if self.target > self.trained_length else BEYOND
        for one in self.ranked:
            engines = self.methods[one.method].engines
            runs = ", ".join(engines) or "Python"
            if len(engines) > 2:
                runs = "engines" if len(engines) == len(ENGINES) else f"{len(engines)} engines"
            cells = {
                "method": self.labels[one.method], "result": self.result(one.method),
                "finds beyond": str(one.beyond or ""), "near": str(one.near or ""),
                "extra loss": plus_minus(one.loss.value, one.loss.interval, 2) if one.loss else "not measured",
                "cost": plus_minus(one.cost.value, None, 2) if one.cost else "", "runs in": runs,
            }  # fmt: skip
            rows[one.method] = {head: cell for head, cell in cells.items() if head not in within}
        return rows

    def grid(self) -> list[list[str]]:
        """Return the heads and the rows of the table of methods."""
        rows = self.rows()
        return [[*rows[PLAIN]], *([*cells.values()] for cells in rows.values())]

    def terms(self) -> str:
        """Return what the table's words mean, with the limits, and what was read."""
        trained, count = self.trained_length, self.evidence.windows
        names = dict.fromkeys(self.texts[window.text] for window in self.windows)
        said = (
            f"Measured: {counted(count, 'window')} of {self.target:,} tokens of {', '.join(names)}, seed {self.seed}. "
        )
        if self.target > trained:
            results = {self.result(one.method) for one in self.ranked}
            said += "".join(f"{name}: {meaning}. " for name, meaning in WORDS.items() if name in results)
            said += (
                f"beyond: facts told more than {trained:,} tokens before the question; chance finds one in four. "
                f"extra loss: against a cut prompt, the last {trained:,} tokens. "
            )
        said += "cost: loss within the trained length, less that of plain, the unchanged model. "
        said += "Losses in nats per token, ±: 99.5 % interval."
        why = self.environment.get("dtype_choice")
        return said if why is None else f"{said} Computed in {self.environment['dtype']}: {why}."

    def table(self) -> str:
        """Return the ranked table of methods as text."""
        return "\n".join(aligned(self.grid(), str.ljust))

    def __str__(self) -> str:
        return "\n".join([self.table(), "", f"{self.name}: {self.verdict.sentence}", *self.following])

    def __repr__(self) -> str:
        return f"Diagnosis({self.name}: {self.verdict.headline})"

    def _repr_html_(self) -> str:
        """Return the text for a notebook."""
        return f"<pre>{escape(str(self))}</pre>"


def aligned(rows: Sequence[Sequence[str]], justified: Callable[[str, int], str]) -> list[str]:
    """Return the rows of a table as lines with columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(justified, row, widths)).rstrip() for row in rows]
