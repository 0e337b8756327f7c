"""Every figure of the report by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ropewalk.errors import RopeError
from ropewalk.report.drawing import Drawing
from ropewalk.report.figures import frequencies, loss, turns
from ropewalk.report.record import Document
from ropewalk.report.retrieval import retrieval_drawings
from ropewalk.report.use import use

Draw = Callable[[Document], Iterator[Drawing]]
FIGURES: dict[str, Draw] = {
    "loss": loss,
    "use": use,
    "retrieval": retrieval_drawings,
    "frequencies": frequencies,
    "wavelengths": turns,
}
"""What draws each, in the order of the page; a name may stand for several, or for none where nothing was measured."""


def drawings(document: Document) -> Iterator[Drawing]:
    """Every figure that the document has numbers for. Raises `RopeError` where matplotlib is missing."""
    for draw in FIGURES.values():
        yield from draw(document)


def drawing_named(document: Document, name: str) -> Drawing:
    """One figure: a name of `FIGURES` (of several the first), or its own, as "retrieval-passkey".

    Raises `RopeError` for another name, for what was not measured, and where matplotlib is missing.
    """
    draw = FIGURES.get(name.partition("-")[0])
    if draw is None:
        raise RopeError(
            "report: there is no figure of this name.", facts={"name": name}, cure=f"Choose from {', '.join(FIGURES)}."
        )
    found = {drawing.name: drawing for drawing in draw(document)}
    if name in FIGURES and found:
        return next(iter(found.values()))
    if name not in found:
        raise RopeError(
            "report: the numbers of this figure were not measured.",
            facts={"name": name, "drawn": ", ".join(found) or "none"},
            cure="Measure them: --measure loss,use,retrieval." if not found else "Name one that is drawn.",
        )
    return found[name]
