"""`ropewalk doctor --map`: which facts a model finds, by the length of the text and their depth in it.

The map has a column for each length and a row for each part of a text, from its first tokens to its end, where the
questions are. Whole groups of four facts lie in a cell, so the probability of its count by chance is exact. The
distance of a fact is the number of tokens from its first one to the end of the text.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from ropewalk.atomic_io import read_json
from ropewalk.checkpoints.reader import Advance
from ropewalk.diagnosis.evidence import groups_of
from ropewalk.diagnosis.facts import DENSEST, FIRST, GROUP, SHARE, Filled, Found, Layout, PlacedFact
from ropewalk.diagnosis.prepare import Opened, open_model, schedule_of
from ropewalk.diagnosis.record import Diagnosis, Measurement, aligned
from ropewalk.diagnosis.run import RunInterrupted, resumed
from ropewalk.diagnosis.schedule import CROP, Design, Job, answers_of, at_once
from ropewalk.diagnosis.settings import DoctorSettings
from ropewalk.figures.style import tokens
from ropewalk.progress import Progress, duration, say, shown
from ropewalk.statistics import counted

KIND, MAP_FORMAT = "map", 1  # of the ledger; a change of how a window is filled or read takes the next number
LENGTHS, ROWS = 4, 5
BEGINNING = 150  # tokens of the first row: models find less of what stands there
CELL_GROUPS = 4  # of a cell, about, in all windows of a length
UNCERTAIN = 0.01  # the probability by chance from which a count is put in brackets


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapWindow:
    """A window of `length` tokens from the token `start` of a text, by its number, and its facts."""

    length: int
    text: int
    start: int
    facts: tuple[PlacedFact, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class DepthMap(Measurement):
    """What a model finds by length and depth, under each method. Lengths are in tokens.

    - `beginning`: tokens of the first row; 0: there is no such row. `rows`: equal parts of a text below it.
    - `answers`: by method, for each window and fact, the log-probability of its four choices in nats.
    - The other fields are those of every `Measurement`. Methods are set for the target, whatever the length of a text.

    >>> DepthMap(name="empty", trained_length=256, target=512, kind="words", texts=(), seed=0, rows=2, beginning=150,
    ...          windows=(), answers={}).depths
    ('first 150', '0\N{EN DASH}50 %', '50\N{EN DASH}100 %')
    """

    HEAD: ClassVar[Mapping[str, str]] = {"record": KIND}

    rows: int
    beginning: int
    windows: tuple[MapWindow, ...]
    answers: Mapping[str, tuple[tuple[tuple[float, ...], ...], ...]]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Return the lengths in ascending order."""
        return tuple(sorted({window.length for window in self.windows}))

    @property
    def depths(self) -> tuple[str, ...]:
        """Return the name of each row."""
        parts = itertools.pairwise(round(100 * part / self.rows) for part in range(self.rows + 1))
        first = [f"first {self.beginning}"] if self.beginning else []
        return (*first, *(f"{low}\N{EN DASH}{high} %" for low, high in parts))

    def found(self, method: str, keep: Callable[[int, PlacedFact], bool]) -> Found:
        """Count what a method finds in the groups of which `keep(length, fact)` is true for all four facts."""
        groups = []
        for window, rows in zip(self.windows, self.answers[method], strict=True):
            answers = zip(window.facts, rows, strict=True)
            groups += groups_of((fact, row) for fact, row in answers if keep(window.length, fact))
        return Found.of(groups, confidence=0.95)

    def cells(self, method: str) -> list[list[Found]]:
        """Return the counts of a method: a list for each depth, with one for each length."""
        bands = {length: bands_of(length, self.rows, self.beginning) for length in self.lengths}

        def cell(depth: int, length: int) -> Found:
            start, end = bands[length][depth]
            return self.found(method, lambda at, fact: at == length and start <= fact.start < end)

        return [[cell(depth, length) for length in self.lengths] for depth in range(len(self.depths))]

    def by_length(self, method: str) -> str:
        """Return what a method finds in texts up to the trained length, and in longer ones if there are any."""
        trained = self.trained_length
        short, long = self.found(method, lambda at, _: at <= trained), self.found(method, lambda at, _: at > trained)
        said = f"{short} up to {tokens(min(trained, self.target))} tokens"
        return f"{said}, {long} beyond" if long.asked else said

    @property
    def headline(self) -> str:
        """Return what each method finds in texts beyond the trained length, if there are any, in one sentence."""
        trained, beyond = self.trained_length, self.target > self.trained_length
        counts = {method: self.found(method, lambda at, _: at > trained or not beyond) for method in self.answers}
        best = sorted(counts, key=lambda method: -counts[method].share)
        said = [f"{name} {counts[name]}" if number else f"{name} finds {counts[name]} facts"
                for number, name in enumerate(best)]  # fmt: skip
        where = f"longer than {trained:,}" if beyond else f"of up to {self.target:,}"
        return f"In texts {where} tokens, {', '.join(said)}."

    @property
    def sentences(self) -> list[str]:
        """Return the counts that tell place from distance: at equal distances, facts in different places."""
        trained, first, said = self.trained_length, self.beginning, list[str]()
        for method in self.answers:
            count = partial(self.found, method)
            early = count(lambda at, fact: at <= trained and fact.start < first)
            if early.asked:
                later = count(lambda at, fact: at <= trained and fact.start >= first)
                said.append(
                    f"{method}, texts up to {trained:,} tokens: it finds {early} facts in the first {first} tokens, "
                    f"and {later} later."
                )
            near = count(lambda at, fact: at == trained and fact.start >= first)
            longer = count(lambda at, fact: at - fact.start <= trained < at)
            if near.asked and longer.asked:
                far = count(lambda at, fact: at - fact.start > trained)
                said.append(
                    f"{method}, at most {trained:,} tokens back: {near} in texts of that length, {longer} in longer "
                    f"ones; farther back {far}."
                )
        return said

    def table(self, method: str) -> list[list[str]]:
        """Return the head and the rows of a method's table."""
        lengths = [f"{length:,}{'*' if length > self.trained_length else ''}" for length in self.lengths]
        cells = zip(self.depths, self.cells(method), strict=True)
        return [[method, *lengths], *([depth, *map(cell_text, row)] for depth, row in cells)]

    @property
    def terms(self) -> str:
        """Return what the table's marks mean, and what was read."""
        names = ", ".join(dict.fromkeys(self.texts[window.text] for window in self.windows))
        beyond = "*: longer than the trained length. " if self.target > self.trained_length else ""
        return (
            "Columns: tokens of the text, with the questions at its end. Rows: place of the fact in it. In brackets: "
            f"chance finds as many with a probability above {UNCERTAIN:g}. {beyond}Measured: "
            f"{counted(len(self.windows), 'window')} of {names}, seed {self.seed}, each read once under each method."
        )

    def __str__(self) -> str:
        lines: list[str] = []
        for table in map(self.table, self.answers):
            lines += [*aligned(table, str.rjust), ""]
        return "\n".join([*lines, f"{self.name}: {self.headline}", *self.sentences, *self.notes, "", self.terms])


def cell_text(found: Found) -> str:
    """Return a count as "12/16", or "(5/16)" if chance explains it."""
    said = f"{found.found}/{found.asked}" if found.asked else ""
    return said if not said or found.exceeds_chance(UNCERTAIN) else f"({said})"


def lengths_of(trained: int, target: int, least: int) -> tuple[int, ...]:
    """Return a map's lengths: the quarters of the target, with the trained length in place of the nearest shorter one.

    Lengths below `least` are left out.

    >>> lengths_of(8192, 16384, 4096), lengths_of(8192, 9000, 1), lengths_of(600, 600, 151)
    ((4096, 8192, 12288, 16384), (2250, 4500, 8192, 9000), (300, 450, 600))
    """
    quarters = [target * part // LENGTHS for part in range(1, LENGTHS + 1)]
    if trained < target:
        quarters[min(range(LENGTHS - 1), key=lambda part: abs(quarters[part] - trained))] = trained
    return tuple(sorted({length for length in quarters if length >= least}))


def bands_of(length: int, rows: int, beginning: int) -> list[tuple[int, int]]:
    """Return `[start, end)` of each row in a text.

    >>> bands_of(1000, 2, 0), bands_of(4000, 2, 150)
    ([(0, 500), (500, 1000)], [(0, 150), (150, 2000), (2000, 4000)])
    """
    bands = list(itertools.pairwise([beginning, *(length * part // rows for part in range(1, rows + 1))]))
    return [(0, beginning), *bands] if beginning else bands


def fill(opened: Opened, target: int) -> tuple[int, int, list[tuple[MapWindow, Filled]]]:
    """Return the equal rows, the tokens of the first row or 0, and the windows of all lengths, the longest first.

    A window has about 6 % of facts, and at least a group in each row. If these are more than 30 % of it, it has facts
    in one row, and the next window in the next one. For each length at least about as many tokens are read as the
    target has, and about 16 facts lie in a cell; for each row at most in so many windows as the settings allow.
    """
    teller, texts, settings = opened.teller, opened.texts, opened.settings
    need = (GROUP + 1) * teller.size + GROUP + FIRST  # tokens in which four facts certainly lie
    least = need + max(0, teller.question - GROUP - FIRST)  # of a row: the questions are at the end of the last one
    lengths = lengths_of(opened.trained, target, 2 * least)
    rows = min(ROWS, lengths[0] // least)
    beginning = BEGINNING if need <= BEGINNING <= lengths[0] // rows // 2 else 0
    filled, told = [], set[tuple[str, str]]()
    for length in reversed(lengths):
        bands, room = bands_of(length, rows, beginning), sum(len(text.tokens) // length for text in texts)
        early = max(1, int(DENSEST * beginning / teller.size) // GROUP)
        most, asked_at = teller.most // GROUP - early, length - teller.question
        each = max(1, min(most // rows, round(SHARE * length / (teller.size + 1) / GROUP / rows)))
        turns = 1 if GROUP * teller.size * len(bands) <= DENSEST * length else len(bands)
        count = max(round(target / length), round(CELL_GROUPS / each))
        count = min(room, turns * min(count, settings.windows or count))
        design = Design(trained_length=length, target=length, windows=count, seed=settings.seed)
        for number, (text, start) in enumerate(design.places([len(text.tokens) for text in texts])):
            chosen = [(max(FIRST, low), min(high, asked_at), GROUP * (early if high == beginning else each))
                      for low, high in (bands if turns == 1 else [bands[number % turns]])]  # fmt: skip
            of, layout = texts[text], Layout(length, asked_at, teller.size, 0, tuple(chosen))
            window = teller.fill(
                layout, of.tokens[start : start + length], seed=(settings.seed, of.digest, length, number), told=told,
                wording=of.wording,
            )  # fmt: skip
            filled.append((MapWindow(length=length, text=text, start=start, facts=window.facts), window))
    return rows, beginning, filled


def depth_map(
    model: object = "tiny", given: DoctorSettings | None = None, *, progress: Progress | bool | None = None,
    kept: Sequence[str] = (), **settings: Any,
) -> DepthMap:  # fmt: skip
    """Measure which facts a model finds, by the length of the text and their depth in it.

    **Arguments:**
    - `model`, `progress`, `settings`: as for `ropewalk.doctor`. `target` is the longest of four lengths, among them the
      trained one; None: four times the trained length, less if the text or the minutes are too few. `methods` come next
      to plain; None: the first that the doctor compares. crop, which cannot see far facts, is left out. `windows`:
      most for each length, or each row of it if that is short.
    - `given`: the settings as one object. `kept`: words of the command line to repeat in the next command.

    **Raises:** `RopeError` if something cannot be measured, or takes longer than `minutes`; `RunInterrupted` on Ctrl-C,
    after which `resume=True` resumes the run.

    >>> list(depth_map("tiny", target=512, methods="dca", windows=1, progress=False).answers)
    ['plain', 'dca']
    """
    given = given or DoctorSettings(**settings)
    opened = open_model(model, given, progress)
    reader = opened.reader
    for target in opened.targets:
        schedule = schedule_of(opened, target, 1)
        methods = [name for name in schedule.distinct if name != CROP][: None if given.method_names else 2]
        rows, beginning, windows = fill(opened, target)
        jobs = [
            Job.of(name, number, schedule.key(name, number), len(one.ids), asked=one.asked)
            for number, (_, one) in enumerate(windows)
            for name in methods
        ]
        if opened.fits(jobs):
            break
    else:
        raise opened.too_long("map", opened.spent + opened.pace.seconds(jobs), target, ("--map", *kept))
    depends = opened.trained, target, opened.teller.kind.name
    ledger = opened.ledger(KIND, MAP_FORMAT, [one for _, one in windows], *depends)

    def measure(job: Job, advance: Advance) -> None:
        rows = answers_of(reader.under(schedule.positions[job.method]), windows[job.window][1], advance=advance)
        ledger.add(job.key, {"answers": [[round(value, 4) for value in row] for row in rows]})

    with ledger.at_work(), shown("doctor", progress) as display:
        spans = f"{windows[-1][0].length:,} to {target:,} tokens under {', '.join(methods)}"
        notes, time = resumed(ledger), duration(opened.pace.seconds(jobs))
        for note in [*notes, f"The map takes about {time}: {counted(len(windows), 'window')} of {spans}."]:
            say(display, note)
        due = [job for job in jobs if job.key not in ledger]
        try:
            at_once(reader, due, measure, target=target, progress=display)
        except KeyboardInterrupt as stop:
            raise RunInterrupted(len(ledger), len(jobs) - len(ledger)) from stop
    answers = {name: tuple(tuple(map(tuple, ledger[job.key]["answers"])) for job in jobs if job.method == name)
               for name in methods}  # fmt: skip
    return DepthMap(
        name=reader.name, trained_length=opened.trained, target=target, kind=opened.teller.kind.name,
        texts=tuple(text.name for text in opened.texts), seed=given.seed, rows=rows, beginning=beginning,
        windows=tuple(window for window, _ in windows), answers=answers,
        environment=opened.environment(),
        notes=(*([] if opened.scaling is None else [str(opened.scaling["sentence"])]), *notes),
    )  # fmt: skip


def read_record(path: str | Path) -> Diagnosis | DepthMap:
    """Return the diagnosis or the map of a file. Raises `RopeError` for anything else."""
    content = read_json(Path(path))
    return DepthMap.from_json(content) if content.get("record") == KIND else Diagnosis.from_json(content)
