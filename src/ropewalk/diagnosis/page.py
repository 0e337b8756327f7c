"""The report: one HTML page, its record and its figures. It requests no other file, and needs no script."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.atomic_io import as_path, check_output, write_output
from ropewalk.audit.audit import Audit, audit_sentences
from ropewalk.diagnosis.evidence import LOOK_CONFIDENCE, Floats, Mean, choice
from ropewalk.diagnosis.facts import CHANCE
from ropewalk.diagnosis.plan import CROP
from ropewalk.errors import RopeError
from ropewalk.figures.inline import inline_svg, night_colors
from ropewalk.figures.style import NARROW, WIDE, length_ticks, look_of, mark_trained_length, new_figure, render, style
from ropewalk.imports import need
from ropewalk.statistics import binomial_interval, counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE, RECORD = "index.html", "report.json"
Picture = tuple[str, Callable[[tuple[float, float]], tuple[Any, str]]]
"""A caption, and what returns the figure of a size in inches with its description."""
BINS = 8  # of distances, with equally many facts
PARTS = 4  # of a stretch that crop scored
LIMITS = (-0.3, 1.0)  # nats per token: the widest scale of the loss
CONFIDENCE = 0.95  # of the lines in the figure of facts


def found_by_distance(diagnosis: Any, method: str) -> list[tuple[float, int, int]]:
    """Return the mean distance, the facts found and the facts asked of each bin, the nearest first."""
    pairs = sorted(
        (diagnosis.target - fact.start, choice(row) == fact.right)
        for window, one in zip(diagnosis.windows, diagnosis.readings[method], strict=False)
        if one.answers
        for fact, row in zip(window.facts, one.answers, strict=True)
    )
    if not pairs:
        return []
    bins = np.array_split(np.arange(len(pairs)), min(BINS, max(1, len(pairs) // 3)))
    return [(float(np.mean([pairs[n][0] for n in part])), sum(pairs[n][1] for n in part), len(part)) for part in bins]


def loss_by_position(diagnosis: Any, method: str) -> list[tuple[float, Mean]]:
    """Return the loss less crop's by position, of the parts of the windows that crop scored."""
    if CROP not in diagnosis.readings:
        return []
    rows: dict[tuple[int, int], list[tuple[Floats, Floats]]] = {}
    for window, one, crop in zip(diagnosis.windows, diagnosis.readings[method], diagnosis.readings[CROP], strict=False):
        scored = [n for n, value in enumerate(crop.loss) if value is not None]
        runs = np.split(scored, np.flatnonzero(np.diff(scored) > 1) + 1) if scored else []
        for part in (part for run in runs for part in np.array_split(run, min(PARTS, max(1, len(run) // 4)))):
            numbers = [n for n in part.tolist() if one.loss[n] is not None and window.counted[n]]
            if numbers:
                apart = np.array([one.loss[n] - crop.loss[n] for n in numbers])
                place = (diagnosis.blocks[int(part[0])][0], diagnosis.blocks[int(part[-1])][1])
                rows.setdefault(place, []).append((apart, np.array([window.counted[n] for n in numbers], dtype=float)))
    means = [((start + end) / 2, Mean.of(of)) for (start, end), of in sorted(rows.items())]
    return [(place, mean) for place, mean in means if mean is not None]


def _line(axes: Axes, name: str, label: str, points: Sequence[tuple[float, float, tuple[float, float] | None]]) -> None:
    """Draw a method's values by place, each with its interval."""
    look = look_of(name)
    at, values, intervals = zip(*points, strict=True)
    axes.plot(at, values, look.line, color=look.color, marker=look.marker, label=label)
    for place, ends in zip(at, intervals, strict=True):
        if ends is not None:
            axes.vlines(place, *ends, color=look.color, alpha=0.25, linewidth=3)


def _reference(axes: Axes, value: float, label: str) -> None:
    """Draw a dashed line across the figure, with its label to the right of the axes."""
    axes.axhline(value, color="#767676", linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(label, (1, value), xycoords=("axes fraction", "data"), xytext=(4, 0), va="center",
                  textcoords="offset points", fontsize=9, color="#767676")  # fmt: skip


def _facts(diagnosis: Any, axes: Axes) -> str:
    """Draw the share of facts found by distance; return a description."""
    said = []
    for name, label in diagnosis.labels.items():
        bins = found_by_distance(diagnosis, name)
        if bins:
            ends = [binomial_interval(right, asked, confidence=CONFIDENCE) for _, right, asked in bins]
            points = [(at, right / asked, one) for (at, right, asked), one in zip(bins, ends, strict=True)]
            _line(axes, name, label, points)
            said.append(f"{label}: {', '.join(f'{right} of {asked}' for _, right, asked in bins)}")
        elif diagnosis.evidence.standings[name].broken:
            axes.plot([], [], look_of(name).line, color=look_of(name).color, label=f"{label}: given up")
            said.append(f"{label}: given up")
    _reference(axes, CHANCE, "chance")
    axes.set(ylim=(0, 1.03), xlim=(0, diagnosis.target), xlabel="tokens between the fact and the question",
             ylabel="share of facts found")  # fmt: skip
    return f"Facts found from near to far. {'; '.join(said)}. Chance is one in four."


def _loss(diagnosis: Any, axes: Axes) -> str:
    """Draw the loss less crop's by position; return a description."""
    said, highest = [], 0.1
    labels = diagnosis.labels.items()
    drawn = [(name, label, rows) for name, label in labels if (rows := loss_by_position(diagnosis, name))]
    apart = 0.006 * (diagnosis.target - diagnosis.trained_length)  # tokens between the intervals of two methods
    for number, (name, label, rows) in enumerate(drawn):
        aside = apart * (number - (len(drawn) - 1) / 2)
        _line(axes, name, label, [(place + aside, mean.value, mean.interval) for place, mean in rows])
        highest = max(highest, *(mean.value for _, mean in rows if mean.value <= LIMITS[1]), 0.1)
        said.append(f"{label} {rows[-1][1].value:+.2f} at {round(rows[-1][0] + aside):,}")
    _reference(axes, 0, "crop")
    start, end = 0.97 * diagnosis.trained_length, diagnosis.target
    axes.set(ylim=(LIMITS[0], min(LIMITS[1], 1.3 * highest + 0.1)), xlim=(start, end),
             xlabel="position, tokens", ylabel="loss less crop's, nats per token")  # fmt: skip
    return f"Loss less crop's in nats per token: {'; '.join(said) or 'not measured'}."


FIGURES = {
    "facts": (
        _facts,
        "The share of facts that the model finds, by how far back they were told. Shaded: farther back than the "
        "trained length. A model that cannot use a fact finds one in four.",
    ),
    "loss": (
        _loss,
        "How much worse the next token is predicted than by crop, the model that reads only the last tokens, up to its "
        "trained length. Lower is better. Measured where there are points; lines above the scale are cut off.",
    ),
}


def _drawn(diagnosis: Any, name: str, size: tuple[float, float]) -> tuple[Figure, str]:
    """Return a figure and its description."""
    with style():
        figure, axes = new_figure(*size)
        said = FIGURES[name][0](diagnosis, axes)
        length_ticks(axes)
        mark_trained_length(axes, diagnosis.trained_length, diagnosis.target)
        handles, labels = axes.get_legend_handles_labels()
        if handles:
            legend = axes.legend(handles, labels, loc="best", fontsize=9, ncols=1 if len(labels) < 5 else 2)
            for text in legend.get_texts():
                text.set_parse_math(False)
    return figure, said


def figure_of(diagnosis: Any, name: str) -> Figure:
    """Return one figure of the report, "facts" or "loss". A notebook displays it without matplotlib's inline backend.

    Raises `RopeError` for another name, or if the extra `figures` is not installed.
    """
    need("matplotlib", extra="figures")
    if name not in FIGURES:
        raise RopeError("report: unknown figure.", facts={"name": name}, cure=f"Choose from {', '.join(FIGURES)}.")
    return shown_by_notebooks(_drawn(diagnosis, name, WIDE)[0])


def shown_by_notebooks(figure: Any) -> Figure:
    """Return a figure that a notebook displays."""
    figure._repr_png_ = lambda: render(figure, "png")
    made: Figure = figure
    return made


def pictures_of(diagnosis: Any) -> dict[str, Picture]:
    """Return the figures of a diagnosis."""
    return {name: (caption, partial(_drawn, diagnosis, name)) for name, (_, caption) in FIGURES.items()}


def page_of(diagnosis: Any) -> str:
    """Return the page as one HTML text: every name and text is escaped. Raises `RopeError` if a package is missing."""
    heads, rows = diagnosis.rows()
    verdict = diagnosis.verdict
    return render_page(
        pictures_of(diagnosis),
        name=diagnosis.name,
        headline=verdict.headline,
        action=verdict.action,
        reasons=verdict.reasons,
        tables=[[heads, *rows]],
        best=diagnosis.labels.get(verdict.method),
        terms=diagnosis.terms(),
        lines=[*([diagnosis.scaling["sentence"]] if diagnosis.scaling else []), *diagnosis.notes],
        answers=[one for one in (verdict, verdict.beside) if one],
        measured=how_measured(diagnosis),
        looks=[[counted(one.windows, "window"), one.headline, f"{one.seconds:g}"] for one in diagnosis.looks],
        audit=_audit(diagnosis),
        environment=diagnosis.environment,
    )


def render_page(pictures: Mapping[str, Picture], *, environment: Mapping[str, Any], **parts: Any) -> str:
    """Return a page of these figures and parts: name, headline, reasons, tables (a head and rows), terms, lines."""
    figures = []
    with _missing_glyphs():
        for name, (caption, draw) in pictures.items():
            (wide, said), (narrow, _) = draw(WIDE), draw(NARROW)
            figures.append(
                {
                    "name": name,
                    "caption": caption,
                    "wide": inline_svg(render(wide, "svg"), name, said, scrolls=False),
                    "narrow": inline_svg(render(narrow, "svg"), f"{name}-narrow", said, scrolls=False),
                }
            )
    jinja2 = need("jinja2", extra="figures")
    folder = resources.files("ropewalk.diagnosis")
    sources = {name: folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.html", "style.css")}
    template = jinja2.Environment(
        loader=jinja2.DictLoader(sources), autoescape=True, trim_blocks=True, undefined=jinja2.StrictUndefined
    ).get_template("page.html")
    optional: dict[str, Any] = {"action": "", "best": None, "answers": (), "measured": "", "looks": (), "audit": ()}
    rows = [[name, str(value)] for name, value in environment.items()]
    page: str = template.render(figures=figures, environment=rows, night=night_colors(), **{**optional, **parts})
    return page


def how_measured(diagnosis: Any) -> str:
    """Return how the measurement was made, in a few sentences."""
    window = diagnosis.windows[0]
    far, near = (sum(fact.far == part for fact in window.facts) for part in (True, False))
    example = window.facts[0].told
    control = diagnosis.evidence.control
    said = [
        f"Between the sentences of the text stand {far} far and {near} near facts in each window, such as “{example}” "
        "At the end the model is asked for each, as a choice of four values: those of four neighbouring facts. "
        f"Far facts lie wholly farther back than {diagnosis.trained_length:,} tokens, near ones within."
    ]
    if control.asked:
        said.append(
            f"Asked when it had read only {diagnosis.trained_length:,} tokens, the unchanged model finds "
            f"{control.found} of {control.asked}."
        )
    said.append(
        "Losses leave out the facts and two tokens after each. crop is computed on a sample of positions. A reading is "
        "given up when its loss has risen by more than a nat per token. "
        f"Intervals hold with {100 * LOOK_CONFIDENCE:g} % at each of up to four looks."
    )
    return " ".join(said)


def _audit(diagnosis: Any) -> list[str]:
    audits = diagnosis.inspection.get("audits") or [diagnosis.inspection["audit"]]
    lines = [line for one in audits for line in audit_sentences(Audit(**one))]
    return lines + [
        f"{one['severity']} {one['code']}: {one['message']} {one['cure']}" for one in diagnosis.inspection["lint"]
    ]


def check_folder(folder: Path, figures: Iterable[str] = FIGURES) -> None:
    """Raise `RopeError`, before any work is done, if the folder cannot be written or a package is missing."""
    for package in ("jinja2", "matplotlib"):
        need(package, extra="figures")
    for name in (PAGE, RECORD, *(f"{name}.{kind}" for name in figures for kind in ("svg", "png"))):
        check_output(as_path(folder, "report") / name, new_folder=True)


def write_report(folder: Path, record: Any) -> Path:
    """Write index.html, report.json and each figure as .svg and .png into `folder`; return the page's path.

    - `record`: a `Diagnosis` or a `DepthMap`.

    Everything is rendered before the first file is written. Raises `RopeError` as `check_folder`.
    """
    pictures = record.pictures()
    check_folder(folder, pictures)
    folder = as_path(folder, "report")
    content: dict[str, str | bytes] = {RECORD: json.dumps(record.to_json(), indent=1, allow_nan=False) + "\n"}
    with _missing_glyphs():
        for name, (_, draw) in pictures.items():
            figure, _ = draw(WIDE)
            content |= {f"{name}.{kind}": render(figure, kind) for kind in ("svg", "png")}
    content[PAGE] = record.to_html()
    for name, text in content.items():
        write_output(folder / name, text)
    return folder / PAGE


@contextmanager
def _missing_glyphs() -> Iterator[None]:
    """Ignore warnings about characters that matplotlib's font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield
