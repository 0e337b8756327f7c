"""A figure of the report, with what is said of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure with its file's name (no ending), the sentence under it, and what one who cannot see it is told.

    `narrow`: the same for a phone's width, where there is one.
    """

    name: str
    caption: str
    alt: str
    figure: Figure
    narrow: Figure | None = None
