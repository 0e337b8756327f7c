"""The report: one HTML page, its record and its figures."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ropewalk.atomic_io import as_path, check_output, write_output
from ropewalk.audit.audit import Audit, audit_sentences
from ropewalk.methods import METHODS
from ropewalk.optional import need
from ropewalk.report import figures as tables
from ropewalk.report.figures import copied_span, copies_table, drawing_named, drawings, looks_table
from ropewalk.report.formatting import better_or_worse, bound_in_words, shareable
from ropewalk.report.inline import inline_svg, night_colors, program
from ropewalk.report.parts import Drawing, Table
from ropewalk.report.record import (
    Document,
    MethodEntry,
    VerdictEntry,
    checked,
    labels,
    method_of,
    printable,
    short_name,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def reaches(verdict: Mapping[str, Any], trained_length: int, target: int, copied: str = "") -> list[tuple[str, str]]:
    """Return the lengths shown next to the verdict, in tokens, each with its meaning.

    `copied`: how far back copies are shown, in a few words; empty where that is not shown.
    """
    facts = [("target", f"{target:,} tokens"), ("trained length", f"{trained_length:,}")]
    if verdict["action"] in (None, "unfit"):
        return facts
    loss = verdict["reach_loss"]
    return [
        *facts,
        ("loss holds", "not shown" if loss is None else f"to {loss:,}"),
        ("copies", copied or "not shown"),
    ]


def terms(document: Document) -> list[tuple[str, str]]:
    """Return the six terms of the page's first screen, each with its explanation."""
    trained, target = document["trained_length"], document["target"]
    windows = max(len(method["loss_by_window_and_block"]) for method in document["methods"])
    confidence = 100 * document["protocol"]["confidence"]
    length = document["blocks"][-1][1]
    return [
        ("trained length", f"the longest text that the model was trained on: {trained:,} tokens."),
        (
            "window",
            f"a part of the text, {length:,} tokens, that the model processes at once. Number of windows: {windows}.",
        ),
        ("loss", "how badly the model predicts the next token, on average. Lower is better."),
        ("crop", f"the model with only the last {trained:,} tokens. It forgets the others and needs no method."),
        (
            "copies",
            f"how far back passages may be that the model repeats at a window's end. Tested up to {target:,} tokens.",
        ),
        ("interval", f"the range of values that the windows support, at {confidence:g} % confidence."),
    ]


def evidence_table(document: Document) -> Table | None:
    """Return each comparison with its interval and result; None if there are none."""
    rows = [
        [
            one["name"],
            one["method"],
            one["against"],
            one["where"],
            better_or_worse(one["difference"], one["interval"]),
            bound_in_words(one["margin"]),
            one["result"],
        ]
        for one in document["verdict"]["evidence"]
    ]
    if not rows:
        return None
    heads = ["question", "method", "compared with", "where", "nats per token", "must be", "result"]
    return Table("Comparisons behind the verdict", heads, rows)


class Pictures(NamedTuple):
    """A drawing and its SVG files; `narrow` is None if one serves every width."""

    drawing: Drawing
    wide: bytes
    narrow: bytes | None = None


def render(document: Document, figures: Sequence[Pictures]) -> str:
    """Render the report as one HTML page: it requests nothing, and every name and text is escaped.

    Its program makes two figures interactive; the page is complete without scripts.

    **Arguments:**
    - `document`: what `checked` returns.
    - `figures`: each drawing with its SVG files; sections without a figure have only their tables.

    **Returns:** the page's text.
    **Raises:** `RopeError` if jinja2 is missing.
    """
    jinja2 = need("jinja2", extra="figures")
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_packaged),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["code"] = _code
    page: str = environment.get_template("page.html").render(_contents(document, figures))
    return page


def _packaged(name: str) -> str:
    """Return the text of a template."""
    return resources.files("ropewalk.report").joinpath(name).read_text(encoding="utf-8")


def _code(sentence: str) -> Any:
    """Return an escaped sentence as markup, text between backticks as code."""
    markup = need("markupsafe", extra="figures").Markup
    parts = printable(sentence).split("`")
    if len(parts) % 2 == 0:  # an unmatched backtick: plain text
        return markup.escape("`".join(parts))
    return markup().join(markup("<code>{}</code>" if i % 2 else "{}").format(part) for i, part in enumerate(parts))


def _contents(document: Document, figures: Sequence[Pictures]) -> dict[str, Any]:
    """Return the variables of the template."""
    found, copied = document["verdict"], document.get("copies")
    chosen = method_of(document, document["recommended"])
    call = found.get("call") or _call(chosen)
    return {
        "model": printable(str(document["model"])),
        "title": short_name(document),
        "action": found["action"] or "old",
        "headline": found["headline"],
        "reasons": found["reasons"],
        "reaches": reaches(
            found, document["trained_length"], document["target"], copied_span(document, found["method"] or "plain")
        ),
        "terms": terms(document),
        "beside": found.get("beside"),
        "stopped": document.get("stopped") or found.get("stopped"),
        "evidence": evidence_table(document),
        "next": found["next"],
        "left_out": document.get("left_out") or [],
        "recommended": document["recommended"],
        "config": _config(found, chosen),
        "call": "\n".join(map(printable, call.splitlines())),
        "at_run_time": chosen is not None and (bool(call) or not _in_config(chosen["name"])),
        "shared": _shared(document),
        "standings": tables.standings(document),
        "natures": tables.natures(document),
        "by_block": tables.by_block(document),
        "pairs": tables.pairs(document),
        "copies": copies_table(document),
        "copies_summary": [] if copied is None else [*copied["sentences"], *copied["notes"]],
        "looks": looks_table(document),
        "figures": {one.drawing.name: _figure(one) for one in figures},
        "night": night_colors(),
        "program": program(document),
        "audits": [(found.layer_type, audit_sentences(found)) for found in _audits(document)],
        "lint": document["lint"],
        "protocol": printable(str(document["protocol"]["sentence"])),
        "several": len(document["methods"][0]["loss_by_window_and_block"]) > 1,
        "confidence": f"{100 * document['protocol']['confidence']:g}",
        "environment": tables.environment(document),
        "command": printable(str((document.get("environment") or {}).get("command") or "")),
    }


def _figure(one: Pictures) -> dict[str, Any]:
    """Return a figure for the template."""
    drawing = one.drawing
    narrow = (
        None if one.narrow is None else inline_svg(one.narrow, f"{drawing.name}-narrow", drawing.alt, scrolls=False)
    )
    wide = inline_svg(one.wide, drawing.name, drawing.alt, scrolls=narrow is None)
    return {"name": drawing.name, "caption": drawing.caption, "wide": wide, "narrow": narrow}


def _in_config(name: str) -> bool:
    """Return whether a config can express the method; an unregistered one counts as such."""
    return name not in METHODS or METHODS[name].config is not None


def _call(chosen: MethodEntry | None) -> str:
    """Return the call of a method that no config can express; empty for others."""
    if chosen is None:
        return ""
    extension = chosen.get("extension")
    return chosen.get("at_run_time") or (f"model.with_positions(extension={extension})" if extension else "")


def _config(verdict: VerdictEntry, chosen: MethodEntry | None) -> str:
    """Return the block for config.json, of the verdict or of an old record; empty if there is none."""
    if verdict["action"] is not None:
        config = verdict["config"]
    elif chosen is None or chosen["name"] == "plain" or _call(chosen) or not _in_config(chosen["name"]):
        config = None
    else:
        config = {key: chosen[key] for key in ("rope_parameters", "max_position_embeddings")}
    return "" if config is None else json.dumps(config, indent=2)


def _audits(document: Document) -> list[Audit]:
    """Return the audit of each rope."""
    return [Audit(**found) for found in document.get("audits") or [document["audit"]]]


def _shared(document: Document) -> list[str]:
    """Return a sentence for each measurement that several methods share."""
    alike = [label for label in labels(document).values() if " = " in label]
    return [f"{label}: the same frequencies at this length, measured once." for label in alike]


PAGE, RECORD = "index.html", "report.json"


def check_folder(folder: Path) -> None:
    """Raise `RopeError`, before any work is done, if the folder cannot be written or a package is missing."""
    for package in ("jinja2", "matplotlib"):
        need(package, extra="figures")
    for name in (PAGE, RECORD):
        check_output(as_path(folder, "report") / name, new_folder=True)


def write_report(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write index.html, report.json and every figure as .svg and .png into `folder`; return the page's path.

    Everything is rendered before the first file is written. Raises `RopeError` if a package is missing or the folder
    cannot be written.
    """
    folder = as_path(folder, "report")
    files, page = report_files(record)
    for name, _ in files:
        check_output(folder / name, new_folder=True)
    for name, content in [*files, (PAGE, page)]:
        write_output(folder / name, content)
    return folder / PAGE


def report_files(record: Mapping[str, Any]) -> tuple[Sequence[tuple[str, str | bytes]], str]:
    """Return the record and figures by file name, and the page's text, without writing them."""
    from ropewalk.figures.style import render as drawn

    record = shareable(record)
    document = checked(record)
    marked = {"generator": "ropewalk", **record}
    files: list[tuple[str, str | bytes]] = [(RECORD, json.dumps(marked, indent=1, allow_nan=False) + "\n")]
    figures = _figures(document)
    with _missing_glyphs():
        for drawing, svg, _ in figures:
            files += [(f"{drawing.name}.svg", svg), (f"{drawing.name}.png", drawn(drawing.figure, "png"))]
    return files, render(document, figures)


def report_page(record: Mapping[str, Any]) -> str:
    """Return only the page; raise `RopeError` if a package is missing."""
    for package in ("jinja2", "matplotlib"):
        need(package, extra="figures")
    document = checked(shareable(record))
    return render(document, _figures(document))


def report_figure(record: Mapping[str, Any], name: str) -> Figure:
    """Return one figure of the report by its name; raise `RopeError` as `drawing_named`.

    A notebook displays it, also without matplotlib's inline backend.
    """
    from ropewalk.figures.style import render as drawn

    figure: Any = drawing_named(checked(record), name).figure
    _as_written(figure)
    figure._repr_png_ = lambda: drawn(figure, "png")
    return cast("Figure", figure)


def _figures(document: Document) -> list[Pictures]:
    """Return every figure with its SVG files."""
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
    """Ignore warnings about characters that matplotlib's font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def _as_written(figure: Figure) -> None:
    """Draw dollar signs of names as text; the numbers at the ticks may be mathematics."""
    from matplotlib.text import Text

    ticks = {
        tick for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for tick in axis.get_ticklabels(which="both")
    }
    for text in figure.findobj(Text):
        if text not in ticks:
            text.set_parse_math(False)
