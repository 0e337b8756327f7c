"""RopeConfig: what it accepts, refuses and derives; and every value of a config file has its type and range."""

from __future__ import annotations

import copy
import dataclasses
import json
import warnings
from collections.abc import Iterator
from typing import Any

import mpmath
import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints.decoder_config import _to_dict, rope_from_dict
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.methods.faulty_rules import ScaledLogits
from ropewalk.methods.ropes import Reach
from ropewalk.rope.extensions import DualChunk, LaMPE, ReRoPE, SelfExtend
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import DynamicNTK, Ladder, Linear, LongRoPE, Proportional, YaRN
from tests.rope.models import fixture

GIVEN = (1.0, 0.3, 0.0, -0.02)  # 0 stands still, below 0 turns the other way


def config(**changes):
    return rw.RopeConfig(**{"head_dim": 8, "interleaved": True, **changes})


@pytest.mark.rejects  # its annotations say tuples: run-time checks would stop a list
def test_frozen_hashable_and_compared_whole():
    """Equal fields make equal configs and hashes; any field makes a difference (a memo key forgets nothing)."""
    base = config(scaling=rw.scaling.Linear(2.0), max_position_embeddings=64)
    assert hash(base) == hash(config(scaling=rw.scaling.Linear(2.0), max_position_embeddings=64))
    axes: dict[str, Any] = {"axes": (0, 1, 0, 1), "axes_restart": True}
    given = config(inv_freq=[1, 0.3, 0, -0.02])
    assert hash(given) == hash(config(inv_freq=GIVEN))
    others = [
        config(head_dim=16), config(interleaved=False), config(theta=5e5), config(rotary_dim=4), config(),
        config(scaling=rw.scaling.Linear(4.0)), config(scaling=rw.scaling.NTK(2.0)), config(max_position_embeddings=65),
        config(axes=axes["axes"]), config(**axes),
        given, config(inv_freq=(1.0, 0.3, 0.0, 0.02)),
    ]  # fmt: skip
    assert len({base, *others}) == len(others) + 1
    found = {tuple(rw.inverse_frequencies(each).inv_freq.flatten().tolist()) for each in (config(), *others[-2:])}
    assert len(found) == 3
    with pytest.raises(AttributeError):
        base.theta = 1.0


@pytest.mark.rejects  # the annotations say int and float
def test_numbers_of_numpy_and_torch_are_numbers():
    """They come out as Python's, so that equal configs are equal and hash alike."""
    built = config(
        head_dim=np.int64(8),
        theta=np.float32(1e4),
        max_position_embeddings=torch.tensor(64),
        axes=np.array([0, 1, 0, 1]),
    )
    assert built == config(max_position_embeddings=64, axes=(0, 1, 0, 1))
    assert hash(built) == hash(config(max_position_embeddings=64, axes=(0, 1, 0, 1)))
    assert [type(value) for value in (built.head_dim, built.theta, built.max_position_embeddings)] == [int, float, int]
    assert all(type(axis) is int for axis in built.axes)
    assert rw.scaling.Linear(np.float32(2.0)) == rw.scaling.Linear(2.0)


DYNAMIC = rw.RopeConfig(8, interleaved=True, scaling=rw.scaling.DynamicNTK(2.0), max_position_embeddings=16)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: config(head_dim=7), "`head_dim` must be even"),
        (lambda: config(rotary_dim=3), "`rotary_dim` must be even"),
        (lambda: config(theta=1.0), "`theta` must be"),
        (lambda: config(theta="2"), "`theta` must be"),
        (lambda: config(theta=float("inf")), "`theta` must be"),
        (lambda: config(max_position_embeddings=0), "whole number from 1 to 2,147,483,647"),
        (lambda: config(axes=(0, 1)), "one axis for each pair"),
        (lambda: config(axes_restart=True), "`axes_restart` needs several axes"),
        (lambda: config(axes=(0, 2, 2, 0)), "without gaps"),
        (lambda: config(scaling=LongRoPE((1.0,), (2.0,) * 4, 16)), "`short_factor` needs one entry"),
        (lambda: config(scaling=LongRoPE((1.0,) * 4, (2.0,) * 3, 16)), "`long_factor` needs one entry"),
        (lambda: config(scaling=Proportional(0.5), rotary_dim=4), "pairs over the whole head"),
        (lambda: config(scaling=rw.scaling.DynamicNTK()), "max_position_embeddings, which is not set"),
        (lambda: config(head_dim=128.0), "(?s)`head_dim` must be a whole number.*//"),
        (lambda: config(rotary_dim=4.0), "`rotary_dim` must be a whole number"),
        (lambda: config(axes=(0.5, 0, 0, 0)), "`axes` must be whole numbers"),
        (
            lambda: config(interleaved=None),
            "(?s)False .*GPT-NeoX, Hugging Face's Llama.*True .*Meta's Llama, GPT-J, the paper",
        ),
        (
            lambda: config(scaling="yarn"),
            r"rw\.scaling\.YaRN\(factor, original_max_position_embeddings, \.\.\.\)",
        ),
        (lambda: config(scaling="su"), r"rw\.scaling\.LongRoPE\("),
        (lambda: config(scaling=rw.scaling.NTK), r"rw\.scaling\.NTK\(factor, "),
        (lambda: config(scaling={"rope_type": "yarn"}), "from_hf"),
        (lambda: config(axes=(0, 1, 0, 1), axes_restart="yes"), "`axes_restart` must be of type bool"),
        (lambda: config(inv_freq=(1.0,) * 3 + (float("nan"),)), "`inv_freq` needs one finite number"),
        (lambda: config(inv_freq=0.5), "`inv_freq` needs one finite number"),
        (lambda: config(inv_freq=torch.ones(4)), r"(?s)one finite number.*tolist\(\)"),
        (lambda: config(inv_freq=GIVEN, theta=500.0), "`inv_freq` and `theta`, `scaling` or"),
        (
            lambda: config(inv_freq=GIVEN, axes=(0, 1, 0, 1), axes_restart=True),
            "`inv_freq` and `theta`, `scaling` or",
        ),
        (lambda: config(theta=(1e4, 1e5)), "`theta` must be"),
        (lambda: rw.scaling.Linear(0.5), "Linear: `factor`"),
        (lambda: YaRN(4.0, 64, attention_factor=-1.0), "YaRN: `attention_factor` must be"),
        (lambda: YaRN(4.0, 64, mscale=-1.0), "YaRN: `mscale` must be"),
        (lambda: LongRoPE((1.0,), (1.0,), 1), "must be above 1"),
        (lambda: YaRN(4.0, 0), "whole number of tokens"),
        (lambda: YaRN(4.0, 64, beta_fast=1, beta_slow=32), "`beta_fast` must not be below"),
        (lambda: YaRN(4.0, 64, variant="hf"), "unknown variant"),
        (lambda: rw.scaling.Llama3(8.0, 4.0, 1.0, 64), "`high_freq_factor` must not be below"),
        (lambda: LongRoPE((1.0,), "ab", 64), "every entry of `long_factor`"),
        (lambda: LongRoPE((1.0,), (0.0,), 64), "every entry of `long_factor`"),
        (lambda: LongRoPE((1.0,), (1.0,), 64, short_mscale=1.1).attention_factor_at(None, 65), "must both be given"),
        (
            lambda: LongRoPE((1.0,), (1.0,), 64, short_mscale=1.1, long_mscale=1.2).attention_factor_at(None, None),
            "`seq_len` chooses between them",
        ),
        (lambda: DualChunk(64, 64), "`chunk` must be less than the trained length"),
        (lambda: ScaledLogits(0.0), "`scale` must be a finite number above 0"),
        (lambda: Proportional(1.5), "between 0 and 1"),
        (lambda: rw.scaling.ABF(1.0), "ABF: `theta` must be"),
        (lambda: rw.scaling.Resonance(rw.scaling.DynamicNTK()), "the same frequencies at every length"),
        (lambda: YaRN(4.0, 64, beta_fast=float("inf")), "`beta_fast` must not be below"),
        (lambda: YaRN(4.0, 64, truncate="no"), "`truncate` must be of type bool"),
        (lambda: rw.positions.axes_from_sections([]), "at least one pair"),
        (lambda: rw.positions.axes_from_sections([1.5, 2.5]), "at least one pair"),
        (lambda: rw.scaling.LeRoPE((0.1,), Proportional(0.5)), "without unrotated pairs"),
        (lambda: rw.scaling.Stacked(None, rw.scaling.Linear(2.0)), "`of` and `by` must be scaling rules"),
        (lambda: rw.scaling.Stacked(Proportional(0.5), rw.scaling.Linear(2.0)), "pairs that do not rotate"),
        (lambda: config().fingerprint(["a"]), "`layers` must be whole numbers"),
        (lambda: rw.inverse_frequencies({"head_dim": 8}), "(?s)must be of type RopeConfig.*from_hf"),
        (lambda: rw.inverse_frequencies(DYNAMIC, 5.5), "`seq_len` must be a whole number"),
        (lambda: rw.positions.text_positions(torch.arange(2), -1), "`axes` a whole number"),
        (
            lambda: rw.RotaryEmbedding(config(axes=(0, 1, 0, 1))).cos_sin(torch.ones(5, 3)),
            "wrong shape for 2 axis/axes",
        ),
    ],
)
def test_bad_configs_and_rules(build, message):
    """What cannot be rotated, impossible rules and sections are refused when they are written, with the rule."""
    with pytest.raises(rw.RopeError, match=message):
        build()


def test_the_bounds_are_allowed() -> None:
    """The least numbers of each kind, and the greatest."""
    most = 2**31 - 1  # tokens
    assert config(head_dim=2, theta=1.5, max_position_embeddings=most).columns_at() == (1.0,)
    assert YaRN(1.0, 1, beta_fast=float(most), beta_slow=float(most)).attention_factor_at(None, None) == 1.0
    assert LongRoPE((1.0,), (1.0,), 2).attention_factor_at(None, 2) == 1.0
    equal = LongRoPE((1.0,), (1.0,), 2, short_mscale=1.5, long_mscale=1.5)
    assert equal.attention_factor_at(None, None) == 1.5
    assert Proportional().inv_freq(Ladder(1e4, 4, (0, 1)), None) == [1.0, 0.01]
    for rule in (ReRoPE(1, 2), SelfExtend(1, 1, 2), DualChunk(1, 2, 2), LaMPE(1, 1, 2)):
        assert rule.regions()
    assert rw.positions.text_positions(torch.arange(2), 1).tolist() == [[0], [1]]


def test_a_later_field_is_printed_only_where_it_is_set() -> None:
    """Digests of models, and so the ledgers of long runs, depend on what a rope prints."""
    plain = rw.RopeConfig(8, interleaved=False, axes=(0, 0, 1, 1))
    assert repr(plain) == (
        "RopeConfig(head_dim=8, interleaved=False, theta=10000.0, rotary_dim=8, scaling=None, "
        "max_position_embeddings=None, axes=(0, 0, 1, 1), axes_restart=False)"
    )
    assert repr(dataclasses.replace(plain, axis_blocks=True)).endswith("axes_restart=False, axis_blocks=True)")
    assert repr(rw.RopeConfig(4, interleaved=True, inv_freq=(1.0, 0.5))).endswith("inv_freq=(1.0, 0.5))")


@pytest.mark.parametrize("axes", [None, (1, 0, 0, 1)])
def test_given_frequencies_are_the_frequencies(axes):
    """`inv_freq` as it stands, on one axis and on several, by its tables at 40 digits; no method or block has them."""
    given = config(inv_freq=GIVEN, axes=axes)
    assert given.columns_at() == GIVEN
    assert rope_from_dict(json.loads(json.dumps(_to_dict(given)))) == given
    ids = torch.tensor([0, 1, -7, 1_000_003])
    ids = ids if axes is None else torch.stack([ids, ids + 5], -1)
    tables = rw.RotaryEmbedding(given).cos_sin(ids, dtype=torch.float64)
    rows = ids.reshape(len(ids), -1).tolist()
    with mpmath.workdps(40):
        for table, turn in zip(tables, (mpmath.cos, mpmath.sin), strict=True):
            places = [[row[axis] for axis in axes or (0,) * 4] for row in rows]
            truth = [[float(turn(mpmath.mpf(at) * f)) for at, f in zip(row, GIVEN, strict=True)] for row in places]
            np.testing.assert_allclose(table.numpy(), truth, atol=2e-10)
    assert not given.can_be_extended
    with pytest.raises(rw.RopeError, match="or frequencies are explicit"):
        METHODS["pi"].rope(given, Reach(16, 64))
    with pytest.raises(rw.RopeError, match="to_hf: transformers has no block for explicit frequencies"):
        given.to_hf()


# --- values of config files

LLAMA = {
    "model_type": "llama", "vocab_size": 300, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 1.1, "truncate": True}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 32,
          "low_freq_factor": 1.0, "high_freq_factor": 4.0}  # fmt: skip
LISTS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LONG = {"type": "longrope", **LISTS, "short_mscale": 1.0, "long_mscale": 1.1}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {**LLAMA, "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    "dynamic": {**LLAMA, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    "yarn": {**LLAMA, "rope_parameters": YARN},
    "llama3": {**LLAMA, "rope_parameters": LLAMA3},
    "longrope": {**LLAMA, "model_type": "phi3", "original_max_position_embeddings": 32, "rope_scaling": LONG},
    "axes": {**LLAMA, "model_type": "qwen2_vl_text", "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
    "layer types": {
        **LLAMA, "model_type": "gemma3_text", "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": YARN},
    },
    "latent": {**LLAMA, "model_type": "deepseek_v32", "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "rope_theta": 1e4},
    "neox": {**LLAMA, "model_type": "gpt_neox", "rotary_pct": 0.5, "rotary_emb_base": 1e4},
    "gptj": {"model_type": "gptj", "n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8, "n_positions": 64},
    "tower": {"model_type": "qwen2_vl", "depth": 2, "embed_dim": 64, "num_heads": 4, "patch_size": 14},
    "lists": {**LLAMA, "model_type": "step3p5", "layer_types": ["full_attention", "sliding_attention"],
              "rope_theta": [1e4, 1e6], "partial_rotary_factors": [0.5, 1.0]},
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None, "2", 2.0, 2.5, -1, 0, 1, True, 1e308, 1e-308, float("inf"), float("nan"), 30_000_000, 2**63, 10**23, 10**400,
    [], {}, [[]], ["a"], [1e308],
)  # fmt: skip


def places(config: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value."""
    for key, value in config.items() if isinstance(config, dict) else enumerate(config):
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


def with_value(config: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    changed: Any = copy.deepcopy(config)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed


@pytest.mark.parametrize("name", CONFIGS)
def test_any_value_is_used_or_refused(name: str) -> None:
    """Odd values anywhere: the frequencies, or RopeError, and no memory for what a config only states."""
    config, refused, read = CONFIGS[name], 0, 0
    assert ModelRopes.from_hf(config).by_type
    for path in places(config):
        for value in ODD:
            changed = with_value(config, path, value)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    for rope in ModelRopes.from_hf(changed).by_type.values():
                        if rope is not None:
                            assert all(map(abs, rope.columns_at(20)))
                            assert rope.attention_factor_at(20) > 0
                    read += 1
                except rw.RopeError:
                    refused += 1
    assert (read > 5, refused > 60) == (True, True)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("plain", {"num_hidden_layers": "2"}, "`num_hidden_layers` must be a whole number from 1 to 1,048,576"),
        ("plain", {"max_position_embeddings": 2**63}, "`max_position_embeddings` must be a whole number"),
        ("plain", {"head_dim": 2**31}, "`head_dim` must be a whole number"),
        ("plain", {"partial_rotary_factor": 1e308}, "`partial_rotary_factor` must be a number above 0, at most 1"),
        ("lists", {"rope_theta": [[], 1e6]}, "`rope_theta` must be a finite number"),
        ("dynamic", {"rope_parameters": {"rope_type": "dynamic", "factor": 1e308}}, "`factor` must be a number from 1"),
        ("yarn", {"rope_parameters": {**YARN, "beta_fast": 1e308}}, "`beta_fast` must not be below"),
        ("plain", {"rope_theta": 1e32}, "`theta` must be a number above 1, at most 1e.31"),
        # transformers keeps a null and fails, or computes another rope; an absent key has the class's default
        ("plain", {"rope_theta": None}, "`rope_theta` is null"),
        ("plain", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}, "`rope_theta` is null"),
        ("plain", {"rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": None}}, "`rope_theta` is null"),
        ("yarn", {"rope_parameters": {**YARN, "partial_rotary_factor": None}}, "`partial_rotary_factor` is null"),
        ("plain", {"model_type": "stablelm", "partial_rotary_factor": None}, "`partial_rotary_factor` is null"),
        ("plain", {"rope_parameters": {"rope_type": None, "rope_theta": 1e4}}, "unknown `rope_type`"),
        ("longrope", {"original_max_position_embeddings": None}, "`original_max_position_embeddings` is null"),
        ("axes", {"rope_scaling": {"type": "mrope", "mrope_section": None}}, "`mrope_section` is null"),
        ("plain", {"model_type": "qwen3", "head_dim": None}, "`head_dim` is null"),
        ("latent", {"qk_rope_head_dim": None}, "`qk_rope_head_dim` is null"),
        ("gptj", {"rotary_dim": None}, "`rotary_dim` is null"),
        ("plain", {"model_type": "deepseek_v3", "rope_interleave": None}, "`rope_interleave` is null"),
    ],
)
def test_numbers_have_a_range(name: str, change: dict[str, Any], message: str) -> None:
    """The key, its value and the range."""
    with pytest.raises(rw.RopeError, match=message):
        dict(ModelRopes.from_hf({**CONFIGS[name], **change}).by_type)


def test_null_where_transformers_has_a_meaning_for_it() -> None:
    """`truncate: null` does not truncate; the others are as if they were absent."""
    without = {key: value for key, value in YARN.items() if key in list(YARN)[:4]}

    def read(block: dict[str, Any]) -> rw.RopeConfig:
        return rw.RopeConfig.from_hf({**LLAMA, "rope_parameters": block})

    assert read({**without, "truncate": None}) == read({**without, "truncate": False}) != read(without)
    for key in list(YARN)[4:-1]:
        assert read({**without, key: None}) == read(without)
    ignored = {"head_dim": None, "partial_rotary_factor": None}
    assert rw.RopeConfig.from_hf({**LLAMA, **ignored, "rope_theta": 1e4}).head_dim == 16


@pytest.mark.parametrize("longest", [None, 4096])
def test_a_length_before_the_scaling_is_not_the_scaled_one(longest):
    """Without a stated length, or with the original one, the rule's own target counts."""
    config = rw.RopeConfig(
        64, interleaved=False, scaling=rw.scaling.YaRN(4.0, original_max_position_embeddings=4096),
        max_position_embeddings=longest,
    )  # fmt: skip
    assert config.scaled_length == 16_384
    assert dataclasses.replace(config, max_position_embeddings=10_000).scaled_length == 10_000
    dynamic = rw.RopeConfig(64, interleaved=False, scaling=rw.scaling.DynamicNTK(3.0), max_position_embeddings=4096)
    assert dynamic.scaled_length == 3 * 4096
    for rule in (Linear(2.0), LongRoPE((1.0,) * 32, (2.0,) * 32, 4096)):  # they state no length, or no factor
        assert dataclasses.replace(dynamic, scaling=rule).scaled_length == 4096
    # LongRoPE's factor is that of its lengths, at least 1; without the longest length there is none
    assert [rule.written_out(length).factor for length in (6144, 2048, None)] == [1.5, 1.0, None]


def test_a_type_of_layers_has_its_rope_and_window() -> None:
    """Gemma 3: sliding layers have theta 10,000 and 512 tokens, the others theta 1,000,000 and all."""
    ropes = ModelRopes.from_hf(fixture("gemma_3_1b"))
    found = {name: ropes.of_type(name) for name in ("full_attention", "sliding_attention")}
    thetas_and_windows = {name: (rope and rope.theta, window) for name, (rope, window) in found.items()}
    assert thetas_and_windows == {"full_attention": (1e6, None), "sliding_attention": (1e4, 512)}
    # a block for each type, also where the config leaves the class's own; layers without rotation need none
    assert [ModelRopes.from_hf(fixture(name)).nested for name in ("gemma_3_1b", "llama_4_scout")] == [True, False]
    unnumbered = {"model_type": "qwen3", "head_dim": 8, "layer_types": [*found], "sliding_window": 64}
    assert ModelRopes.from_hf(unnumbered).sliding_windows == (None, 64)


@pytest.mark.parametrize(
    ("change", "rotating"),
    [
        ({"num_hidden_layers": 8}, [True, True, True, False] * 2),
        ({"num_hidden_layers": 6, "no_rope_layer_interval": 3}, [True, True, False] * 2),
        ({"num_hidden_layers": 2, "no_rope_layers": [0, 1]}, [False, True]),
        ({"num_hidden_layers": 1, "no_rope_layers": [0, 1]}, [False]),
        ({"num_hidden_layers": 4, "no_rope_layers": [], "model_type": "llama4_text"}, [True, True, True, False]),
    ],
)
def test_layers_without_rotation_by_number(change: dict[str, Any], rotating: list[bool]) -> None:
    """SmolLM3 and Llama 4: every fourth layer, every n-th or those of a list that is not empty."""
    ropes = ModelRopes.from_hf({**LLAMA, "model_type": "smollm3", **change}).ropes
    assert [rope is not None for rope in ropes] == rotating


def test_a_window_is_a_number_of_tokens() -> None:
    """Other values are no window, as null is none."""
    for window, expected in ((1, 1), (4096, 4096), (0, None), (-1, None), ("8", None)):
        config = {**LLAMA, "model_type": "mistral", "sliding_window": window}
        assert ModelRopes.from_hf(config).sliding_windows == (expected,) * 2


# --- fingerprints


BASE = rw.RopeConfig(32, interleaved=False, max_position_embeddings=64)


@pytest.mark.parametrize(
    "changes",
    [
        {"theta": 20_000.0}, {"interleaved": True}, {"rotary_dim": 16}, {"head_dim": 64, "rotary_dim": 32},
        {"scaling": Linear(2.0)}, {"scaling": YaRN(2.0, 64)}, {"scaling": YaRN(2.0, 64, attention_factor=1.0)},
        {"scaling": Proportional(0.5)}, {"axes": (0, 1) * 8}, {"axes": (0, 1) * 8, "axes_restart": True},
    ],
)  # fmt: skip
def test_what_changes_a_key_changes_the_digest(changes: dict[str, Any]) -> None:
    """Each of these rotates some key elsewhere; two spellings of one rope do not."""
    other = dataclasses.replace(BASE, **changes)
    assert other.fingerprint() != BASE.fingerprint()
    spelled = dataclasses.replace(other, max_position_embeddings=128)
    assert spelled.fingerprint() == other.fingerprint()
    keys, places = torch.randn(1, 1, 1, other.head_dim, dtype=torch.float64), torch.tensor([5])
    if other.num_axes == 1 and other.head_dim == 32:
        first, second = (rw.RotaryEmbedding(one).rotate(keys, places) for one in (BASE, other))
        assert not torch.equal(first, second)


def test_explicit_frequencies_are_those_of_theta() -> None:
    """Frequencies, not their source, are in the digest; so are the layers and the length that they depend on."""
    numbers = tuple(rw.inverse_frequencies(BASE).inv_freq[0].tolist())
    assert rw.RopeConfig(32, interleaved=False, inv_freq=numbers).fingerprint() == BASE.fingerprint()
    assert BASE.fingerprint([1, 0]) == BASE.fingerprint((0, 1)) != BASE.fingerprint()
    scaled = [dataclasses.replace(BASE, scaling=YaRN(2.0, 64, attention_factor=factor)) for factor in (1.0, 1.1)]
    assert scaled[0].fingerprint() != scaled[1].fingerprint()
    dynamic = dataclasses.replace(BASE, scaling=DynamicNTK())
    assert dynamic.fingerprint(seq_len=64) == BASE.fingerprint() != dynamic.fingerprint(seq_len=128)
    with pytest.raises(RopeError, match="depend on the sequence length"):
        dynamic.fingerprint()
