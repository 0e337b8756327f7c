"""The report's figures, drawn from the document: loss by position, frequencies, wavelengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from ropewalk.report.drawing import Drawing
from ropewalk.report.record import Document, labels, method_of, recommended_label, short_name
from ropewalk.statistics import difference

Curves = dict[str, list[float]]
MOST_BANDS = 7  # of more methods the bands would hide each other


def loss(document: Document) -> Iterator[Drawing]:
    """Loss by position."""
    from ropewalk.figures.loss import loss_by_position

    losses, intervals = loss_curves(document)
    trained, shown = document["trained_length"], recommended_label(document)
    few = len(losses) <= MOST_BANDS
    if not few:
        intervals = {name: bands for name, bands in intervals.items() if name in (shown, "crop")}
    blocks = [(start, end) for start, end in document["blocks"]]

    def draw(narrow: bool) -> Any:
        return loss_by_position(
            blocks,
            losses,
            trained_length=trained,
            intervals=intervals,
            recommended=shown,
            title="Loss by position" if narrow else f"{short_name(document)}: loss by position",
            narrow=narrow,
            named=_named(document, losses),
        )

    last = "; ".join(f"{name} {values[-1]:.2f}" for name, values in losses.items())
    yield Drawing(
        "loss",
        "Mean loss of the tokens at each position: lower is better. A method works where its line stays low beyond the "
        "trained length (shaded)." + ("" if few else " Bands are drawn for the recommended method and crop alone."),
        f"Lines of loss in nats per token by position, trained length {trained:,} tokens marked. "
        f"In the last block: {last}.",
        draw(False),
        draw(True),
    )


def _named(document: Document, losses: Curves) -> set[str]:
    """The labels of plain, of crop, and of one more: recommended, or examined for use, or the lowest at the end."""
    shown = labels(document)
    others = [label for label in losses if label not in ("plain", "crop")]
    examined = [shown[row["method"]] for row in document.get("use") or [] if row["method"] in shown]
    first = [recommended_label(document), *(label for label in examined if label in others)]
    lowest = min(others, key=lambda label: losses[label][-1], default="")
    return {"plain", "crop", next((label for label in first if label), lowest)}


def loss_curves(document: Document) -> tuple[Curves, dict[str, list[tuple[float, float] | None]]]:
    """By label: mean loss of each block, and the interval of its paired difference to plain, put around it.

    Windows differ by far more than methods do: a mean's own interval would hide every difference.
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
            apart, interval = difference([row[block] for row in rows], [row[block] for row in plain])
            band = None if interval is None else (mean + interval[0] - apart, mean + interval[1] - apart)
            intervals[label].append(band)
    return losses, intervals


def ratios(method: dict[str, Any]) -> list[float | None]:
    """New frequency over unscaled for each pair (None: it does not turn); empty where the method changes none.

    >>> ratios({"inv_freq": [1.0, 0.0], "inv_freq_unscaled": [2.0, 0.1]}), ratios({"inv_freq": None})
    ([0.5, None], [])
    """
    new, old = method.get("inv_freq") or [], method.get("inv_freq_unscaled") or []
    if not new or new == old:
        return []
    return [n / o if n and o else None for n, o in zip(new, old, strict=True)]


def frequencies(document: Document) -> Iterator[Drawing]:
    """What each method does to each pair; nothing where no frequency is changed, or a record of old does not say."""
    named = labels(document)
    found = {named[m["name"]]: ratios(m) for m in document["methods"] if m["name"] in named and ratios(m)}
    if not found:
        return
    from ropewalk.figures.frequencies import frequency_ratios

    factor = document["target"] / document["trained_length"]
    yield Drawing(
        "frequencies",
        "1: the pair turns as it was trained to. Below 1: it turns more slowly, so that longer distances stay within "
        "the angles that training showed. Fast pairs, on the left, tell neighbours apart.",
        f"Frequency of each pair after each method over before it, down to 1/{factor:g}: " + ", ".join(found) + ".",
        frequency_ratios(found, factor=factor),
    )


def wavelengths_of(inv_freq: Sequence[float]) -> list[float | None]:
    """Tokens per turn of each pair; None for a pair that does not turn.

    >>> wavelengths_of([3.141592653589793, 0.0])
    [2.0, None]
    """
    return [2 * math.pi / value if value else None for value in inv_freq]


def turns(document: Document) -> Iterator[Drawing]:
    """Tokens per turn of each pair, before and after the recommended method."""
    from ropewalk.figures.frequencies import wavelengths

    chosen, trained, target = (
        method_of(document, document["recommended"]),
        document["trained_length"],
        document["target"],
    )
    before = document["audit"]["wavelengths_unscaled"]
    after = {}
    if chosen is not None and ratios(chosen):
        before = wavelengths_of(chosen["inv_freq_unscaled"])
        after = {chosen["name"]: wavelengths_of(chosen["inv_freq"])}
    slow = sum(length is None or length > trained for length in before)
    yield Drawing(
        "wavelengths",
        "Each point is one pair of features and the tokens that one full turn of it takes. Pairs in the shaded part "
        "never completed a turn in training: beyond it they meet angles that they never saw.",
        f"Tokens per turn of each of {len(before)} pairs, against the trained length {trained:,} and the target "
        f"{target:,}. {slow} pairs never complete a turn within the trained length.",
        wavelengths(
            before,
            trained_length=trained,
            target=target,
            scaled=after,
            title=f"{short_name(document)}: wavelength of each pair",
        ),
    )
