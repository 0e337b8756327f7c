"""The page: one HTML file that needs no network, from the document and its figures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from ropewalk.audit.audit import Audit
from ropewalk.audit.sentences import audit_sentences
from ropewalk.methods import METHODS
from ropewalk.optional import need
from ropewalk.report import tables
from ropewalk.report.drawing import Drawing
from ropewalk.report.inline import inline_svg
from ropewalk.report.interactive import program
from ropewalk.report.night import night_colors
from ropewalk.report.record import Document, labels, method_of, printable, short_name
from ropewalk.report.retrieval import distance_table, retrieval_details, retrieval_table
from ropewalk.report.use import use_table, used_span
from ropewalk.report.verdict import evidence_table, headline, reaches, verdict_of


class Pictures(NamedTuple):
    """A drawing and its SVG files; `narrow` is None where one serves every width."""

    drawing: Drawing
    wide: bytes
    narrow: bytes | None = None


def render(document: Document, figures: Sequence[Pictures]) -> str:
    """The report as one HTML page: no request, every name and text escaped.

    Its one program lets a reader point at two figures; without scripts the page is whole.

    **Arguments:**
    - `document`: what `ropewalk.diagnosis.document.document` returns, or `read_record` read.
    - `figures`: each drawing with its SVG files; sections without a figure have their tables alone.

    **Returns:** the page's text (UTF-8).
    **Raises:** `RopeError` where jinja2 is missing; KeyError and the like for what is no doctor's document
    (`read_record` and `understood` make that a `RopeError`).
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
    """A template beside this module."""
    return resources.files("ropewalk.report").joinpath(name).read_text(encoding="utf-8")


def _code(sentence: str) -> Any:
    """A sentence as markup, what stands between backticks as code; everything in it is escaped."""
    markup = need("markupsafe", extra="figures").Markup
    parts = printable(sentence).split("`")
    if len(parts) % 2 == 0:  # one is left over: a plain sentence
        return markup.escape("`".join(parts))
    return markup().join(markup("<code>{}</code>" if i % 2 else "{}").format(part) for i, part in enumerate(parts))


def _contents(document: Document, figures: Sequence[Pictures]) -> dict[str, Any]:
    """Everything that the template names."""
    found, retrieval = verdict_of(document), retrieval_details(document)
    chosen = method_of(document, document["recommended"])
    first, others = headline(str(found["sentence"]))
    call = _call(chosen)
    return {
        "model": printable(str(document["model"])),
        "title": short_name(document),
        "action": found["action"] or "old",
        "headline": first,
        "others": others,
        "reaches": reaches(
            found, document["trained_length"], document["target"], used_span(document, found["method"] or "plain")
        ),
        "evidence": evidence_table(document),
        "next": found.get("next"),
        "left_out": document.get("left_out") or [],
        "recommended": document["recommended"],
        "config": _config(found, chosen),
        "call": printable(call),
        "at_run_time": chosen is not None and (bool(call) or not _in_config(chosen["name"])),
        "shared": _shared(document),
        "standings": tables.standings(document),
        "natures": tables.natures(document),
        "by_block": tables.by_block(document),
        "pairs": tables.pairs(document),
        "use": use_table(document),
        "use_summary": (document.get("use_details") or {}).get("summary") or [],
        "retrieval": retrieval_table(document),
        "retrieval_distances": distance_table(document),
        "retrieval_summary": [printable(str(line)) for line in retrieval.get("summary", [])],
        "retrieval_protocol": printable(str(retrieval.get("protocol", {}).get("sentence", ""))),
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
    """A figure as the template has it."""
    drawing = one.drawing
    narrow = (
        None if one.narrow is None else inline_svg(one.narrow, f"{drawing.name}-narrow", drawing.alt, scrolls=False)
    )
    wide = inline_svg(one.wide, drawing.name, drawing.alt, scrolls=narrow is None)
    return {"name": drawing.name, "caption": drawing.caption, "wide": wide, "narrow": narrow}


def _in_config(name: str) -> bool:
    """Whether a config can say the method; one that is not registered is taken at its record's word."""
    return name not in METHODS or METHODS[name].config is not None


def _call(chosen: dict[str, Any] | None) -> str:
    """What a method that no config can hold needs at run time; empty for the others."""
    found = chosen or {}
    if found.get("at_run_time"):
        return str(found["at_run_time"])
    return f"model.with_positions(extension={found['extension']})" if found.get("extension") else ""


def _config(verdict: Mapping[str, Any], chosen: dict[str, Any] | None) -> str:
    """What to paste into config.json, as the verdict has it or a record of old; empty where there is nothing."""
    if verdict["action"] is not None:
        config = verdict["config"]
    elif chosen is None or chosen["name"] == "plain" or _call(chosen) or not _in_config(chosen["name"]):
        config = None
    else:
        config = {key: chosen[key] for key in ("rope_parameters", "max_position_embeddings")}
    return "" if config is None else json.dumps(config, indent=2)


def _audits(document: Document) -> list[Audit]:
    """The audit of each rope, as it was before it became JSON."""
    return [Audit(**found) for found in document.get("audits") or [document["audit"]]]


def _shared(document: Document) -> list[str]:
    """Which methods were measured once for several."""
    alike = [label for label in labels(document).values() if " = " in label]
    return [f"{label}: the same frequencies at this length, measured once." for label in alike]
