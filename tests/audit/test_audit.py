"""The audit's golden values, against an oracle in plain numpy that shares no code with the package."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.audit.audit import Audit, answer, audit, audits_of
from ropewalk.audit.traps import findings_of
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import Layers, ModelRopes
from ropewalk.rope.scaling import DynamicNTK, Linear, Llama3, Proportional, YaRN
from tests.diagnosis.models import ROPE, tiny_decoder
from tests.oracle import ladder
from tests.rope.models import CONFIGS, fixture, fixture_names, transformers_config

LLAMA2 = RopeConfig(128, interleaved=False, max_position_embeddings=4096)
LLAMA3 = RopeConfig(128, interleaved=False, theta=5e5, max_position_embeddings=8192)
QWEN25 = RopeConfig(128, interleaved=False, theta=1e6, max_position_embeddings=32768)
LLAMA31 = dataclasses.replace(LLAMA3, scaling=Llama3(8.0, 1.0, 4.0, 8192), max_position_embeddings=131072)


@pytest.mark.parametrize(("config", "pairs"), [(LLAMA2, 18), (LLAMA3, 29), (QWEN25, 24)])
def test_pairs_that_never_turn_are_the_known_ones(config: RopeConfig, pairs: int) -> None:
    """Llama 2: 18 of 64, Llama 3: 29, Qwen2.5 at 32k: 24."""
    found = audit(config)
    waves = 2 * np.pi / ladder(config.theta, 128)
    assert found.pairs_never_turning == pairs == int((waves > config.max_position_embeddings).sum())
    assert found.inv_freq == pytest.approx((2 * np.pi / waves).tolist(), rel=1e-12)


def test_pairs_within_the_length_of_a_trained_scaling() -> None:
    """Llama 3.1: as its unscaled rope to 8,192 tokens, if it is not known whether it was trained with its scaling."""
    assert audit(LLAMA31).pairs_never_turning == 29
    trained = audit(dataclasses.replace(LLAMA31, trained=Trained(True)))
    waves = 2 * np.pi / np.array(trained.inv_freq)
    assert (trained.trained_length, trained.pairs_never_turning) == (131_072, int((waves > 131_072).sum()))
    assert trained.pairs_never_turning == 25


def test_a_window_bounds_what_a_pair_shows() -> None:
    """Pairs are counted within the window where that is less."""
    found = audit(LLAMA3, layers=Layers(window=512))
    assert found.pairs_never_turning == int((2 * np.pi / ladder(5e5, 128) > 512).sum())
    assert audit(LLAMA3, layers=Layers(window=10_000)).pairs_never_turning == 29
    rows = answer([found])
    assert rows["window"] == "512 tokens"
    assert f"{found.pairs_never_turning} of 64 pairs never complete a turn within its window" in rows["trained_length"]


YARN = dataclasses.replace(LLAMA2, scaling=YaRN(4.0, 4096), max_position_embeddings=16384)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (LLAMA3, "8,192; 29 of 64 pairs never complete a turn within it"),
        (
            dataclasses.replace(YARN, trained=Trained(True, source="somebody")),
            "16,384, with its yarn scaling (4,096 before it); 18 of 64 pairs never complete a turn within it. Source: "
            "somebody",
        ),
        (dataclasses.replace(YARN, trained=Trained(False)), "without the yarn scaling to 16,384 tokens, an option"),
        (
            YARN,
            "4,096 if the yarn scaling is an option for inference, 16,384 if the model was trained with it: `ropewalk "
            "doctor` measures which; 18 of 64 pairs never complete a turn within 4,096 tokens",
        ),
        (dataclasses.replace(LLAMA2, scaling=Linear(4.0)), "unknown whether the model was trained with the linear"),
        (dataclasses.replace(LLAMA2, max_position_embeddings=None), "not stated by the config; pass --trained"),
    ],
)
def test_what_the_model_was_trained_to_in_words(config: RopeConfig, expected: str) -> None:
    """With its scaling, without it, or not known which."""
    assert expected in answer([audit(config)])["trained_length"]


def test_pairs_that_do_not_turn_are_not_counted() -> None:
    """p-RoPE's columns of zero; of the pairs that rotate, all complete a turn."""
    config = RopeConfig(8, interleaved=False, scaling=Proportional(0.5), max_position_embeddings=100)
    found = audit(config)
    assert found.inv_freq[2:] == (0.0, 0.0)
    assert found.pairs_never_turning == 0


def test_length_dependent_frequencies_are_those_of_the_target() -> None:
    """Dynamic NTK at four times its length is NTK by 4."""
    config = RopeConfig(64, interleaved=False, scaling=DynamicNTK(), max_position_embeddings=512)
    found = audit(config, target=2048)
    assert found.inv_freq == pytest.approx(ladder(1e4 * 4 ** (64 / 62), 64).tolist(), rel=1e-12)


def test_lengths_can_be_given() -> None:
    """A config that is silent about its length gets it from the caller; without it nothing is counted."""
    silent = RopeConfig(128, interleaved=False)
    assert audit(silent).pairs_never_turning is None
    assert audit(silent, trained_length=4096).pairs_never_turning == 18
    with pytest.raises(RopeError, match="`trained_length` must be a whole number from 1"):
        audit(silent, trained_length=0)


def test_frequencies_that_turn_back() -> None:
    """nanochat's: as many pairs never turn as under the same angles forwards, and no theta is claimed."""
    sizes = {"hidden_size": 256, "num_attention_heads": 2, "max_position_embeddings": 2048}
    found = audit(RopeConfig.from_hf({"model_type": "nanochat", **sizes}))
    forwards = audit(RopeConfig(128, interleaved=False, max_position_embeddings=2048))
    assert (found.theta, found.rope_parameters) == (None, {})
    assert found.inv_freq == pytest.approx(forwards.inv_freq)
    assert found.pairs_never_turning == forwards.pairs_never_turning
    assert answer([found])["theta"] == "its own frequencies"


# --- published configurations

# Every warning that a published configuration gets, and why its owner would accept it. At most eight.
WARNINGS: dict[str, dict[str, str]] = {
    "internlm2_5_7b_dynamic": {
        "dynamic-cache": "transformers' dynamic NTK does leave cached keys under old frequencies once a text outgrows "
        "32,768 tokens: the numbers that it computes there are wrong, and the cure changes nothing in the checkpoint"
    }
}
# Windows in tokens by layer type.
WINDOWS = {
    "gemma_3_1b": {"full_attention": None, "sliding_attention": 512},
    "gemma_3_27b": {"full_attention": None, "sliding_attention": 1024},
    "gemma_4_e4b": {"full_attention": None, "sliding_attention": 512},
    "laguna_s": {"full_attention": None, "sliding_attention": 512}, "llama_4_scout": {"chunked_attention": 8192},
    "mistral_7b_v0_1": {None: 4096}, "modernbert_base": {"full_attention": None, "sliding_attention": 128},
    "olmo_3_1_32b": {"full_attention": None, "sliding_attention": 4096}, "phi_3_5_mini": {None: 262_144},
    "phi_3_5_vision_su": {None: 262_144}, "phi_4_mini": {None: 262_144}, "starcoder2_7b": {None: 4096},
}  # fmt: skip
TOLD = ("Make ", "Change ", "Set ", "Remove ", "Use factor", "Check ")  # what would change a checkpoint


@cache
def source(name: str) -> Checkpoint:
    """A published configuration."""
    return Checkpoint.open(CONFIGS / f"{name}.json")


@cache
def audits(name: str) -> list[Audit]:
    """The audit of each of its ropes."""
    return audits_of(source(name))


@pytest.mark.parametrize("name", fixture_names())
def test_published_configurations(name: str) -> None:
    """These warnings and windows, and no others; no error, and no owner is told to change a shipped checkpoint.

    The answer has at most twelve rows, each with the name of its number in the record.
    """
    found = findings_of(source(name))
    assert {finding.code for finding in found if finding.severity == "warning"} == set(WARNINGS.get(name, {}))
    assert not [finding for finding in found if finding.severity == "error"]
    assert [one.code for one in found if one.severity == "note" and one.cure.startswith(TOLD)] == []
    ropes = source(name).ropes
    windows = {label: ropes.layers_of(label).window for label in ropes.rotating}
    assert windows == WINDOWS.get(name, dict.fromkeys(ropes.rotating))
    rows, names = answer(audits(name), "8,192"), {field.name for field in dataclasses.fields(Audit)}
    assert len(rows) <= 12
    assert {*rows} <= {*names, "served_length"}
    assert {"theta", "interleaved", "rotary_dim", "scaling", "trained_length", "digest"} <= {*rows}
    assert ("query_scale" in rows) == (name in ("llama_4_scout", "ministral_3_3b"))


def test_the_window_of_a_model_that_is_there() -> None:
    """Read from the model itself: the longest of the layers that rotate; none in one without a config of windows."""
    model = tiny_decoder((ROPE, None, ROPE), num_hidden_layers=3, sliding_window=(8, None, 4))
    assert [each.config.positions.layers_of(None).window for each in (model, tiny_decoder())] == [8, None]
    of_types = ModelRopes.from_hf({"model_type": "mistral", "sliding_window": 16, **SIZES}).with_rope(ROPE)
    assert of_types.layers_of(None).window == 16


RATIOS = [0, 0, 4, 128, 4, 0]
SIZES = {"hidden_size": 64, "num_attention_heads": 1, "max_position_embeddings": 4096}


@pytest.mark.parametrize(
    ("fields", "rotates"),
    [
        ({"model_type": "smollm3", "num_hidden_layers": 9}, "no_rope_layers"),
        ({"model_type": "smollm3", "num_hidden_layers": 4, "no_rope_layers": [0, 0, 0, 1]}, "no_rope_layers"),
        ({"model_type": "llama4_text", "num_hidden_layers": 9}, "no_rope_layers"),
        ({"model_type": "mistral_large4_text", "num_hidden_layers": 9}, "no_rope_layers"),
        ({"model_type": "qwen3_5_text", "num_hidden_layers": 8}, "full_attention"),
        ({"model_type": "cohere2", "num_hidden_layers": 8}, "sliding_attention"),
        ({"model_type": "deepseek_v4", "num_hidden_layers": 5, "compress_ratios": RATIOS}, "sliding_attention"),
    ],
)
def test_the_layers_of_a_rope_are_those_of_its_class(fields: dict[str, Any], rotates: str, tmp_path: Path) -> None:
    """The numbers of the layers that rotate (DeepSeek-V4: with the main rope), from the config that the class makes."""
    config = transformers_config(fields)
    flags = getattr(config, rotates, None) or [label == rotates for label in config.layer_types]
    stated = {"layer_types": config.layer_types} if "_attention" in rotates and "compress_ratios" not in fields else {}
    (tmp_path / "config.json").write_text(json.dumps({**SIZES, **fields, **stated}))
    found = audits_of(Checkpoint.open(tmp_path))
    first = next(each for each in found if each.layer_type in ("main", None, "chunked_attention", "sliding_attention"))
    assert first.layers == tuple(number for number, flag in enumerate(flags) if flag)
    assert first.num_layers == fields["num_hidden_layers"]
    rows = answer([first])
    assert rows["interleaved"] == (
        "True: pairs (2i, 2i + 1)" if first.interleaved else f"False: pairs (i, i + {first.pairs})"
    )
    if fields["num_hidden_layers"] == 9:
        assert rows["layers"] == "7 of 9 rotate: 0-2, 4-6, 8; without rotation: 3, 7"


@pytest.mark.parametrize("key", ["no_rope_layer_interval", "no_rope_layers", "compress_ratios", "layers_block_type"])
@pytest.mark.parametrize("value", ["x", [None], 5, {"a": 1}, [[1]]])
def test_a_damaged_list_of_layers_is_not_used(key: str, value: object) -> None:
    """Or refused; never an error of Python."""
    with contextlib.suppress(RopeError):
        ropes = ModelRopes.from_hf({"model_type": "llama4_text", "num_hidden_layers": 8, **SIZES, key: value})
        assert ropes.ropes


def test_a_proportional_rope_counts_its_rotating_pairs() -> None:
    """Gemma 4's class rotates 64 of the 256 pairs of its full layers; all of them turn within its length."""
    (full, _) = audits("gemma_4_e4b")
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextRotaryEmbedding as Own

    own = Own(transformers_config(fixture("gemma_4_e4b"))).full_attention_inv_freq
    assert (int((own > 0).sum()), len(own)) == (64, 256)
    rows = answer([full])
    assert rows["rotary_dim"] == "128 of 512 features of a head"
    assert (full.pairs_never_turning, "0 of 64 pairs never" in rows["trained_length"]) == (0, True)


def test_all_ropes_of_a_model_have_its_lengths() -> None:
    """Laguna's sliding layers are not asked about another length than its full ones."""
    assert {(found.trained_length, found.target) for found in audits("laguna_s")} == {(8192, 32_768)}


# --- configs from disk


def test_a_window_of_some_layers_is_shown() -> None:
    """One rope in layers with and without a window: their numbers, or that the config does not state them."""
    gemma = {"model_type": "gemma2", "hidden_size": 2304, "num_attention_heads": 8, "num_hidden_layers": 4}
    typed = {**gemma, "layer_types": ["sliding_attention", "full_attention"] * 2}
    shown = [answer([audit(ropes.rotating[None], layers=ropes.layers_of(None))])["window"]
             for ropes in map(ModelRopes.from_hf, (gemma, typed))]  # fmt: skip
    assert shown == ["4,096 tokens in some layers, none in others", "4,096 tokens in layers 0, 2, none in others"]
