"""The style of all figures (Okabe and Ito's colours, a line style and a marker for each method) and their files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ropewalk.imports import need
from ropewalk.methods import METHODS, Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#222222"
QUIET = "#767676"
GRID = "#e4e4e4"
SHADE = "#f3f0e8"
PALE = "#c9c9c9"
ON_LIGHT = "#212121"  # ink on what is light on dark pages, too
# Okabe and Ito's colours by name, from dark to light when printed in grey
BLUE, RED, GREEN, PURPLE, SKY, ORANGE = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
# inches: half of a desktop page, and a phone's width
WIDE, NARROW = (9.0, 4.3), (4.3, 3.1)
# the colour map of every table of numbers: its lightness grows evenly, so a grey print keeps the order
MAP = "cividis"


OTHER = Look("#767676", "-", "o")


def look_of(label: str) -> Look:
    """Return the look of the label's first method: "ntk = dynamic" is drawn as ntk."""
    method = METHODS.get(label.partition(" ")[0])
    return OTHER if method is None else method.look


_STYLE: dict[Any, Any] = {
    "figure.facecolor": "white",
    "figure.constrained_layout.use": True,
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "ropewalk",
}


_NARROW = ContextVar("narrow", default=False)
_SMALL: dict[Any, Any] = {"font.size": 8, "axes.titlesize": 9, "lines.linewidth": 1.4, "lines.markersize": 3.5}


@contextmanager
def narrow_page() -> Iterator[None]:
    """Draw the figures made inside the block for a phone: 4.3 inches wide, with smaller text."""
    token = _NARROW.set(True)
    try:
        yield
    finally:
        _NARROW.reset(token)


def fit(wide: Any, narrow: Any) -> Any:
    """Return the second inside `narrow_page`, else the first."""
    return narrow if _NARROW.get() else wide


@contextmanager
def style(**settings: Any) -> Iterator[None]:
    """Apply the look, changed by `settings`, to figures made in the block; global settings are restored at its end."""
    need("matplotlib", extra="figures")
    import matplotlib

    look: dict[Any, Any] = {**_STYLE, **fit({}, _SMALL), **settings}
    with matplotlib.rc_context(look):
        yield


def caption(figure: Figure, title: str, note: str = "") -> None:
    """Write a title above all panels, and a small note below them."""
    figure.suptitle(fit(title, wrapped(title, 44)), x=0.01, ha="left", fontsize=fit(12, 10), fontweight="bold")
    if note:
        figure.supxlabel(fit(note, wrapped(note, 74)), fontsize=fit(8, 7), color=QUIET, x=0.01, ha="left")


def wrapped(text: str, columns: int) -> str:
    """Return the text in lines of at most `columns` characters."""
    return textwrap.fill(" ".join(text.split()), columns)


def panel(axes: Axes, title: str) -> None:
    """Write a panel's title, smaller than the figure's."""
    axes.set_title(title, fontsize=fit(10, 8), fontweight="normal", color=INK, pad=fit(6, 4))


def heat(axes: Axes, values: Any, **more: Any) -> Any:
    """Draw a table as colours, row 0 on top, without grid lines; return the image for its colour bar."""
    axes.grid(False)
    return axes.imshow(values, cmap=more.pop("cmap", MAP), interpolation="nearest", aspect="auto", **more)


def bar(figure: Figure, image: Any, axes: Any, label: str, **more: Any) -> Any:
    """Draw and return the colour bar of an image; `label` names its unit."""
    drawn = figure.colorbar(image, ax=axes, label=label, **more)
    drawn.outline.set_visible(False)
    return drawn


def render(figure: Figure, kind: str, **settings: Any) -> bytes:
    """Return the bytes of a "png" (160 dots per inch) or "svg" file; equal figures give equal bytes.

    `settings`: of matplotlib's rcParams, instead of the style's.
    """
    buffer = io.BytesIO()
    with style(**settings):
        metadata = {"Date": None, "Creator": "ropewalk"} if kind == "svg" else {"Software": "ropewalk"}
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


def length_ticks(axes: Axes, which: str = "x") -> None:
    """Label the lengths on an axis as 0, 512, 2k, 128k."""
    from matplotlib.ticker import FuncFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: tokens(value)))


def tokens(length: float) -> str:
    """Return a length in tokens as short text.

    >>> tokens(512), tokens(2048), tokens(131072), tokens(3000), tokens(1e6)
    ('512', '2k', '128k', '3,000', '1M')
    """
    whole = round(length)
    if whole >= 1_000_000 and whole % 1_000_000 == 0:
        return f"{whole // 1_000_000}M"
    if whole >= 1024 and whole % 1024 == 0:
        return f"{whole // 1024}k"
    return f"{whole:,}"
