"""A part of the matrix on every run, all classes in the thorough one, all models in the slow one; the page agrees."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.families import FAMILIES
from ropewalk.rope.model_ropes import ModelRopes
from tests.parity.__main__ import PAGE, RANDOM, RECORD
from tests.parity.causal import causal_families, check_causal
from tests.parity.check import check
from tests.parity.classes import Part, all_parts, installed, rotary_classes
from tests.parity.page import by_class, page
from tests.parity.random_configs import NotBuilt, compare, drawn_families, run

pytest.importorskip("transformers")
if not RECORD.exists() or not PAGE.exists():
    pytest.skip("the source distribution has neither record nor page", allow_module_level=True)
RECORDED: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8"))
NEWEST = version("transformers") == RECORDED["transformers"]  # an older one lacks rows, and has no others
ROW_OF = {Part(row["folder"], row["class"], row["config"]): row for row in RECORDED["classes"]}
ROW_OF = ROW_OF if NEWEST else {part: ROW_OF[part] for part in installed(ROW_OF)}


def test_the_page_is_made_from_the_record() -> None:
    """Word for word."""
    assert PAGE.read_text(encoding="utf-8") == page(RECORD, RANDOM)


def test_every_rotary_class_has_its_row() -> None:
    """Exact or refused with a reason: none that differs, none that is missing."""
    status = by_class(RECORDED["classes"])
    own = {part.name for part in rotary_classes()}
    assert set(status) == own or (not NEWEST and own < set(status))
    assert set(status.values()) <= {"exact", "refused"}
    assert all(row["reason"] for row in RECORDED["classes"] if row["status"] == "refused")


def _sample() -> list[Part]:
    """The first class of each way to turn: pairing, partial or not, rule, axes, layer types; and of each reason."""
    seen, found = set(), []
    for part, row in ROW_OF.items():
        for layer in row.get("layers", {"refused": {"rope": row.get("reason")}}).values():
            words = str(layer["rope"]).split(", ")
            way = (words[0], " of " in words[1] if len(words) > 1 else "", *words[3:], len(row.get("layers", ())))
            if way not in seen:
                seen.add(way)
                found.append(part)
    return list(dict.fromkeys(found))


def _same(part: Part, row: dict[str, Any]) -> None:
    found = check(part)
    assert (found["class"], found["family"], found["status"]) == (row["class"], row["family"], row["status"])
    assert found.get("reason") == row.get("reason")
    assert [layer["rope"] for layer in found.get("layers", {}).values()] == [
        layer["rope"] for layer in row.get("layers", {}).values()
    ]


@pytest.mark.parametrize("part", _sample(), ids=lambda part: part.name)
def test_a_class_of_each_kind(part: Part) -> None:
    """Measured now, it is as the record says."""
    _same(part, ROW_OF[part])


@pytest.mark.thorough
def test_every_class() -> None:
    """The whole matrix is as the record says, and no class or config is left out of it."""
    assert set(ROW_OF) == set(all_parts())
    for part, row in ROW_OF.items():
        _same(part, row)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("LlamaRotaryEmbedding", {"interleaved": True}),
        ("CohereRotaryEmbedding", {"interleaved": False}),
        ("Qwen3VLTextRotaryEmbedding", {"mrope": "contiguous"}),
        ("DeepseekV3RotaryEmbedding", {"interleaved": False}),
        ("HeliumRotaryEmbedding", {"theta": 10_000.0}),  # of a config that states only its sizes
    ],
)
def test_a_wrong_row_differs(monkeypatch: pytest.MonkeyPatch, name: str, change: dict[str, Any]) -> None:
    """Another pairing, order of axes or default in the table is noticed."""
    (part,) = [part for part in rotary_classes() if part.name == name]
    found = check(part)
    assert found["status"] == "exact"
    monkeypatch.setitem(FAMILIES, found["family"], replace(FAMILIES[found["family"]], **change))
    assert check(part)["status"] in ("differs", "refused")


# --- random configs


def test_the_record_of_random_configs() -> None:
    """At least 2,000 configs for the newest and for the oldest transformers, and none that differs."""
    runs = json.loads(RANDOM.read_text(encoding="utf-8"))["runs"]
    assert [run["transformers"].rpartition(".")[0] for run in runs] == ["5.24", "5.23", "5.17"]
    for run_ in runs:
        assert run_["drawn"] - run_["not built"] >= 2_000
        assert (run_["differs"], run_["sides"]["file: equal"] > 1_500) == ([], True)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.thorough) for part in (1, 2, 3))])
def test_random_configs(part: int) -> None:
    """A config of each family, the same on every run; `make parity` draws more."""
    rows = [run(name, 31, 1) for name in list(drawn_families())[part::4]]
    assert [row["differs"] for row in rows if "differs" in row] == []
    assert sum(sum(row["sides"].values()) for row in rows) > 100


def test_a_difference_is_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a wrong default in the table a run names a config that states nothing but sizes."""
    monkeypatch.setitem(FAMILIES, "helium", replace(FAMILIES["helium"], theta=10_000.0))
    row = run("helium", 31, 10)
    assert not [key for key in row["differs"]["config"] if "rope" in key]
    with pytest.raises(AssertionError, match="frequencies"):
        compare("helium", row["differs"]["config"])


# --- causal language models under attach

CAUSAL = {row["family"]: row for row in RECORDED["causal"] if NEWEST or row["family"] in causal_families()}
FAST = ("llama", "cohere2", "gptj")


def test_every_causal_family_has_its_row() -> None:
    """None differs, and what is not exact has a reason."""
    assert tuple(CAUSAL) == causal_families()
    assert {row["status"] for row in CAUSAL.values()} <= {"exact", "refused", "not built"}
    assert all(row["reason"] for row in CAUSAL.values() if row["status"] != "exact")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in CAUSAL]
)
def test_a_causal_family(name: str) -> None:
    """Measured now, it is as the record says."""
    row, found = CAUSAL[name], check_causal(name)
    assert (found["status"], found.get("reason")) == (row["status"], row.get("reason"))


NULLS = (
    "rope_theta", "partial_rotary_factor", "rope_type", "truncate", "attention_factor", "beta_fast", "mscale",
    "factor",
)  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "gemma3_text", "deepseek_v3", "stablelm", "phi3", "gpt_neox", "olmo3"]
)
def test_a_null_is_read_as_by_transformers(name: str) -> None:
    """Where transformers fails on a null, so do we; else the rotation is its own: of a file, an object, a folder."""
    yarn = {"rope_type": "yarn", "rope_theta": 2e4, "factor": 2.0, "original_max_position_embeddings": 64}
    sizes = {"model_type": name, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    family = FAMILIES[name]
    refused = 0
    for key in NULLS:
        block = {**yarn, key: None}
        nested = {label: dict(block) for label in family.blocks}
        for change in ({"rope_parameters": nested or block}, {key: None}):
            fields: dict[str, Any] = {**sizes, **change}
            try:
                compare(name, fields)
            except NotBuilt:
                refused += 1
                with pytest.raises(rw.RopeError):
                    ModelRopes.from_hf(fields)
    assert refused >= 3
