"""Settings: parsed by type, checked against bounds, refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.errors import RopeError
from ropewalk.figures.catalog import ENTRIES, draw
from ropewalk.figures.entry import Value, known
from ropewalk.figures.style import style

pytest.importorskip("matplotlib")
THOROUGH = pytest.mark.thorough  # a second or more each, and others of their figure stay


@pytest.mark.parametrize(
    ("name", "written", "found"),
    [
        ("clocks", ["head_dim=128", "theta=5e5", "pairs=0, 3"], {"head_dim": 128, "theta": 5e5, "pairs": (0, 3)}),
        ("decay", ["model=folder/a=b", "texts=2"], {"model": "folder/a=b", "texts": 2}),
        ("ratios", ["configs=llama_2_7b,phi_3_5_mini"], {"configs": ("llama_2_7b", "phi_3_5_mini")}),
        ("shift", [], {}),
    ],
)
def test_settings_are_read_by_type(name: str, written: list[str], found: dict[str, Value]) -> None:
    """Whole numbers, numbers, text, and lists with commas; a value may hold an equals sign."""
    assert ENTRIES[name].read(written) == found


@pytest.mark.parametrize(
    "setting",
    ["head_dim=63.5", "head_dim=many", "head_dim=0", "head_dim=4096", "theta=nan", "theta=inf", "theta=1", "pairs=0;1",
     "pairs=-1", "positions=", "position=99999999999"],
)  # fmt: skip
def test_bad_values_are_refused_with_what_is_read(setting: str) -> None:
    """The cure says the type, the bounds and the default."""
    name = setting.partition("=")[0]
    with pytest.raises(RopeError, match=rf"figure clocks: `{name}` cannot have this value") as refused:
        ENTRIES["clocks"].read([setting])
    assert f"{name}=" in refused.value.cure
    assert "number" in refused.value.cure


@pytest.mark.parametrize("settings", [["speed=3"], ["head_dim"], ["head_dim=8", "head_dim=16"], ["=3"]])
def test_unknown_and_repeated_settings_name_the_known(settings: list[str]) -> None:
    """As does one that is no key=value."""
    with pytest.raises(RopeError, match="Known keys: head_dim, theta, pairs, positions, position"):
        ENTRIES["clocks"].read(settings)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("clocks", {"head_dim": "64"}), ("clocks", {"head_dim": True}), ("clocks", {"pairs": [0.0]}), ("shift", {"x": 1}),
     ("axial", {"head_dim": 66}), ("axial", {"row": 24}), ("clocks", {"pairs": (32,)}), ("clocks", {"head_dim": 63}),
     ("pairing", {"head_dim": 7}), ("tables", {"model": "tiny"}), ("maps", {"heads": ("9.9",)}),
     ("maps", {"heads": ("head",)}), ("unseen", {"target": 100}), ("unseen", {"config": "no_such"}),
     ("maps", {"model": "no/such"}), ("comparison", {"record": "no/such.jsonl"})],
)  # fmt: skip
def test_python_callers_get_the_same_care(name: str, settings: dict[str, Any]) -> None:
    """`draw` refuses wrong types and values that do not fit together; each with a cure."""
    with pytest.raises(RopeError) as refused:
        draw(name, **settings)
    assert refused.value.cure


def test_unknown_figures_are_named() -> None:
    """With those that there are."""
    with pytest.raises(RopeError, match="there is no figure of this name") as refused:
        known(ENTRIES, "roll")
    assert "clocks, waves, tables" in str(refused.value)


def test_every_setting_says_what_it_is() -> None:
    """A type that is known, a default within its own bounds, a meaning."""
    for entry in ENTRIES.values():
        for parameter in entry.parameters.values():
            assert parameter.check(parameter.default, entry.name, "") == parameter.default
            assert parameter.meaning.text in str(parameter)
    assert str(ENTRIES["clocks"].parameters["head_dim"]) == (
        "head_dim=64 (whole number, 2 to 1024): features of one head, even"
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [("clocks", {"head_dim": 2}),
     pytest.param("clocks", {"head_dim": 128, "pairs": (1,), "positions": 24, "position": 1}, marks=THOROUGH),
     ("waves", {"head_dim": 2, "length": 2}), ("waves", {"length": 1_000_000, "trained_length": 999_999}),
     ("shift", {"head_dim": 2, "length": 4, "shifts": 1}), ("axial", {"head_dim": 4, "side": 3, "row": 0, "column": 0}),
     ("unseen", {"config": "smollm2_135m", "target": 8_193, "rows": 8}), ("ratios", {"configs": ("gemma_3_1b",)}),
     ("wavelengths", {"configs": ("phi_3_5_mini",)}), pytest.param("tables", {"head_dim": 2}, marks=THOROUGH),
     pytest.param("maps", {"tokens": 8}, marks=THOROUGH), ("maps", {"tokens": 8, "heads": ("0.0",)}),
     ("pairing", {"head_dim": 4, "texts": 2, "tokens": 16}),
     pytest.param("pairing", {"head_dim": 32, "texts": 2, "tokens": 16}, marks=THOROUGH),
     ("decay", {"length": 16, "texts": 1, "tokens": 16}),
     ("precision", {"head_dim": 2, "longest": 1_024, "points": 4, "distance": 0})],
)  # fmt: skip
def test_the_edges_of_settings_can_be_drawn(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laid out without a warning (the test run makes one an error)."""
    monkeypatch.delenv("ROPEWALK_SMOLLM2", raising=False)
    figure = draw(name, **settings)
    with style():
        figure.draw_without_rendering()
    assert figure.axes
