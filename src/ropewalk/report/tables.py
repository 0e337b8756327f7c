"""The report's tables as heads and rows of text, from the document's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropewalk.methods import METHODS, Method
from ropewalk.report.figures import ratios, wavelengths_of
from ropewalk.report.record import Document, labels, method_of, recommended_label
from ropewalk.statistics import signed


@dataclass(frozen=True)
class Table:
    """Heads and rows; the first cell of a row is its head, `best` the one that stands out, `words` holds prose."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: str | None = None
    words: bool = False
    papers: dict[str, str] = field(default_factory=dict)


def standings(document: Document) -> Table:
    """Each method within and beyond the trained length, its paired differences to plain, and how long it took."""
    heads = ["method", "within", "beyond", "within, less plain", "beyond, less plain", "seconds"]
    rows = []
    for method in document["methods"]:
        apart = method["name"] != "plain"
        rows.append(
            [
                method["name"],
                _loss(method["loss_within"]),
                _loss(method["loss_beyond"]),
                _difference(method, "within") if apart else "",
                _difference(method, "beyond") if apart else "",
                f"as {method['same_as']}" if method["same_as"] else f"{method['seconds']:,.1f}",
            ]
        )
    trained = document["trained_length"]
    return Table(
        f"Loss within and beyond {trained:,} tokens, nats per token", heads, rows, best=document["recommended"]
    )


def by_block(document: Document) -> Table:
    """Every method's mean loss in each block of positions."""
    named = labels(document)
    heads = ["method", *(f"{start:,} to {end - 1:,}" for start, end in document["blocks"])]
    rows = [
        [named[method["name"]], *map(_loss, method["loss_by_block"])]
        for method in document["methods"]
        if method["name"] in named
    ]
    return Table("Loss by position, nats per token", heads, rows, best=recommended_label(document))


def natures(document: Document) -> Table:
    """What each measured method is: what it changes, costs and needs; a method that is not described is left out."""
    rows, papers = [], {}
    for method in document["methods"]:
        known = METHODS.get(method["name"])
        if known is not None:
            rows.append([known.name, known.changes, known.costs, _config_note(known, method)])
            if known.source:
                papers[known.name] = known.source
    heads = ["method", "what it changes", "extra cost per token", "in config.json"]
    return Table("What each method does", heads, rows, best=document["recommended"], words=True, papers=papers)


def _config_note(known: Method, method: Mapping[str, Any]) -> str:
    """Whether a config.json can say the method as it was measured, and how."""
    if "unscaled_tokens=" in str(method.get("at_run_time") or ""):
        return "no: there is no key for unscaled first tokens"
    block = method.get("rope_parameters", {})
    if known.config is None or known.scaling is None or block == {}:
        return known.config_note
    if block is None:
        return "no: no block of this model's config gives its layers these ropes"
    blocks = [block] if "rope_type" in block else list(block.values())  # one for each layer type
    return "yes (its factors, as longrope)" if any(b["rope_type"] == "longrope" for b in blocks) else known.config_note


def pairs(document: Document) -> Table | None:
    """Wavelength of each pair before and after the recommended method; None where it changes none."""
    chosen = method_of(document, document["recommended"])
    if chosen is None or not (changed := ratios(chosen)):
        return None
    before, after = wavelengths_of(chosen["inv_freq_unscaled"]), wavelengths_of(chosen["inv_freq"])
    rows = [
        [str(pair), _tokens(old), _tokens(new), "" if ratio is None else f"{ratio:.4g}"]
        for pair, (old, new, ratio) in enumerate(zip(before, after, changed, strict=True))
    ]
    heads = ["pair", "tokens per turn before", f"after {chosen['name']}", "frequency after / before"]
    return Table(f"Each pair before and after {chosen['name']}", heads, rows)


def environment(document: Document) -> Table:
    """Versions, machine and settings, as they were recorded."""
    found: dict[str, Any] = {k: v for k, v in (document.get("environment") or {}).items() if k != "command"}
    peak = max((method.get("peak_rss_bytes") or 0 for method in document["methods"]), default=0)
    if peak:
        found["peak memory"] = f"{peak / 1e9:.2f} GB"
    rows = [[key, f"{value:,}" if isinstance(value, int) else str(value)] for key, value in found.items()]
    return Table("Versions and machine", ["what", "which"], rows, words=True)


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _tokens(value: float | None) -> str:
    return "does not turn" if value is None else f"{value:,.1f}"


def _difference(method: dict[str, Any], where: str) -> str:
    value, interval = method[f"difference_{where}"], method[f"difference_{where}_ci"]
    return "" if value is None else signed(value, interval)
