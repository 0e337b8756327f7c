"""The numbers of the explorer: what Python writes is what the rooms compute, and every method is there."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from ropewalk.attention.extensions import ReRoPE, StreamingLLM
from ropewalk.audit.sources import read_source
from ropewalk.explorer import methods as explorer_methods
from ropewalk.explorer.data import explorer_data, numbers
from ropewalk.explorer.methods import method_entries, relative_positions
from ropewalk.explorer.page import embedded, explorer_page
from ropewalk.explorer.presets import preset_of
from ropewalk.methods import METHODS
from ropewalk.methods.reach import Reach


def test_every_registered_method_is_there_with_its_colour():
    """In the order of tables."""
    entries = method_entries()
    assert [entry["name"] for entry in entries] == list(METHODS)
    assert all(METHODS[entry["name"]].look.color in entry["color"] for entry in entries)


def test_a_new_method_of_frequencies_needs_no_more_than_its_record(monkeypatch):
    """Its ratios stand in a model's tables."""
    new = replace(METHODS["pi"], name="brand-new", order=999)
    monkeypatch.setattr("ropewalk.explorer.presets.METHODS", {"brand-new": new})
    tables = explorer_data(read_source("tiny"))["presets"][0]["methods"]["brand-new"]
    assert [table["ratio"][0] for table in tables] == [pytest.approx(1 / table["factor"]) for table in tables]
    monkeypatch.setattr(explorer_methods, "METHODS", {"brand-new": new})
    assert [entry["name"] for entry in method_entries()] == ["brand-new"]


def test_the_presets_in_the_package_are_what_python_computes():
    """One model's of the file that scripts/explorer_numbers.py writes; they name every method of frequencies."""
    presets = {preset["id"]: preset for preset in numbers("presets")}
    assert preset_of("smollm2_135m") == [presets["smollm2_135m"]]
    scaling = {name for name, method in METHODS.items() if method.scaling is not None}
    assert set(presets["smollm2_135m"]["methods"]) == scaling


def test_ratios_of_position_interpolation_and_ntk():
    """By their formulas: 1 / factor everywhere; 1 for the fastest pair and 1 / factor for the slowest."""
    methods = next(preset for preset in numbers("presets") if preset["id"] == "llama_2_7b")["methods"]
    for table in methods["pi"]:
        assert table["ratio"] == [pytest.approx(1 / table["factor"])] * 64
    for table in methods["ntk"]:
        assert (table["ratio"][0], table["ratio"][-1]) == (1, pytest.approx(1 / table["factor"], rel=1e-6))


def test_relative_positions_of_rerope_and_streaming():
    """ReRoPE holds far keys at its window; a stream sees its first tokens and its last."""
    clipped = relative_positions(ReRoPE(window=8), Reach(16, 64))
    assert clipped == [(d / 16, min(d, 8) / 16) for d in range(64)]
    stream = relative_positions(StreamingLLM(window=8, sinks=2), Reach(16, 64))
    assert [d for d, at in stream if at is not None] == [d / 16 for d in [*range(8), 62, 63]]


def test_embedded_json_cannot_end_its_element():
    """Strings with markup come back as they were; what is not a number becomes null."""
    given = {"a": "</script><script>alert(1)</script><!--", "b": math.inf, "c": [math.nan, 1.5]}
    text = embedded(given)
    assert "<" not in text
    assert json.loads(text) == {"a": given["a"], "b": None, "c": [None, 1.5]}
    assert text in explorer_page(given)


def test_a_marker_inside_the_data_stays():
    """What stands in the data is put in once, and not read for markers again."""
    assert '"@@MODEL@@"' in explorer_page({"a": "@@MODEL@@"}, model="AAAA")
