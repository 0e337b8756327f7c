"""The table of model families is plain data, and each family stands in it once."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.checkpoints.load import read_config, write_config
from ropewalk.families import DECODERS, FAMILIES, REFUSED, Condition, Family, family_name
from ropewalk.families.family import HALF, DecoderShape, FamilyTable, Indexer


def test_every_row_is_plain_data() -> None:
    """Numbers, strings, lists and dicts: no function, no object but the records themselves."""

    def check(value: Any, where: str) -> None:
        if is_dataclass(value) and not isinstance(value, type):
            assert isinstance(value, Family | DecoderShape | Condition | Indexer), where
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


SIZES = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}


def test_a_decoder_family_is_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that our decoder can express is read and written once its row is there."""
    llama = DECODERS["llama"]
    shape = DecoderShape("NewForCausalLM", {**llama.defaults, "num_key_value_heads": 1}, qkv_bias=True, qk_norm=True)
    config = {"model_type": "new", "architectures": ["NewForCausalLM"], **SIZES}
    with pytest.raises(rw.RopeError, match="unknown architecture"):
        read_config(config)
    monkeypatch.setitem(FAMILIES, "new", Family(interleaved=False, theta=777.0, decoder=shape))
    monkeypatch.setitem(DECODERS, "new", shape)
    read = read_config(config)
    assert (read.ropes[0].theta, read.kv_heads, read.attention_bias, read.qk_norm) == (777.0, 1, True, True)  # type: ignore[union-attr]
    assert write_config(read)["model_type"] == "new"


def test_decoders_are_rows_of_the_table() -> None:
    """Every decoder's shape stands in its family's row."""
    assert list(DECODERS) == ["llama", "mistral", "ministral", "qwen2", "qwen3", "smollm3"]
    assert all(FAMILIES[name].decoder is shape for name, shape in DECODERS.items())
