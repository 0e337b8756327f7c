"""Figures and tables of the report, made from the doctor's document."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Method
from ropewalk.report.formatting import better_or_worse
from ropewalk.report.parts import Drawing, Table
from ropewalk.report.record import (
    CopyRow,
    Document,
    MeasuredEntry,
    crop_differences,
    labels,
    method_of,
    recommended_label,
    short_name,
)
from ropewalk.statistics import over_windows, signed

Curves = dict[str, list[float]]


def loss(document: Document) -> Iterator[Drawing]:
    """Yield the loss minus crop's by position; the loss itself if crop was not measured."""
    from ropewalk.figures.results import MOST_WHISKERS, difference_by_position, loss_by_position, off_scale

    found, losses = crop_differences(document), loss_curves(document)[0]
    trained, shown = document["trained_length"], recommended_label(document)
    blocks = [(start, end) for start, end in document["blocks"]]
    title = "loss compared with crop" if found else "loss by position"
    shared: dict[str, Any] = {
        "trained_length": trained,
        "recommended": shown,
        "named": _named(document, losses),
    }

    def draw(narrow: bool) -> Any:
        named = {**shared, "title": _titled(document, title, narrow)}
        if found:
            return difference_by_position(blocks, found, narrow=narrow, **named)
        return loss_by_position(blocks, losses, narrow=narrow, **named)

    if not found:
        caption = "Loss at each position of a window: lower is better. Positions beyond the trained length are shaded."
        last = "; ".join(f"{name} {values[-1]:.2f}" for name, values in losses.items())
        alt = f"Lines of loss in nats per token by position. In the last block: {last}."
    else:
        several = any(band is not None for _, bands in found.values() for band in bands)
        which = " (of the most important methods)" if len(found) - 1 > MOST_WHISKERS else ""
        beyond = [f"{name} ({better_or_worse(value)} at most)" for name, value in off_scale(found).items()]
        caption = (
            "Loss minus crop's at each position of a window. Below zero the method predicts better than crop, above "
            "zero worse. Positions beyond the trained length are shaded."
            + (f" Vertical lines: intervals{which}." if several else " One window gives no intervals here.")
            + (f" Off the scale: {', '.join(beyond)}." if beyond else "")
        )
        last = "; ".join(
            f"{name} {better_or_worse(values[-1])}" for name, (values, _) in found.items() if name != "crop"
        )
        alt = f"Loss in nats per token compared with crop's, by position. In the last block: {last}."
    yield Drawing("loss", caption, f"{alt} Trained length: {trained:,} tokens.", draw(False), draw(True))


def _titled(document: Document, title: str, narrow: bool) -> str:
    """Return a figure's title; a narrow figure leaves out the model's name."""
    return title.capitalize() if narrow else f"{short_name(document)}: {title}"


def _named(document: Document, losses: Curves) -> set[str]:
    """Return the labels of plain, crop, and one more: recommended, else the best copier, else the lowest at the end."""
    shown = labels(document)
    others = [label for label in losses if label not in ("plain", "crop")]
    gains = {shown[row["method"]]: row["gain"] for row in far_rows(document) if row["method"] in shown}
    copiers = sorted((label for label in others if label in gains), key=lambda label: -gains[label])
    first = [recommended_label(document), *copiers]
    lowest = min(others, key=lambda label: losses[label][-1], default="")
    return {"plain", "crop", next((label for label in first if label), lowest)}


def loss_curves(document: Document) -> tuple[Curves, dict[str, list[tuple[float, float] | None]]]:
    """Return by label the mean loss of each block, and around it the interval of the paired difference to plain.

    Windows differ far more than methods: the interval of the mean would hide every difference.
    """
    entries = {method["name"]: method for method in document["methods"]}
    plain = entries["plain"]["loss_by_window_and_block"]
    losses: Curves = {}
    intervals: dict[str, list[tuple[float, float] | None]] = {}
    for name, label in labels(document).items():
        rows = entries[name]["loss_by_window_and_block"]
        losses[label] = entries[name]["loss_by_block"]
        intervals[label] = []
        for block, mean in enumerate(losses[label]):
            pairs = zip(rows, plain, strict=False)  # a refuted method has fewer windows
            apart, interval = over_windows([own[block] - other[block] for own, other in pairs])
            band = None if interval is None else (mean + interval[0] - apart, mean + interval[1] - apart)
            intervals[label].append(band)
    return losses, intervals


def ratios(method: Mapping[str, Any]) -> list[float | None]:
    """Return each pair's new over unscaled frequency (None: not rotated); empty if the method changes none.

    >>> ratios({"inv_freq": [1.0, 0.0], "inv_freq_unscaled": [2.0, 0.1]}), ratios({"inv_freq": None})
    ([0.5, None], [])
    """
    new, old = method.get("inv_freq") or [], method.get("inv_freq_unscaled") or []
    if not new or new == old:
        return []
    return [n / o if n and o else None for n, o in zip(new, old, strict=True)]


def frequencies(document: Document) -> Iterator[Drawing]:
    """Yield what each method does to each pair; nothing if no frequency changes or an old record lacks them."""
    named = labels(document)
    by_method = {named[m["name"]]: ratios(m) for m in document["methods"] if m["name"] in named and ratios(m)}
    if not by_method:
        return
    from ropewalk.figures.results import frequency_ratios

    factor = document["target"] / document["trained_length"]
    yield Drawing(
        "frequencies",
        "At 1 a pair rotates as in training. Below 1 it rotates more slowly, so that longer distances stay within the "
        "angles that occurred in training. Fast pairs, on the left, distinguish neighbouring tokens.",
        f"Frequency of each pair with each method over without it, down to 1/{factor:g}: {', '.join(by_method)}.",
        frequency_ratios(by_method, factor=factor),
        frequency_ratios(by_method, factor=factor, narrow=True),
    )


def wavelengths_of(inv_freq: Sequence[float] | None) -> list[float | None]:
    """Return the tokens per turn of each pair; None for a pair that is not rotated.

    >>> wavelengths_of([3.141592653589793, 0.0])
    [2.0, None]
    """
    return [2 * math.pi / value if value else None for value in inv_freq or ()]


def turns(document: Document) -> Iterator[Drawing]:
    """Yield the tokens per turn of each pair, before and after the recommended method."""
    from ropewalk.figures.results import pair_wavelengths

    trained, target = document["trained_length"], document["target"]
    chosen = method_of(document, document["recommended"])
    before = document["audit"]["wavelengths_unscaled"]
    after = {}
    if chosen is not None and ratios(chosen):
        before = wavelengths_of(chosen["inv_freq_unscaled"])
        after = {chosen["name"]: wavelengths_of(chosen["inv_freq"])}
    slow = sum(length is None or length > trained for length in before)

    def draw(narrow: bool) -> Any:
        title = "wavelength of each pair"
        return pair_wavelengths(
            before,
            trained_length=trained,
            target=target,
            scaled=after,
            title=_titled(document, title, narrow),
            narrow=narrow,
        )

    yield Drawing(
        "wavelengths",
        "Each point is one pair of features and the tokens of its full turn. Pairs in the shaded part never complete "
        "a turn in training. Beyond the trained length they have angles that never occurred in training.",
        f"Tokens per turn of each of {len(before)} pairs, the trained length {trained:,} and the target {target:,}. "
        f"{slow} pairs never complete a turn within the trained length.",
        draw(False),
        draw(True),
    )


def standings(document: Document) -> Table:
    """Return each method's losses within and beyond the trained length, their differences to plain, and its time."""
    heads = ["method", "within", "beyond", "within, minus plain", "beyond, minus plain", "seconds"]
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
        f"Loss within and beyond {trained:,} tokens, nats per token",
        heads,
        rows,
        best=document["recommended"],
        stacks=True,
    )


def by_block(document: Document) -> Table:
    """Return every method's mean loss in each block of positions."""
    named = labels(document)
    spans = [f"{start:,} to {end - 1:,}" for start, end in document["blocks"]]
    best = recommended_label(document)
    columns = {
        named[method["name"]]: [_loss(value) for value in method["loss_by_block"]]
        for method in document["methods"]
        if method["name"] in named
    }
    title = "Loss by position, nats per token"
    if len(columns) > len(spans):  # the shorter of the two is across: the table is read without scrolling sideways
        return Table(title, ["method", *spans], [[name, *values] for name, values in columns.items()], best=best)
    full = f"{title}; recommended: {best}" if best in columns else title
    return Table(full, ["positions", *columns], [list(row) for row in zip(spans, *columns.values(), strict=True)])


def natures(document: Document) -> Table:
    """Return what each measured method changes, costs and needs, without methods that are not registered."""
    rows, papers = [], {}
    for method in document["methods"]:
        known = METHODS.get(method["name"])
        if known is not None:
            rows.append([known.name, known.changes, known.costs, _config_note(known, method)])
            if known.source:
                papers[known.name] = known.source
    heads = ["method", "what it changes", "extra cost per token", "in config.json"]
    return Table(
        "What each method does", heads, rows, best=document["recommended"], words=True, papers=papers, stacks=True
    )


def _config_note(known: Method, method: Mapping[str, Any]) -> str:
    """Return whether and how a config.json expresses the method as it was measured."""
    block = method.get("rope_parameters", {})
    if known.config is None or known.scaling is None or block == {}:
        return known.config_note
    if block is None:
        return "no: no block of this model's config gives its layers these ropes"
    blocks = [block] if "rope_type" in block else list(block.values())  # one for each layer type
    return "yes (its factors, as longrope)" if any(b["rope_type"] == "longrope" for b in blocks) else known.config_note


def pairs(document: Document) -> Table | None:
    """Return each pair's wavelength before and after the recommended method; None if it changes none."""
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
    """Return the recorded versions, machine and settings."""
    facts: dict[str, Any] = {k: v for k, v in (document.get("environment") or {}).items() if k != "command"}
    peak = max((method.get("peak_rss_bytes") or 0 for method in document["methods"]), default=0)
    if peak:
        facts["peak memory"] = f"{peak / 1e9:.2f} GB"
    rows = [[key, f"{value:,}" if isinstance(value, int) else str(value)] for key, value in facts.items()]
    return Table("Versions and machine", ["what", "value"], rows, words=True)


def _loss(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _tokens(value: float | None) -> str:
    return "not rotated" if value is None else f"{value:,.1f}"


def _difference(method: Mapping[str, Any], where: str) -> str:
    value, interval = method[f"difference_{where}"], method[f"difference_{where}_ci"]
    return "" if value is None else signed(value, interval)


def far_rows(document: Document) -> list[CopyRow]:
    """Return the gains of copies at the longest measured length beyond the trained one; none if not measured."""
    rows = [row for row in _copy_rows(document) if row["length"] > document["trained_length"]]
    longest = max((row["length"] for row in rows), default=0)
    return sorted((row for row in rows if row["length"] == longest), key=lambda row: row["distance"])


def _copy_rows(document: Document) -> list[CopyRow]:
    copied = document.get("copies")
    return [] if copied is None else copied["rows"]


def copied_span(document: Document, method: str) -> str:
    """Return how far back a method is shown to copy, in a few words; empty if that is not shown."""
    reach = document["verdict"].get("reach_copies")
    if reach is not None:
        return f"to {reach:,}"
    rows = [row for row in far_rows(document) if row["method"] == method]
    return span_of([row["distance"] for row in rows if row["result"] == "shown"], [row["distance"] for row in rows])


def span_of(shown: Sequence[float], measured: Sequence[float]) -> str:
    """Describe the distances at which copies are shown, in order; empty for none.

    >>> span_of([128, 240], [128, 240, 464]), span_of([240, 464], [128, 240, 464]), span_of([464], [128, 240, 464])
    ('to 240', '240 to 464', 'at 464')
    >>> span_of([128, 464], [128, 240, 464])
    'in part'
    """
    if not shown:
        return ""
    first = measured.index(shown[0])
    if list(shown) != list(measured[first : first + len(shown)]):
        return "in part"
    if first == 0:
        return f"to {shown[-1]:,.0f}"
    return f"at {shown[0]:,.0f}" if len(shown) == 1 else f"{shown[0]:,.0f} to {shown[-1]:,.0f}"


def copies(document: Document) -> Iterator[Drawing]:
    """Yield the gain of copies by distance; nothing if none were asked for beyond the trained length."""
    from ropewalk.figures.results import MeasuredValue, copies_by_distance

    copied, rows, trained = document.get("copies"), far_rows(document), document["trained_length"]
    if copied is None or not rows:
        return
    gains: dict[str, dict[float, MeasuredValue]] = {}
    for row in rows:
        interval = None if row["interval"] is None else (row["interval"][0], row["interval"][1])
        gains.setdefault(row["method"], {})[row["distance"]] = MeasuredValue(row["gain"], interval)
    within = {row["distance"]: MeasuredValue(row["gain"], None) for row in copied["rows"] if _controls(row, trained)}
    length = rows[0]["length"]

    def draw(narrow: bool) -> Any:
        title = "copies by distance"
        return copies_by_distance(
            gains,
            length=length,
            trained_length=trained,
            control=within,
            bound=copied["bound"],
            recommended=document["recommended"],
            title=_titled(document, title, narrow),
            narrow=narrow,
        )

    yield Drawing(
        "copies",
        "How much better the model predicts a passage that it read before than one that it did not. It predicts the "
        f"passages after {length:,} tokens, so plain may gain nothing even within its trained length: the window is "
        "longer than that."
        + (" Grey: plain after a window of its trained length." if within else "")
        + (" Hollow: too few passages for an interval." if any(row["interval"] is None for row in rows) else ""),
        "Gain in nats per token by distance: "
        + "; ".join(f"{row['method']} at {row['distance']:,.0f}: {signed(row['gain'])}" for row in rows)
        + ".",
        draw(False),
        draw(True),
    )


def _controls(row: CopyRow, trained_length: int) -> bool:
    return row["method"] == "plain" and row["length"] == trained_length


def copies_table(document: Document) -> Table | None:
    """Return every gain by length and distance, with its interval; None if nothing was measured."""
    rows = _copy_rows(document)
    if not rows:
        return None
    cells = [
        [
            f"{row['method']}, control" if _controls(row, document["trained_length"]) else row["method"],
            f"{row['length']:,}",
            f"{row['from']:,} to {row['to']:,}" if row["to"] > row["from"] else f"{row['distance']:,.0f}",
            signed(row["gain"], row["interval"]),
            f"{row['spans']:,}",
            _copies_result(row),
        ]
        for row in rows
    ]
    heads = ["method", "length", "tokens back", "gain", "passages", "copies"]
    return Table("Gain on repeated passages, nats per token", heads, cells, best=document["recommended"])


def _copies_result(row: CopyRow) -> str:
    """Return whether the gain counts as copying; empty if that was not tested at this distance."""
    if row["decides"]:
        return f"{row['result']}, decides"
    return "" if row["result"] == "open" else row["result"]


def looks(document: Document) -> Iterator[Drawing]:
    """Yield how the answer grew with the windows; nothing for fewer than two looks."""
    from ropewalk.figures.results import LookPoint, growing_answer

    entries, method = document.get("looks") or [], grown_method(document)
    if len(entries) < 2 or method is None:
        return
    copied = document.get("copies")
    points = [
        LookPoint(
            one["windows"],
            one["action"] != "undecided",
            _measured(one["crop_difference"].get(method)),
            _measured(one["copies"].get(method)),
        )
        for one in entries
    ]
    margins = [
        one["margin"]
        for one in document["verdict"]["evidence"]
        if (one["method"], one["against"], one["where"]) == (method, "crop", "beyond")
    ]

    def draw(narrow: bool) -> Any:
        return growing_answer(
            points,
            method=method,
            most_loss=max(margins, default=None),
            bound=None if copied is None else copied["bound"],
            title=f"{method}: the answer by windows" if narrow else f"{method}: the answer by number of windows",
            narrow=narrow,
        )

    said = "; ".join(f"{one['windows']}: {one['action']}" for one in entries)
    yield Drawing(
        "looks",
        f"The evidence for {method} after each number of windows: its loss minus crop's beyond the trained length, and "
        "its gain on repeated passages, in nats per token. Vertical lines: intervals. Filled points: the verdict was "
        "decided. Hollow points: it was undecided.",
        f"Loss minus crop's and copies of {method} by number of windows, with intervals. Answers: {said}.",
        draw(False),
        draw(True),
    )


def _measured(entry: MeasuredEntry | None) -> tuple[float, Sequence[float] | None] | None:
    return None if entry is None else (entry["mean"], entry["interval"])


def grown_method(document: Document) -> str | None:
    """Return the verdict's method, or else the best candidate of the last look: of those that copy best by the mean.

    None if no look measured a method.
    """
    entries = document.get("looks") or []
    measured = {name for one in entries for name in (*one["crop_difference"], *one["copies"])} - {"crop"}
    named = [document["verdict"]["method"], document["recommended"], *(one["method"] for one in reversed(entries))]
    chosen = next((name for name in named if name in measured), None)
    if chosen is not None or not measured:
        return chosen
    last = entries[-1]
    gains = {name: found["mean"] for name, found in last["copies"].items() if name in measured}
    if any(name != "plain" for name in gains):
        return max((name for name in gains if name != "plain"), key=lambda name: gains[name])
    lost = {name: found["mean"] for name, found in last["crop_difference"].items() if name in measured}
    return min(lost, key=lambda name: (name == "plain", lost[name]), default=min(measured))


def looks_table(document: Document) -> Table | None:
    """Return what each look found; None if there were none."""
    entries, method = document.get("looks") or [], grown_method(document)
    if not entries:
        return None
    rows = []
    for one in entries:
        found = (one[key].get(method or "") for key in ("crop_difference", "copies"))
        apart, copied = ((None if entry is None else _measured(entry)) for entry in found)
        rows.append(
            [
                f"{one['windows']:,}",
                "" if one["seconds"] is None else f"{one['seconds']:,.0f}",
                " ".join(filter(None, (one["action"], one["method"] and f"with {one['method']}"))),
                "" if apart is None else better_or_worse(*apart),
                "" if copied is None else signed(*copied),
            ]
        )
    heads = ["windows", "seconds", "answer", f"{method}, compared with crop", f"copies of {method}"]
    return Table("The answer by number of windows, nats per token", heads, rows, stacks=True)


Draw = Callable[[Document], Iterator[Drawing]]
FIGURES: dict[str, Draw] = {
    "loss": loss,
    "copies": copies,
    "looks": looks,
    "frequencies": frequencies,
    "wavelengths": turns,
}
"""The functions that draw, in the order of the page; each yields one, several or no figures."""


def drawings(document: Document) -> Iterator[Drawing]:
    """Yield every figure that the document has numbers for; raise `RopeError` if matplotlib is missing."""
    for draw in FIGURES.values():
        yield from draw(document)


def drawing_named(document: Document, name: str) -> Drawing:
    """Return one figure by a name of `FIGURES` (the first of several).

    **Raises:** `RopeError` for another name, for numbers that were not measured, and if matplotlib is missing.
    """
    draw = FIGURES.get(name.partition("-")[0])
    if draw is None:
        raise RopeError(
            "report: there is no figure of this name.", facts={"name": name}, cure=f"Choose from {', '.join(FIGURES)}."
        )
    drawn = {drawing.name: drawing for drawing in draw(document)}
    if name in FIGURES and drawn:
        return next(iter(drawn.values()))
    if name not in drawn:
        raise RopeError(
            "report: the numbers of this figure were not measured.",
            facts={"name": name, "measured": ", ".join(drawn) or "none"},
            cure="Choose one that was measured." if drawn else "Measure them: --measure loss,copies.",
        )
    return drawn[name]
