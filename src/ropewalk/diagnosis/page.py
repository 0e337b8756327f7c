"""The report: one HTML page of one or several records, with figures. It requests no other file, and needs no script."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from ropewalk.atomic_io import as_path, check_output, write_output
from ropewalk.diagnosis.evidence import LEVEL, LOOK_CONFIDENCE, Standing
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.diagnosis.rules import COST_LIMIT, LOSS_LIMIT, rounded
from ropewalk.diagnosis.schedule import PLAIN
from ropewalk.figures.report import LossRow, StripRow, draw_bars, draw_map, draw_strip, finding
from ropewalk.figures.style import NARROW, WIDE, look_of, render
from ropewalk.imports import need
from ropewalk.statistics import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ropewalk.diagnosis.depth import DepthMap

PAGE, RECORD = "index.html", "report.json"
Record = Union[Diagnosis, "DepthMap"]
NAMED = 3  # methods in a title
FIGURES, MAP = ("facts", "losses"), ("map",)  # files of the figures of a diagnosis and of a map
KINDS = ("svg", "png")  # of these files


@dataclass(frozen=True)
class Picture:
    """A figure: its file's name, what it shows, in a sentence, a caption, and what draws it in a size in inches."""

    name: str
    said: str
    caption: str
    draw: Callable[[tuple[float, float]], Figure]


def strip_rows(diagnosis: Diagnosis) -> list[StripRow]:
    """Return the rows of the strip of facts, in the order of the table."""
    return [
        StripRow(
            name=diagnosis.labels[one.method], look=look_of(one.method), lanes=diagnosis.facts(one.method),
            trained=diagnosis.trained_length, count=str(one.beyond or one.near or ""),
            note="gave up: its loss broke down" if one.broken else diagnosis.result(one.method) if one.beyond else "",
        )
        for one in diagnosis.ranked
    ]  # fmt: skip


def _reach(one: Standing) -> int | None:
    """Return how many tokens back a method finds facts, rounded; None: to the end, 0: chance explains them."""
    if one.beyond is None or one.half is None or not one.beyond.exceeds_chance(LEVEL):
        return 0
    return None if one.half.tokens is None else rounded(one.half.tokens)


def _title(diagnosis: Diagnosis) -> str:
    """Return how far back the best methods and the unchanged model find facts."""
    ranked = [one for one in diagnosis.ranked if one.beyond is not None]
    named = [one for one in ranked if one.method != PLAIN][: NAMED - 1] + [one for one in ranked if one.method == PLAIN]
    if named:
        return finding({diagnosis.labels[one.method]: _reach(one) for one in named})
    near = diagnosis.evidence.standings[PLAIN].near
    return "No method was asked" if near is None else f"Unchanged, it finds {near.found} of {near.asked} facts"


def pictures_of(record: Record) -> list[Picture]:
    """Return the figures of a record, the main one first."""
    if isinstance(record, Diagnosis):
        rows, title = strip_rows(record), _title(record)
        found = "; ".join(f"{row.name} {row.count}" for row in rows if row.count)
        strip = _strip(FIGURES[0], rows, record.target, title, f"{title}. Found: {found}. Chance is one in four.")
        return [strip, *_losses(record)]
    from ropewalk.diagnosis.depth import cell_text

    panels = [(f"{method}: {record.by_length(method)}", record.cells(method)) for method in record.answers]
    return [Picture(
        MAP[0], record.headline,
        "Each cell: the facts found of those asked, by the length of the text and the place of the fact in it; bright: "
        "all, dark: as many as by chance, one in four. Brackets: chance explains the count.",
        lambda size: draw_map(panels, record.lengths, record.depths, record.trained_length, cell_text, size,
                              record.headline),
    )]  # fmt: skip


def _strip(name: str, rows: Sequence[StripRow], target: int, title: str, said: str) -> Picture:
    caption = (
        "Each dot is a fact hidden in the text, filled if the model finds it when asked at the end; a line of dots is "
        "a window of text. Curves: the share found around each distance, with 95 % intervals as bands."
    )
    return Picture(name, said, caption, lambda size: draw_strip(rows, target, title, size))


def _losses(diagnosis: Diagnosis) -> list[Picture]:
    """Return the figure of the losses against their limits, if any was measured."""
    rows = [
        LossRow(name=diagnosis.labels[one.method], look=look_of(one.method),
                losses=[None if mean is None else mean.value for mean in (one.loss, one.cost)],
                missing="gave up" if one.broken else "not measured")
        for one in diagnosis.ranked if one.method != PLAIN
    ]  # fmt: skip
    trained = diagnosis.trained_length
    panels = [("extra loss against a cut prompt", LOSS_LIMIT), (f"cost within {trained:,} tokens", COST_LIMIT)]
    over = [
        row.name
        for row in rows
        if any(value is not None and value > limit for value, (_, limit) in zip(row.losses, panels, strict=True))
    ]
    if not any(value is not None for row in rows for value in row.losses):
        return []
    names = f"{', '.join(over[:-1])} and {over[-1]}" if over[1:] else "".join(over) or "No method"
    names = names if len(over) <= NAMED else f"{len(over)} of {len(rows)} methods"
    title = f"{names} predict{'' if over[1:] else 's'} the text worse than the limits allow"
    caption = (
        "How much worse each method predicts the text: beyond the trained length than with only its last tokens, and "
        "within it than the unchanged model. Red: more than the limit, so the method is not the answer."
    )
    return [Picture(FIGURES[1], title, caption, lambda size: draw_bars(rows, panels, title, size))]


def page_of(*records: Record) -> str:
    """Return the page as one HTML text: every name and text is escaped.

    Several records have a comparison first, and then a section each. Raises `RopeError` if a package is missing.
    """
    parts = [_section(record, f"-{number}" if number else "") for number, record in enumerate(records)]
    several = [record for record in records if isinstance(record, Diagnosis)]
    if len(several) > 1:
        parts.insert(0, _comparison(several))
    from ropewalk.figures.inline import night_colors

    jinja2 = need("jinja2", extra="figures")
    folder = resources.files("ropewalk.diagnosis")
    sources = {file: folder.joinpath(file).read_text(encoding="utf-8") for file in ("page.html", "style.css")}
    template = jinja2.Environment(loader=jinja2.DictLoader(sources), autoescape=True, trim_blocks=True).get_template(
        "page.html"
    )
    names = ", ".join(dict.fromkeys(one.name for one in records))
    page: str = template.render(name=names, sections=parts, night=night_colors())
    return page


def _comparison(records: Sequence[Diagnosis]) -> dict[str, Any]:
    """Return the section that compares diagnoses: a row for each, named by what tells it from the others."""
    told = [
        (one.name, f"target {one.target:,}", ", ".join(one.texts), f"seed {one.seed}", one.verdict.method or PLAIN,
         counted(one.evidence.windows, "window"), str(number))
        for number, one in enumerate(records, 1)
    ]  # fmt: skip
    several = [number for number, column in enumerate(zip(*told, strict=True)) if len(set(column)) > 1]
    apart = several[:-1] if len({row[:-1] for row in told}) == len(told) else several  # the number, if it must
    rows, reaches = [], dict[str, int | None]()
    table = [["record", "answer", "method", "finds beyond", "unchanged", "extra loss", "cost"]]
    for one, words in zip(records, told, strict=True):
        name, method, cells = ", ".join(words[number] for number in apart), one.verdict.method or PLAIN, one.rows()
        values = [cells[of].get(head, "") for of, head in ((method, "finds beyond"), (PLAIN, "finds beyond"),
                                                           (method, "extra loss"), (method, "cost"))]  # fmt: skip
        table.append([name, one.verdict.headline, method, *values])
        strip = next(row for row in strip_rows(one) if row.name == one.labels[method])
        rows.append(replace(strip, name=name.replace(", ", "\n"), note=method if strip.count else strip.note))
        reaches[name] = _reach(one.evidence.standings[method])
    title = finding(reaches)
    picture = _strip("compared", rows, max(one.target for one in records), title, title)
    return {"figures": [_inline(picture)], "tables": [table], "headline": f"{title}."}


def _section(record: Record, suffix: str) -> dict[str, Any]:
    """Return the parts of a record's section; `suffix` keeps the ids of its figures apart."""
    common = {"title": record.name, "figures": [_inline(one, suffix) for one in pictures_of(record)],
              "environment": [[name, str(value)] for name, value in record.environment.items()]}  # fmt: skip
    if not isinstance(record, Diagnosis):
        return {**common, "headline": record.headline, "reasons": record.sentences, "lines": record.notes,
                "terms": record.terms}  # fmt: skip
    verdict = record.verdict
    return {
        **common, "headline": verdict.headline, "action": verdict.action, "reasons": verdict.reasons,
        "tables": [record.grid()], "best": [*record.rows(), None].index(verdict.method), "terms": record.terms(),
        "lines": record.remarks,
        "answers": [one for one in (verdict, verdict.beside) if one], "measured": how_measured(record),
        "looks": [[counted(one.windows, "window"), one.headline, f"{one.seconds:g}"] for one in record.looks],
        "audit": record.audit,
    }  # fmt: skip


def _inline(picture: Picture, suffix: str = "") -> dict[str, str]:
    """Return a figure for a page: its name, caption and SVG elements, wide and narrow."""
    from ropewalk.figures.inline import inline_svg

    name = f"{picture.name}{suffix}"
    (wide,), (narrow,) = (_drawn(picture, size, "svg") for size in (WIDE, NARROW))
    return {
        "name": picture.name, "caption": picture.caption,
        "wide": inline_svg(wide, name, picture.said),
        "narrow": inline_svg(narrow, f"{name}-narrow", picture.said),
    }  # fmt: skip


def _drawn(picture: Picture, size: tuple[float, float], *kinds: str) -> list[bytes]:
    """Return the files of a figure; characters that matplotlib's font lacks raise no warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        figure = picture.draw(size)
        return [render(figure, kind) for kind in kinds]


def how_measured(diagnosis: Diagnosis) -> str:
    """Return how the measurement was made, in a few sentences."""
    facts, control, trained = diagnosis.windows[0].facts, diagnosis.evidence.control, diagnosis.trained_length
    far = sum(fact.far for fact in facts)
    said = (
        f"Between the sentences of the text stand {far} far and {len(facts) - far} near facts in each window, such as "
        f"“{facts[0].told}” At the end the model is asked for each, as a choice of four values: those of four "
        f"neighbouring facts. Far facts lie wholly farther back than {trained:,} tokens, near ones within. Losses "
        "leave out the facts and two tokens after each. A reading is given up when its loss has risen by more than a "
        f"nat per token above any part within the trained length. Intervals hold with {100 * LOOK_CONFIDENCE:g} % at "
        "each of up to four looks."
    )
    if not control.asked:
        return said
    return f"{said} Asked after {trained:,} tokens, the unchanged model finds {control.found} of {control.asked}."


def check_folder(folder: Path, figures: Sequence[str] = FIGURES) -> None:
    """Raise `RopeError`, before any work is done, if the folder cannot be written or a package is missing."""
    for package in ("jinja2", "matplotlib"):
        need(package, extra="figures")
    for name in (PAGE, RECORD, *(f"{figure}.{kind}" for figure in figures for kind in KINDS)):
        check_output(as_path(folder, "report") / name)


def write_report(folder: Path, *records: Record) -> Path:
    """Write index.html, report.json and each figure as .svg and .png into `folder`; return the page's path.

    The files of a second and later record have their number: report-2.json, facts-2.svg.

    Everything is rendered before the first file is written. Raises `RopeError` as `check_folder`.
    """
    check_folder(folder, ())
    content: dict[str, str | bytes] = {}
    for number, record in enumerate(records, 1):
        suffix = f"-{number}" if number > 1 else ""
        content[f"report{suffix}.json"] = json.dumps(record.to_json(), indent=1, allow_nan=False) + "\n"
        for picture in pictures_of(record):
            names = [f"{picture.name}{suffix}.{kind}" for kind in KINDS]
            content |= zip(names, _drawn(picture, WIDE, *KINDS), strict=True)
    content[PAGE] = page_of(*records)
    for name in content:
        check_output(folder / name)
    for name, text in content.items():
        write_output(folder / name, text)
    return folder / PAGE
