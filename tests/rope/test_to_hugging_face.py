"""`to_hf`: the block of a Hugging Face config that says the same, and what no block can say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.rope.dimensions import axes_from_sections
from ropewalk.rope.scaling import ABF, NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Resonance, Scaling, YaRN
from tests.rope.models import fixture
from tests.rope.test_hugging_face import LLAMA

lists = st.lists(st.floats(0.5, 80.0), min_size=32, max_size=32).map(tuple)
factors = st.floats(1.0, 64.0)
rules: st.SearchStrategy[Callable[[], Scaling | None]] = st.one_of(  # built in the test, not while drawing
    st.just(lambda: None),
    st.builds(partial, st.just(Linear), factors),
    st.builds(partial, st.just(DynamicNTK), factors),
    st.builds(
        partial,
        st.just(YaRN),
        factors,
        st.integers(64, 8192),
        attention_factor=st.none() | st.floats(0.5, 2.0),
        beta_fast=st.floats(8.0, 64.0),
        beta_slow=st.floats(0.5, 4.0),
        mscale=st.none() | st.floats(0.1, 2.0),
        mscale_all_dim=st.none() | st.floats(0.1, 2.0),
        truncate=st.booleans(),
    ),
    st.builds(partial, st.just(LongRoPE), lists, lists, st.integers(64, 8192), factor=st.none() | factors),
    st.builds(partial, st.just(LongRoPE), lists, lists, st.integers(64, 8192), attention_factor=st.floats(0.5, 2.0)),
    st.builds(
        partial, st.just(LongRoPE), lists, lists, st.integers(64, 8192), short_mscale=factors, long_mscale=factors
    ),
    st.builds(partial, st.just(Llama3), factors, st.floats(0.5, 1.0), st.floats(2.0, 8.0), st.integers(64, 8192)),
    st.builds(partial, st.just(Proportional), st.floats(0.0, 1.0), factors),
)


@given(rules, st.floats(100.0, 1e7), st.booleans())
def test_round_trip(rule: Callable[[], Scaling | None], theta: float, interleaved: bool) -> None:
    """from_hf of a base config that carries to_hf's block is the config again, for every rule."""
    config = rw.RopeConfig(64, interleaved=interleaved, theta=theta, scaling=rule(), max_position_embeddings=4096)
    base = {"rope_interleave": interleaved, "head_dim": 64, "max_position_embeddings": 4096}
    block = json.loads(json.dumps(config.to_hf()))
    assert rw.RopeConfig.from_hf({**base, "rope_parameters": block}) == config


@given(st.integers(1, 150), st.integers(1, 150))
def test_round_trip_of_a_partial_rotation(pairs: int, others: int) -> None:
    """The exported fraction gives back exactly the rotary dimension, for every pair of numbers."""
    config = rw.RopeConfig(2 * (pairs + others), interleaved=True, rotary_dim=2 * pairs)
    base = {"rope_interleave": True, "head_dim": config.head_dim}
    assert rw.RopeConfig.from_hf({**base, "rope_parameters": config.to_hf()}) == config


@pytest.mark.parametrize("name", ["qwen2_vl_7b", "qwen3_vl_4b", "qwen3_5_9b"])
def test_round_trip_of_axes(name: str) -> None:
    """mrope_section and mrope_interleaved come back from the order of the axes."""
    fields = fixture(name)
    config, text = rw.RopeConfig.from_hf(fields), fields.get("text_config", fields)
    block = config.to_hf()
    assert block["mrope_section"] == (text.get("rope_parameters") or text["rope_scaling"])["mrope_section"]
    text.pop("rope_scaling", None)
    text["rope_parameters"] = block
    assert rw.RopeConfig.from_hf(fields) == config


def test_round_trip_of_a_vision_tower() -> None:
    """Height and width in equal halves are the `axial` block."""
    base = {"model_type": "qwen2_vl_vision", "embed_dim": 1280, "num_heads": 16}
    config = rw.RopeConfig.from_hf(base)
    assert config.to_hf() == {"rope_type": "axial", "rope_theta": 10_000.0}
    assert rw.RopeConfig.from_hf({**base, "rope_parameters": config.to_hf()}) == config


@pytest.mark.parametrize(
    "rule",
    [
        NTK(8.0),
        DynamicNTK(4.0, variant="paper"),
        YaRN(4.0, 512, variant="paper"),
        YaRN(4.0, 512, 1.3, variant="paper"),
        ABF(4e6),
        Resonance(),
        Resonance(YaRN(4.0, 512)),
        Resonance(ABF(4e6)),
    ],
)
def test_rules_without_a_name_export_as_what_computes_the_same(rule: Scaling) -> None:
    """NTK, ABF, Resonance and the papers' variants become a block with the same frequencies and attention factor."""
    config = rw.RopeConfig(64, interleaved=False, theta=5e5, scaling=rule, max_position_embeddings=2048)
    again = rw.RopeConfig.from_hf({**LLAMA, "rope_parameters": config.to_hf()})
    for seq_len in (100, 512, 4096):
        mine = rw.inverse_frequencies(config, seq_len if config.needs_seq_len else None)
        theirs = rw.inverse_frequencies(again, seq_len if again.needs_seq_len else None)
        assert (mine.inv_freq - theirs.inv_freq).abs().max() <= 1e-14
        assert mine.attention_factor == pytest.approx(theirs.attention_factor, rel=1e-14)


@pytest.mark.rejects
def test_what_no_block_can_say() -> None:
    """ERNIE's order of axes, and a scaled or uneven vision tower are refused."""
    with pytest.raises(rw.RopeError, match="no `mrope_section` expresses"):
        rw.RopeConfig(12, interleaved=True, axes=(1, 2, 1, 2, 0, 0)).to_hf()
    with pytest.raises(rw.RopeError, match="NTK needs at least two pairs"):
        rw.RopeConfig(2, interleaved=False, scaling=NTK(2.0)).to_hf()
    with pytest.raises(rw.RopeError, match="Resonance becomes `longrope`"):
        rw.RopeConfig(8, interleaved=False, scaling=Resonance()).to_hf()
    vision = rw.RopeConfig(64, interleaved=False, axes=axes_from_sections([8, 24]), axes_restart=True)
    even = dataclasses.replace(vision, axes=axes_from_sections([16, 16]), scaling=Linear(2.0))
    for config in (vision, even):
        with pytest.raises(rw.RopeError, match="height and width in equal halves"):
            config.to_hf()
