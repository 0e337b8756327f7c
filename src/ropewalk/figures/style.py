"""One look for every figure: Okabe and Ito's colours, a line style and a marker for each method, quiet axes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ropewalk.methods import METHODS, Look
from ropewalk.optional import need

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#222222"
QUIET = "#767676"
GRID = "#e4e4e4"
SHADE = "#f3f0e8"
PALE = "#c9c9c9"
# Okabe and Ito's colours by name; as greys they stand in this order from dark to light
BLUE, RED, GREEN, PURPLE, SKY, ORANGE = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
# what stands on the cells of a colour map, light or dark: the same by day and by night
ON_LIGHT, ON_DARK = "#1f1f1f", "#fefefe"
# inches: beside another figure on a desk, and at a phone's width
WIDE, NARROW = (7.4, 4.3), (4.3, 3.1)
# one colour map for every table of numbers: its lightness grows evenly, so it survives a grey print
MAP = "cividis"


# what is drawn next to the methods: a tuned model, and LongRoPE's published factors
_BESIDE = {
    "longrope": Look("#d55e00", "-", "h"),
    "tuned": Look("#009e73", "-", "8"),
}
LOOKS = {**{name: method.look for name, method in METHODS.items()}, **_BESIDE}
OTHER = Look("#767676", "-", "o")


def look_of(label: str) -> Look:
    """The look of a label's first method: "ntk = dynamic" is drawn as ntk."""
    return LOOKS.get(label.partition(" ")[0], OTHER)


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


@contextmanager
def style() -> Iterator[None]:
    """The look, for the figures made inside; nothing global is left changed."""
    need("matplotlib", extra="figures")
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float = 8.0, height: float = 4.5) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes, in inches, bound to no window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.add_subplot()


def caption(figure: Figure, title: str, note: str = "") -> None:
    """A title over all panels, and a small line below them: what was computed, and with which settings."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    if note:
        figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")


def panel(axes: Axes, title: str) -> None:
    """A panel's own title, quieter than the figure's."""
    axes.set_title(title, fontsize=10, fontweight="normal", color=INK, pad=6)


def heat(axes: Axes, values: Any, **more: Any) -> Any:
    """A table as colours, row 0 on top, without grid lines; returns the image for its colour bar."""
    axes.grid(False)
    return axes.imshow(values, cmap=more.pop("cmap", MAP), interpolation="nearest", aspect="auto", **more)


def bar(figure: Figure, image: Any, axes: Any, label: str, **more: Any) -> Any:
    """The colour bar of an image, with its unit."""
    drawn = figure.colorbar(image, ax=axes, label=label, **more)
    drawn.outline.set_visible(False)
    return drawn


def render(figure: Figure, kind: str) -> bytes:
    """The figure as the bytes of a "png" (160 dots per inch) or "svg" file, the same for the same numbers."""
    buffer = io.BytesIO()
    with style():
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(buffer, format=kind, dpi=160, metadata=metadata)
    return buffer.getvalue()


def mark_trained_length(axes: Axes, trained_length: int, last: float) -> None:
    """A line at the trained length on a figure by length, and shade beyond it up to `last`; nothing where none is."""
    if trained_length >= last:
        return
    axes.axvspan(trained_length, last, color=SHADE, zorder=0, linewidth=0)
    axes.axvline(trained_length, color=QUIET, linewidth=1)
    axes.annotate(
        f"trained length {tokens(trained_length)}",
        (trained_length, 1),
        xycoords=("data", "axes fraction"),
        xytext=(5, -4),
        textcoords="offset points",
        va="top",
        fontsize=9,
        color=QUIET,
    )


def length_ticks(axes: Axes, which: str = "x") -> None:
    """Write lengths on an axis as 0, 512, 2k, 128k."""
    from matplotlib.ticker import FuncFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_formatter(FuncFormatter(lambda value, _: tokens(value)))


def tokens(length: float) -> str:
    """A length in tokens, short.

    >>> tokens(512), tokens(2048), tokens(131072), tokens(3000), tokens(1e6)
    ('512', '2k', '128k', '3,000', '1M')
    """
    whole = round(length)
    if whole >= 1_000_000 and whole % 1_000_000 == 0:
        return f"{whole // 1_000_000}M"
    if whole >= 1024 and whole % 1024 == 0:
        return f"{whole // 1024}k"
    return f"{whole:,}"
