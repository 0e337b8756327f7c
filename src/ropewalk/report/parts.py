"""The parts of a report's page: a figure with its texts, and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure with its file's name (no ending), its caption, and its description for screen readers.

    `narrow` is the figure for a phone's width; None if one figure serves both.
    """

    name: str
    caption: str
    alt: str
    figure: Figure
    narrow: Figure | None = None


@dataclass(frozen=True)
class Table:
    """A table: the first cell of a row is its heading.

    `best` is the heading of the highlighted row; `words` marks tables of prose; `papers` are arXiv numbers by heading.
    `stacks`: on a phone the cells of a row are one below the other, instead of a table that scrolls sideways.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    best: str | None = None
    words: bool = False
    papers: dict[str, str] = field(default_factory=dict)
    stacks: bool = False
