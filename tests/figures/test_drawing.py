"""`rw.figures` draws its numbers, names every axis with its unit, takes every kind of config, and refuses nonsense."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.figures import style as styles
from ropewalk.figures.inline import CARD, NIGHT
from ropewalk.figures.material import CONFIGS, main_rope, opened
from ropewalk.figures.pairs import _runs
from ropewalk.figures.style import OTHER
from ropewalk.methods import METHODS
from tests.figures.drawn import check_units, lines

pytest.importorskip("matplotlib")
SMALL = rw.RopeConfig(8, interleaved=False, max_position_embeddings=16)
GRID = rw.RopeConfig(8, interleaved=True, theta=100.0, axes=(0, 0, 1, 1), axes_restart=True)

DRAWN: dict[str, Callable[[], Any]] = {
    "decay": lambda: rw.figures.decay(SMALL, 16),
    "maps": lambda: rw.figures.maps(tokens=8, heads=[(0, 1)]),
    "unseen": lambda: rw.figures.unseen(SMALL, 64, rows=8),
    "decay of a grid": lambda: rw.figures.decay(GRID, 16),
    "unseen, two rows": lambda: rw.figures.unseen("smollm2_135m", 8_193, rows=2),
}
PUBLIC = list(DRAWN)[:3]


@cache
def drawn(name: str) -> Any:
    """One figure of each kind."""
    return DRAWN[name]()


@pytest.mark.parametrize("name", DRAWN)
def test_axes_have_units(name: str) -> None:
    """Laid out without a warning (the test run makes one an error)."""
    check_units(drawn(name))


@pytest.mark.parametrize("name", PUBLIC)
def test_a_narrow_page_has_narrow_figures(name: str) -> None:
    """Laid out without a warning at a phone's width, with smaller text; not outside the block."""
    with styles.narrow_page():
        figure = DRAWN[name]()
        figure.draw_without_rendering()
    assert figure.get_figwidth() == 4.3
    assert max(text.get_fontsize() for axes in figure.axes for text in axes.get_xticklabels()) == 8
    assert drawn(name).get_figwidth() > 6


def test_each_figure_has_its_numbers() -> None:
    """The public door has two functions for each."""
    assert sorted([*PUBLIC, *(f"{name}_numbers" for name in PUBLIC)]) == rw.figures.__all__


def test_the_same_numbers_give_the_same_file() -> None:
    """No dates, no random names, also of hatched boxes; the other kind can be written as well."""
    first, second = DRAWN["unseen"](), DRAWN["unseen"]()
    assert styles.render(first, "svg") == styles.render(second, "svg")
    assert styles.render(first, "png").startswith(b"\x89PNG")


def test_decay_shows_its_curves() -> None:
    """Three panels; of a long length 4,096 distances."""
    numbers = rw.figures.decay_numbers(SMALL, 16)
    first, above, second = drawn("decay").axes
    assert lines(first)["equal pairs, q = k"] == numbers["equal"].tolist()
    assert lines(above)["the paper's bound for q = k"] == numbers["bound"].tolist()
    assert above.get_title(loc="left").startswith(f"the bound: {numbers['bound'].min():.1f} |q| |k| or more")
    assert lines(second)["mean of draws"] == numbers["random_mean"].tolist()
    assert len(rw.figures.decay_numbers(SMALL, 10_000)["distances"]) == 4096


def test_maps_hide_later_keys() -> None:
    """What a query cannot see is masked, not coloured; a column's name breaks at its colon."""
    [(_, weights)] = rw.figures.maps_numbers(tokens=8, heads=[(0, 1)])["rows"]
    axes = drawn("maps").axes
    shown = axes[1].images[0].get_array()
    assert np.array_equal(shown.mask, np.triu(np.ones((8, 8), bool), 1))
    assert float(shown[3, 0]) == max(1e-3, weights[1][3, 0])
    assert "\ndiffers by at most" in axes[2].get_title(loc="left")


def test_a_model_and_a_text_of_your_own() -> None:
    """A loaded decoder and the given text; two texts have different maps."""
    model = rw.load("tiny")
    given = rw.figures.maps_numbers(model, 8, text="one two three one two three one two three", heads=[(1, 0)])
    assert "8 tokens of the given text" in given["note"]
    assert not np.allclose(given["rows"][0][1][0], rw.figures.maps_numbers("tiny", 8, heads=[(1, 0)])["rows"][0][1][0])


def test_unseen_cells_are_boxes_and_a_share() -> None:
    """One box for each run of unseen cells, at its pair and positions; the share in the panel's title."""
    cells = rw.figures.unseen_numbers(SMALL, 64, rows=8)["cells"]
    figure = drawn("unseen")
    for axes, (name, unseen) in zip(figure.axes, cells.items(), strict=False):
        share = f"{unseen.mean():.1%}".replace("%", " %") if unseen.any() else "0 %"
        assert axes.get_title(loc="left") == f"{name}: {share} never seen"
        boxes = axes.collections[0].get_paths()
        wanted = [(pair, run) for pair in range(4) for run in _runs(unseen[:, pair])]
        assert [
            (box.vertices[:, 0].min(), box.vertices[:, 1].min() / 8, box.vertices[:, 1].max() / 8) for box in boxes
        ] == [(pair - 0.5, start, stop) for pair, (start, stop) in wanted]
    assert cells["no scaling"].any()
    assert not cells["PI"].any()


def test_every_kind_of_config(tmp_path: Path) -> None:
    """A packaged name, a path, a dict, an object with to_dict, and a RopeConfig: the same rope."""
    content = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 8, "max_position_embeddings": 16}
    holder = type("Config", (), {"to_dict": lambda self: content})()
    path = CONFIGS / "llama_2_7b.json"
    assert opened("llama_2_7b").name == "Llama 2 7B"
    assert opened(path).ropes == opened(str(path)).ropes == opened("llama_2_7b").ropes
    assert main_rope("gemma_3_1b").theta == 1e6  # of full attention
    for config in (content, holder, SMALL):
        assert opened(config).ropes.by_type[None] == SMALL


@pytest.mark.parametrize(
    "call",
    [lambda: rw.figures.decay(SMALL, length=15), lambda: rw.figures.maps("no/such"),
     lambda: rw.figures.unseen(SMALL, target=16), lambda: rw.figures.unseen("no_such"),
     lambda: rw.figures.unseen(3), lambda: rw.figures.maps(tokens=0),
     lambda: rw.figures.maps(heads=[(rw.load("tiny").config.num_hidden_layers, 0)]),
     lambda: rw.figures.maps(text="short"), lambda: rw.figures.unseen(rw.RopeConfig(8, interleaved=False))],
)  # fmt: skip
def test_nonsense_is_refused(call: Callable[[], Any]) -> None:
    """Where a figure would show nothing, and for what is not a config, head, text or length; each with a cure."""
    with pytest.raises(RopeError) as refused:
        call()
    assert refused.value.cure


def test_colours_stay_apart_on_dark_pages() -> None:
    """The closest two of the methods are further apart than on a light page; all are legible (WCAG), plain is light."""

    def xyz(color: str) -> np.ndarray:
        parts = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]) @ linear

    def contrast(color: str) -> float:
        return float((xyz(color)[1] + 0.05) / (xyz(CARD)[1] + 0.05))

    def lab(color: str) -> np.ndarray:
        x, y, z = np.cbrt(xyz(color) / [0.9505, 1.0, 1.089])
        return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])

    colors = {method.look.color for method in METHODS.values()}

    def closest(of: set[str]) -> float:
        return min(float(np.linalg.norm(lab(a) - lab(b))) for a in of for b in of if a < b)

    night = {NIGHT[color] for color in (*colors, OTHER.color)}
    assert len(night) == len({*colors, OTHER.color})
    assert closest(night - {NIGHT[OTHER.color]}) > max(20, closest(colors))
    assert min(map(contrast, night)) >= 4.5
    assert contrast(NIGHT[METHODS["plain"].look.color]) > 10
