"""The table of model families is plain data, and each family stands in it once."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import pytest

from ropewalk.families import FAMILIES, REFUSED, Condition, Family, family_name
from ropewalk.families.family import HALF, FamilyTable, Indexer


def test_every_row_is_plain_data() -> None:
    """Numbers, strings, lists and dicts: no function, no object but the records themselves."""

    def check(value: Any, where: str) -> None:
        if is_dataclass(value) and not isinstance(value, type):
            assert isinstance(value, Family | Condition | Indexer), where
            for field in fields(value):
                check(getattr(value, field.name), f"{where}.{field.name}")
        elif isinstance(value, dict | tuple):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                check(item, f"{where}[{key!r}]")
        else:
            assert value is None or isinstance(value, bool | int | float | str), where

    for name, family in FAMILIES.items():
        check(family, name)
        assert json.loads(json.dumps(asdict(family)))


def test_families_are_spelled_once() -> None:
    """No family is both described and refused, and no row is written over another."""
    assert set(FAMILIES) & set(REFUSED) == set()
    table = FamilyTable()
    table.add("one two", HALF, theta=5.0)
    assert table["two"].theta == 5.0
    with pytest.raises(AssertionError, match="described twice"):
        table.add("two", HALF)


def test_names_of_text_parts() -> None:
    """A composite's name leads to its text part, a refused one to its reason."""
    assert (family_name("llama"), family_name("gemma3"), family_name("hunyuan_vl")) == (
        "llama",
        "gemma3_text",
        "hunyuan_vl",
    )
    assert family_name("unheard_of") is None


@pytest.mark.parametrize(
    ("condition", "values"),
    [
        (Condition("", values=(None, False, 0)), {None: True, 0: True, 1: False, "": False}),
        (Condition("", values=(False,)), {False: True, None: False}),
        (Condition("", values=(4096,)), {4096: True, 5120: False}),
        (Condition("", without="chatglm2"), {None: True, "x/ChatGLM2-6B": False, "x/chatglm3": True}),
    ],
)
def test_conditions(condition: Condition, values: dict[Any, bool]) -> None:
    """They ask for a value, or for what it must not contain; 0 is not False where only False is meant."""
    assert {value: condition.holds(value) for value in values} == values
    assert not Condition("", values=(False,)).holds(0)


def test_a_condition_on_a_block() -> None:
    """An absent block and a named rule pass, another rule, or a block without one, does not."""
    plain = Condition("", rope_types=("linear",))
    blocks = [None, {}, {"type": "linear"}, {"rope_type": "yarn"}, [1]]
    assert [plain.holds(block) for block in blocks] == [True, False, True, False, True]
