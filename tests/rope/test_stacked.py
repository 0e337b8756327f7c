"""A rule on top of the scaling that a model was trained with, against formulas; and rules of the caller."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.checkpoints.decoder_config import config_from_native, config_to_native
from ropewalk.rope.scaling import ABF, NTK, DynamicNTK, Linear, Llama3, LongRoPE, Proportional, Resonance, Stacked, YaRN
from ropewalk.rope.scaling.base import RULES, Ladder, Scaling, rule_from_dict
from tests.rope.models import fixture

TRAINED, S = 131_072, 4.0
LLAMA = rw.RopeConfig.from_hf(fixture("llama_3_2_1b"))
PHI = rw.RopeConfig.from_hf(fixture("phi_3_5_mini"))


def llama_frequencies() -> np.ndarray:
    """Meta's apply_scaling for Llama 3.2: theta 5e5, d 64, factor 32, bands 1 and 4 turns in 8,192 tokens."""
    plain = 5e5 ** (-np.arange(0, 64, 2) / 64)
    waves = 2 * np.pi / plain
    smooth = (8192 / waves - 1) / 3
    between = (1 - smooth) * plain / 32 + smooth * plain
    return np.where(waves > 8192, plain / 32, np.where(waves < 2048, plain, between))


def phi_frequencies(side: str) -> np.ndarray:
    """Phi-3.5's: theta 1e4, d 96, divided by one of its lists."""
    return 1e4 ** (-np.arange(0, 96, 2) / 96) / np.array(fixture("phi_3_5_mini")["rope_scaling"][f"{side}_factor"])


def stacked(base: rw.RopeConfig, rule: Scaling) -> rw.RopeConfig:
    """The rule on top of a published model's own."""
    assert base.scaling is not None
    return dataclasses.replace(base, scaling=Stacked(base.scaling, rule), max_position_embeddings=TRAINED)


def actual(config: rw.RopeConfig, seq_len: int | None = None) -> np.ndarray:
    """The package's frequencies."""
    found: np.ndarray = rw.inverse_frequencies(config, seq_len).inv_freq[0].numpy()
    return found


def yarn_on(frequencies: np.ndarray, dim: int, theta: float) -> np.ndarray:
    """The reference code's ramp, its bounds found among these frequencies: where they make 32 turns and one."""
    index = np.arange(len(frequencies))
    turns = np.log(TRAINED * frequencies / (2 * np.pi))
    low, high = (np.interp(-np.log(b), -turns, index) for b in (32.0, 1.0))
    if -np.log(1.0) > -turns[-1]:  # the slowest pair still makes a turn: go on at theta's own slope
        high = index[-1] + turns[-1] * dim / (2 * np.log(theta))
    low, high = math.floor(low), min(math.ceil(high), dim - 1)
    ramp = np.clip((index - low) / (high - low), 0, 1)
    return np.asarray(frequencies / S * ramp + frequencies * (1 - ramp))


def test_each_rule_on_llama_3_2() -> None:
    """PI divides what is there, NTK slows it as it slows theta's, Llama 3 and YaRN ask how it turns in 131,072."""
    base, pairs = llama_frequencies(), np.arange(32)
    np.testing.assert_allclose(actual(LLAMA), base, rtol=1e-12)
    cases = {
        Linear(S): base / S,
        NTK(S): base * S ** (-2 * pairs / 62),
        ABF(5e6): base * 10 ** (-2 * pairs / 64),
        YaRN(S, TRAINED): yarn_on(base, 64, 5e5),
        Llama3(S, 1.0, 4.0, TRAINED): np.where(
            TRAINED * base / (2 * np.pi) > 4,
            base,
            np.where(
                TRAINED * base / (2 * np.pi) < 1,
                base / S,
                (ramp := (TRAINED * base / (2 * np.pi) - 1) / 3) * base + (1 - ramp) * base / S,
            ),
        ),
        Resonance(Linear(S)): 2 * np.pi / np.round(2 * np.pi * S / base),
        LongRoPE(tuple(2.0 + pairs), tuple(2.0 + pairs), TRAINED, attention_factor=1.5): base / (2.0 + pairs),
        Proportional(0.5): base * (pairs < 16),
    }
    for rule, expected in cases.items():
        np.testing.assert_allclose(actual(stacked(LLAMA, rule), TRAINED), expected, rtol=1e-10, err_msg=str(rule))
    dynamic = actual(stacked(LLAMA, DynamicNTK()), 4 * TRAINED)
    np.testing.assert_allclose(dynamic, base * 4 ** (-2 * pairs / 62), rtol=1e-10)
    np.testing.assert_allclose(actual(stacked(LLAMA, DynamicNTK()), TRAINED), base, rtol=1e-12)


def test_both_sides_of_phi_3_5() -> None:
    """The short list up to 4,096 tokens, the long one beyond; both under the rule on top, and the factors multiply."""
    config = stacked(PHI, YaRN(S, TRAINED))
    own = math.sqrt(1 + math.log(32) / math.log(4096))
    for seq_len, side in ((4096, "short"), (4097, "long"), (4 * TRAINED, "long")):
        expected = yarn_on(phi_frequencies(side), 96, 1e4)
        np.testing.assert_allclose(actual(config, seq_len), expected, rtol=1e-10)
        assert rw.inverse_frequencies(config, seq_len).attention_factor == pytest.approx(own * (0.1 * math.log(S) + 1))
    assert (config.needs_seq_len, config.switch_length) == (True, 4096)
    assert (config.longest_at(4096), config.longest_at(4097)) == (4096, math.inf)
    for long, switch in ((1.0, 4096), (2.0, None)):  # equal lists do not follow the length; two switches have no block
        assert stacked(PHI, LongRoPE((1.0,) * 48, (long,) * 48, TRAINED)).switch_length == switch


@pytest.mark.parametrize("index", [0.0, 0.25, 1.0, 1.5, 2.75])
def test_the_index_of_a_frequency_lies_between_its_neighbours(index: float) -> None:
    """Of divided frequencies too, by their logarithms: where YaRN's bounds lie on a scaled model."""
    ladder = Ladder(1e4, 8, (0, 1, 2, 3), divisors=(1.0, 4.0, 4.0, 8.0))
    frequency = np.exp(np.interp(index, range(4), np.log(ladder.inv_freq())))
    assert ladder.index_at(float(frequency)) == pytest.approx(index, abs=1e-12)


STACKABLE = st.sampled_from(
    [Linear(3.0), NTK(3.0), ABF(7e5), YaRN(3.0, 512), YaRN(3.0, 512, variant="paper"), YaRN(3.0, 512, truncate=False),
     Llama3(3.0, 1.0, 4.0, 512), Resonance(YaRN(3.0, 512)), DynamicNTK(2.0)]
)  # fmt: skip


@given(STACKABLE, st.floats(500.0, 1e6), st.integers(2, 64), st.sampled_from([1.0, 8.0]))
def test_on_a_scaling_by_one_factor_every_rule_is_that_of_a_slower_clock(
    rule: Scaling, theta: float, pairs: int, factor: float
) -> None:
    """By 1 nothing changes at all; by 8 NTK, PI and a new theta are the plain rule's frequencies divided by 8."""
    config = rw.RopeConfig(2 * pairs, interleaved=False, theta=theta, max_position_embeddings=512, scaling=rule)
    both = dataclasses.replace(config, scaling=Stacked(Linear(factor), rule))
    if factor == 1 or isinstance(rule, Linear | NTK | ABF | DynamicNTK):
        expected = actual(config, 1024) / factor
        np.testing.assert_allclose(actual(both, 1024), expected, rtol=1e-9)
    else:  # a pair's turns are counted as it is: as in a text of an eighth of the length
        inner = rule.of if isinstance(rule, Resonance) else rule
        shorter = dataclasses.replace(inner, original_max_position_embeddings=64)
        expected = actual(dataclasses.replace(config, scaling=shorter)) / factor
        if isinstance(rule, Resonance):
            expected = 2 * np.pi / np.round(2 * np.pi / expected)
        np.testing.assert_allclose(actual(both), expected, rtol=1e-6)


@pytest.mark.parametrize("base", [LLAMA, PHI], ids=["llama3", "longrope"])
@pytest.mark.parametrize("rule", [Linear(S), NTK(S), YaRN(S, TRAINED), ABF(5e6)])
def test_what_a_config_can_say(base: rw.RopeConfig, rule: Scaling) -> None:
    """One divisor for each pair, on either side of the switch: transformers' `longrope` gives the same back."""
    config = stacked(base, rule)
    block = config.to_hf()
    assert block["rope_type"] == "longrope"
    read = rw.RopeConfig.from_hf(
        {"model_type": "llama", "head_dim": base.head_dim, "max_position_embeddings": 4 * TRAINED,
         "rope_parameters": block}
    )  # fmt: skip
    for seq_len in (100, 4096, 4097, TRAINED, 4 * TRAINED):
        np.testing.assert_allclose(actual(read, seq_len), actual(config, seq_len), rtol=1e-12)
        factors = (rw.inverse_frequencies(one, seq_len).attention_factor for one in (read, config))
        assert next(factors) == pytest.approx(next(factors), rel=1e-12)


def test_what_no_config_can_say() -> None:
    """Frequencies that follow the length, and pairs that do not rotate."""
    for rule in (DynamicNTK(), Proportional(0.5)):
        with pytest.raises(rw.RopeError, match="transformers has no rule for the frequencies of Stacked"):
            stacked(LLAMA, rule).to_hf()


def test_the_scaling_below_stays_when_the_rule_is_taken_away() -> None:
    """As trained, it is the model's own again; unscaled, it is the plain ladder."""
    config = dataclasses.replace(stacked(LLAMA, Linear(2.0)), trained=None)
    assert config.as_trained().scaling == LLAMA.scaling
    assert config.as_trained().as_trained() == config.as_trained()
    assert config.unscaled().scaling is None
    assert config.trained_length == TRAINED
    assert stacked(LLAMA, YaRN(S, TRAINED)).scaled_length == S * TRAINED
    rule = Stacked(Llama3(8.0, 1.0, 4.0, 8192), Resonance(YaRN(4.0, TRAINED)))
    assert rule_from_dict(rule.to_dict()) == rule  # all its parts by their names and fields


# --- rules of the caller


LLAMA_SCALING: dict[str, Any] = {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64}


@pytest.fixture
def stretched() -> Iterator[Any]:
    """A rule of the caller: every frequency of a long text is divided by `stretch`."""

    @dataclasses.dataclass(frozen=True)
    class Stretched(Scaling):
        stretch: float
        switch: int
        slow: bool = True
        weights: tuple[float, ...] | None = None
        rope_type: ClassVar[str] = "stretched"
        hf_names: ClassVar[tuple[str, ...]] = ("stretched",)
        required_keys: ClassVar[tuple[str, ...]] = ("stretch", "switch")
        optional_keys: ClassVar[tuple[str, ...]] = ("slow", "weights")
        needs_seq_len: ClassVar[bool] = True

        @property
        def switch_length(self) -> int:
            return self.switch

        def inv_freq(self, ladder: Ladder, seq_len: int | None) -> list[float]:
            divisor = self.stretch if seq_len is not None and seq_len > self.switch else 1.0
            return [f / divisor for f in ladder.inv_freq()]

    yield rw.scaling.Stretched
    del RULES["Stretched"]


def test_a_rule_of_the_caller_is_known_everywhere(stretched: Any) -> None:
    """Discovered, read and written by from_hf, to_hf and ropewalk's own config, and known to tables and caches."""
    block = {"rope_type": "stretched", "rope_theta": 1e4, "stretch": 4, "switch": 16, "slow": None, "weights": [1, 2]}
    rope = rw.RopeConfig.from_hf({**LLAMA_SCALING, "rope_parameters": block})
    assert rope.scaling == stretched(4.0, 16, weights=(1.0, 2.0))
    written = json.loads(json.dumps(rope.to_hf()))
    assert written == {key: value for key, value in block.items() if value is not None}
    assert rw.RopeConfig.from_hf({**LLAMA_SCALING, "rope_parameters": written}) == rope

    plain = rw.inverse_frequencies(rope.unscaled()).inv_freq
    assert torch.equal(rw.inverse_frequencies(rope, 16).inv_freq, plain)
    assert torch.equal(rw.inverse_frequencies(rope, 17).inv_freq, plain / 4)
    cos, _ = rw.RotaryEmbedding(rope).cos_sin(torch.arange(3), seq_len=17)
    torch.testing.assert_close(cos, (torch.arange(3)[:, None] * plain / 4).cos().float())

    assert (rope.longest_at(9), rope.longest_at(17)) == (16, math.inf)
    sizes: dict[str, Any] = dict.fromkeys(("num_layers", "batch", "num_key_value_heads"), 1)
    cache = rw.KVCache(**sizes, head_dim=8, seq_len=9, ropes=[rope])
    keys = torch.ones(1, 17, 1, 8)
    with pytest.raises(rw.RopeError, match="exceeds the `seq_len`"):
        cache.write(0, keys, keys, cache.lay_out(1, 17))

    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = rw.models.DecoderConfig(**sizes, num_attention_heads=1, rope=rope)
    assert config_from_native(json.loads(json.dumps(config_to_native(config))), "here") == config
    with pytest.raises(rw.RopeError, match="the same frequencies at every length"):
        rw.scaling.Resonance(rope.scaling)


@pytest.mark.rejects
def test_names_of_rules() -> None:
    """A second `yarn` would make configs ambiguous; a rule without a name in transformers is read by none."""
    for name in ("stacked", "resonance", "abf", "ntk", "lerope"):
        with pytest.raises(rw.RopeError, match="unknown `rope_type`"):
            rw.RopeConfig.from_hf({**LLAMA_SCALING, "rope_parameters": {"rope_type": name}})
    with pytest.raises(rw.RopeError, match="two rules have the same name"):
        type("Other", (rw.scaling.Scaling,), {"rope_type": "yarn"})
    assert "Other" not in RULES
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = rw.scaling.Other
