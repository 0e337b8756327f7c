"""The model card of an extension."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.serving.card import card

BLOCK = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}


def written(config: dict[str, Any]) -> str:
    """A card."""
    return card("tiny", "yarn", config)


def test_names_are_shown_and_not_obeyed() -> None:
    """A model's name is text, whatever is in it."""
    said = card("a](http://x)\n# <b>hi", "yarn", {"rope_parameters": BLOCK, "max_position_embeddings": 32})
    assert "# a\\](http://x) \\# \\<b\\>hi, extended" in said
    assert '"max_position_embeddings": 32' in said
    assert "Nothing was measured" in said


@pytest.mark.parametrize(
    ("rope_type", "said"),
    [
        ("dynamic", "Use --method ntk"),
        ("longrope", "`short_mscale` and `long_mscale`"),
        ("llama3", "top of config.json"),
        ("proportional", "transformers 5 applies"),
    ],
)
def test_readers_are_told_apart(rope_type: str, said: str) -> None:
    """The card names what vLLM or the converter does differently, and only for rules that were checked."""
    block = {"rope_type": rope_type, "rope_theta": 1e4}
    text = written({"rope_parameters": block, "max_position_embeddings": 32})
    assert said in text
    assert ("vLLM" in text) == (rope_type != "proportional")


def test_a_yarn_with_keys_of_its_own_is_not_called_the_same() -> None:
    """The converter treats both keys differently, older servers of vLLM the first."""
    for keys, same in (({}, 2), ({"attention_factor": 1.0}, 0), ({"truncate": False}, 1)):
        said = written({"rope_parameters": BLOCK | keys, "max_position_embeddings": 32})
        assert said.count("the same frequencies and temperature.") == same
        assert ("Compare outputs" in said) == (same < 2)
