"""The report's files: the page, its record, and its figures for use elsewhere; each written whole or not at all."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ropewalk.atomic_io import check_writable, write_whole
from ropewalk.optional import need
from ropewalk.report.drawings import drawing_named, drawings
from ropewalk.report.page import Pictures, render
from ropewalk.report.record import Document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, RECORD = "index.html", "report.json"


def check_folder(folder: Path) -> None:
    """Refuse, before any work is done, what no report can be written into, or made without."""
    for package in ("jinja2", "matplotlib"):
        need(package, extra="figures")
    for name in (PAGE, RECORD):
        check_writable(folder / name, new_folder=True)


def write_report(folder: Path, document: Document) -> Path:
    """Write index.html, report.json and every figure as .svg and .png into `folder`; returns the page's path.

    Everything is made before anything is written. Raises `RopeError` where a package is missing, or the folder cannot
    be written.
    """
    files, page = report_files(document)
    for name, content in [*files, (PAGE, page)]:
        write_whole(folder / name, content)
    return folder / PAGE


def report_files(document: Document) -> tuple[Sequence[tuple[str, str | bytes]], str]:
    """The files beside the page by name, and the page's text; nothing is written yet."""
    from ropewalk.figures.style import render as drawn

    files: list[tuple[str, str | bytes]] = [(RECORD, json.dumps(document, indent=1, allow_nan=False) + "\n")]
    figures = _figures(document)
    with _missing_glyphs():
        for drawing, svg, _ in figures:
            files += [(f"{drawing.name}.svg", svg), (f"{drawing.name}.png", drawn(drawing.figure, "png"))]
    return files, render(document, figures)


def report_page(document: Document) -> str:
    """The page alone; raises `RopeError` where a package is missing."""
    for package in ("jinja2", "matplotlib"):
        need(package, extra="figures")
    return render(document, _figures(document))


def report_figure(document: Document, name: str) -> Figure:
    """One figure of the report by its name, to look at or to save; raises `RopeError` as `drawing_named`.

    A notebook shows it, also where nobody has asked matplotlib for its inline figures.
    """
    from ropewalk.figures.style import render as drawn

    figure: Any = drawing_named(document, name).figure
    _as_written(figure)
    figure._repr_png_ = lambda: drawn(figure, "png")
    return cast("Figure", figure)


def _figures(document: Document) -> list[Pictures]:
    """Every figure, and its SVG files."""
    from ropewalk.figures.style import render as drawn

    figures = []
    with _missing_glyphs():
        for drawing in drawings(document):
            files = []
            for figure in (drawing.figure, drawing.narrow):
                if figure is not None:
                    _as_written(figure)
                    files.append(drawn(figure, "svg"))
            figures.append(Pictures(drawing, *files))
    return figures


@contextmanager
def _missing_glyphs() -> Iterator[None]:
    """Let a name in a script that matplotlib's font lacks pass without a warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def _as_written(figure: Figure) -> None:
    """Take no dollar sign of a name for mathematics; the numbers at the ticks may hold some of their own."""
    from matplotlib.text import Text

    ticks = {
        tick for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_ticklabels(which="both")
    }
    for text in figure.findobj(Text):
        if text not in ticks:
            text.set_parse_math(False)
