"""`ropewalk inspect` on configs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.cli.doctor_runs import run_command
from tests.rope.models import fixture

LLAMA31 = fixture("llama_3_1_8b")


inspect = partial(run_command, "inspect")


def test_llama_3_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The known numbers, the known trap, and all of it as JSON."""
    path, out = tmp_path / "config.json", tmp_path / "out.json"
    path.write_text(json.dumps(LLAMA31))
    assert inspect(path, "--target", 131072, "--json", out) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "interleaved False: pairs (i, i + 64)" in printed
    assert "trained length 131,072, with its llama3 scaling (8,192 before it); 25 of 64 pairs never" in printed
    assert "served length 131,072 (vllm, sglang)" in printed
    assert "note factor-vs-lengths" in printed
    assert "warning" not in printed
    found = json.loads(out.read_text())
    assert found["trained_length"] == 131072
    assert found["target"] == 131072
    assert (found["audit"]["pairs"], found["audit"]["pairs_never_turning"]) == (64, 25)
    assert "factor-vs-lengths" in [finding["code"] for finding in found["lint"]]


@pytest.mark.parametrize(("name", "thetas"), [("gemma_3_27b", [1e6, 1e4]), ("olmo_3_1_32b", [5e5, 5e5])])
def test_every_layer_type_is_shown(
    name: str, thetas: list[float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Released configs in the old spelling, whose layer types are not keys of a block."""
    out = tmp_path / "out.json"
    assert inspect(Path(__file__).parents[1] / "fixtures" / "configs" / f"{name}.json", "--json", out) == 0
    printed = capsys.readouterr().out
    assert "(sliding_attention)" in printed
    assert "(full_attention)" in printed
    found = json.loads(out.read_text())["audits"]
    assert json.loads(out.read_text())["audit"] == found[0]
    assert [(one["layer_type"], one["theta"]) for one in found] == [
        ("full_attention", thetas[0]),
        ("sliding_attention", thetas[1]),
    ]
    assert found[0]["rope_parameters"]["rope_type"] != "default" == found[1]["rope_parameters"]["rope_type"]


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("deepseek_v32", "rotates the first 64 of 128 features, half-split (its attention: interleaved)"),
        ("glm_moe_dsa", "rotates the first 64 of 128 features, interleaved (its attention: interleaved)"),
        ("mistral_large4", "in the weights only; these numbers are without factors"),
    ],
)
def test_learned_factors_and_indexers_are_named(
    family: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a config says of the second rope, and does not say of the first."""
    text = {"hidden_size": 512, "num_attention_heads": 8, "qk_rope_head_dim": 64, "max_position_embeddings": 4096}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, **text}))
    assert inspect(tmp_path) == 0
    assert words in " ".join(capsys.readouterr().out.split())


def test_learned_factors_are_read_from_the_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the weights beside it, the frequencies are the learned ones."""
    save_file = pytest.importorskip("safetensors.numpy").save_file
    text = {"qk_rope_head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral_large4", "text_config": text}))
    save_file({"lerope.alpha": np.log(np.array([2.0, 1.0, 1.0, 0.5]))}, tmp_path / "consolidated.safetensors")
    out = tmp_path / "out.json"
    assert inspect(tmp_path, "--json", out) == 0
    frequencies = json.loads(out.read_text())["audit"]["inv_freq"]
    np.testing.assert_allclose(frequencies, [2.0, 0.1, 0.01, 0.0005], rtol=1e-12)
    assert "learned-factors" not in capsys.readouterr().out


def test_two_configs_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same: status 0; a lost rule: status 1, with its distance; all of it as JSON."""
    path, other, out = tmp_path / "config.json", tmp_path / "other.json", tmp_path / "out.json"
    path.write_text(json.dumps(LLAMA31))
    other.write_text(json.dumps({**LLAMA31, "rope_scaling": None}))
    assert inspect(path, "--against", path, "--json", out) == 0
    assert "Same: the two rotate alike in every layer." in capsys.readouterr().out
    assert json.loads(out.read_text())["same"] is True
    assert inspect(path, "--against", other, "--json", out) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "A 64 pairs of 128 features, theta 500,000, llama3: factor 8," in printed
    assert "error frequencies: from a distance of 1,767 tokens: pair 32 differs by a quarter turn" in printed
    found = json.loads(out.read_text())
    assert found["same"] is False
    assert [(one["code"], one["tokens"]) for one in found["differences"]] == [("frequencies", 1767)]


def test_models_that_do_not_rotate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison answers; what has no rope is refused without one, with the keys that have no effect."""
    config, other = tmp_path / "config.json", tmp_path / "other.json"
    config.write_text(json.dumps(LLAMA31))
    other.write_text(json.dumps({"model_type": "nemotron_h", "hidden_size": 64, "rope_theta": 10_000}))
    assert inspect(config, "--against", other) == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        "B no layer rotates error layers: from a distance of 1 token: they rotate only in A: no layer of B" in printed
    )
    assert inspect(other, "--against", other) == 0
    capsys.readouterr()
    assert inspect(other) == 2
    assert "rope_theta, unused  10000" in capsys.readouterr().err
