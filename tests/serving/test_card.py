"""The note in a folder that `extend apply` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk.serving import apply
from ropewalk.serving.applying import CARD
from tests.checkpoints.random_models import folder_of
from tests.rope.models import fixture
from tests.serving.material import checkpoint

FACTOR = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "attention_factor": 1.0, "finetuned": True,
          "original_max_position_embeddings": 16}  # fmt: skip


def test_names_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    """A folder's name is text, whatever is in it."""
    out = tmp_path / "a](http:x)\n# <b>hi"
    apply(checkpoint(tmp_path / "source"), out)
    said = (out / CARD).read_text()
    assert "# a\\](http:x) \\# \\<b\\>hi\n" in said
    assert '"max_position_embeddings": 64' in said
    assert "Nothing was measured" in said


@pytest.mark.parametrize(
    ("family", "method", "changes", "said"),
    [
        ("llama", "dynamic", {}, ["the answers are NaN", "factor x factor", "Use --method ntk"]),
        ("stablelm", "yarn", {}, ["SGLang: not applied: its class of this family takes only theta"]),
        ("llama", "as-is", {"rope_parameters": FACTOR}, ["vLLM: the same", "SGLang: `attention_f", "Compare outputs"]),
        ("gemma3_text", "yarn", {}, ["transformers: the same", "vLLM: the same"]),
        ("cohere", "resonance", {}, ["vLLM: not applied: it rotates halves under longrope"]),
        ("stablelm", "as-is", {}, ["ONNX Runtime GenAI: It was not run with this family."]),
    ],
)
def test_programs_are_described_by_the_rule_of_serve_config(
    family: str, method: str, changes: dict[str, Any], said: list[str], tmp_path: Path
) -> None:
    """The card names what vLLM, SGLang and the converter do differently with this model."""
    apply(folder_of(family, tmp_path / "source", **changes), tmp_path / "out", method=method)
    text = (tmp_path / "out" / CARD).read_text()
    assert [one for one in said if one not in text] == []


def test_a_config_that_stays_in_the_spelling_of_transformers_4(tmp_path: Path) -> None:
    """The note has its block all the same, and claims no key that config.json lacks."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(fixture("llama_2_7b")))
    written = apply(tmp_path / "source", tmp_path / "out", method="as-is")
    assert written.config == fixture("llama_2_7b")
    said = (tmp_path / "out" / CARD).read_text()
    assert '"rope_theta": 10000.0' in said
    assert "- transformers: the same frequencies and temperature. (read in 5.23's" in said
