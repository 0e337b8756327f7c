"""The model card of an extension."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.serving.applying import card

BLOCK = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}


def test_names_are_shown_and_not_obeyed() -> None:
    """A model's name is text, whatever is in it."""
    said = card("a](http://x)\n# <b>hi", "yarn", {"rope_parameters": BLOCK, "max_position_embeddings": 32})
    assert "# a\\](http://x) \\# \\<b\\>hi\n" in said
    assert '"max_position_embeddings": 32' in said
    assert "Nothing was measured" in said


@pytest.mark.parametrize(
    ("model_type", "block", "said"),
    [
        ("llama", {"rope_type": "dynamic"}, ["the answers are NaN", "factor x factor", "Use --method ntk"]),
        ("gemma2", BLOCK, ["SGLang: not applied: its class of this family takes only theta"]),
        ("llama", {**BLOCK, "attention_factor": 1.0}, ["vLLM: the same", "SGLang: `attention_f", "Compare outputs"]),
        ("gemma3_text", {"full_attention": BLOCK, "sliding_attention": {"rope_type": "default"}},
         ["vLLM: the same", "version 4 does not"]),
    ],
)  # fmt: skip
def test_programs_are_described_by_the_rule_of_serve_config(
    model_type: str, block: dict[str, Any], said: list[str]
) -> None:
    """The card names what vLLM, SGLang and the converter do differently."""
    text = card("tiny", "yarn", {"model_type": model_type, "rope_parameters": block, "max_position_embeddings": 32})
    assert [one for one in said if one not in text] == []
