"""Configs and texts from disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk.audit.sources import audits_of, findings_of
from ropewalk.checkpoints.checkpoint import Checkpoint, ropes_of
from ropewalk.checkpoints.load import save
from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from tests.diagnosis.models import ROPE, tiny_decoder
from tests.rope.models import CONFIGS

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


def test_a_config_file_and_its_folder_are_the_same(tmp_path: Path) -> None:
    """config.json by its path, or by its folder's."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    expected = {None: RopeConfig(128, interleaved=False, max_position_embeddings=4096)}
    assert Checkpoint.open(path).ropes == Checkpoint.open(str(tmp_path)).ropes == expected


def test_several_thetas_are_several_ropes() -> None:
    """Gemma 3: one rope for sliding layers, another for full ones, in either spelling."""
    shape = {
        "model_type": "gemma3_text",
        "head_dim": 256,
        "max_position_embeddings": 32768,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    blocks = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    }
    new = ropes_of({**shape, "rope_parameters": blocks})
    assert {key: rope.theta for key, rope in new.items()} == {"sliding_attention": 1e4, "full_attention": 1e6}
    old = ropes_of(
        {
            **shape,
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        }
    )
    assert old == new


@pytest.mark.parametrize("name", ["gemma_3_27b", "olmo_3_1_32b"])
def test_released_configs_of_several_ropes(name: str) -> None:
    """Nobody is asked for a layer type: both ropes are there, with their audits and findings."""
    source = Checkpoint.open(CONFIGS / f"{name}.json")
    assert set(source.ropes) == {"full_attention", "sliding_attention"}
    assert [audit.layer_type for audit in audits_of(source)] == ["full_attention", "sliding_attention"]
    assert "float32-angles" in {finding.code for finding in findings_of(source, 1_000_000)}


def test_layers_without_rotation_have_no_rope() -> None:
    """Cohere 2: the sliding layers' rope alone."""
    cohere = {"model_type": "cohere2", "hidden_size": 512, "num_attention_heads": 4}
    assert ropes_of(cohere) == {"sliding_attention": RopeConfig(128, interleaved=True)}


def test_our_own_form_is_read(tmp_path: Path) -> None:
    """A decoder that no family can say: two ropes, one layer without."""
    other = RopeConfig(8, interleaved=False, theta=1e6, max_position_embeddings=16)
    save(tiny_decoder((ROPE, None, other), num_hidden_layers=3), tmp_path / "m")
    assert list(Checkpoint.open(tmp_path / "m").ropes.values()) == [ROPE, other]
    save(tiny_decoder(None), tmp_path / "nope")
    with pytest.raises(RopeError, match="no rotary embedding in any layer"):
        Checkpoint.open(tmp_path / "nope")


def test_what_is_not_there_or_damaged_is_refused(tmp_path: Path) -> None:
    """A missing name, half a file, a list."""
    with pytest.raises(RopeError, match="no such file or folder"):
        Checkpoint.open(tmp_path / "absent")
    path = tmp_path / "config.json"
    for content in ('{"model_type": "ll', "[]"):
        path.write_text(content)
        with pytest.raises(RopeError, match=r"config\.json"):
            Checkpoint.open(path)
