"""Every name that people know has a row, and every call in the table runs."""

from __future__ import annotations

import pydoc
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "from-tutorials.md"
if not PAGE.exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = re.findall(r"^\| (`.+?) \| `(.+?)` \| (.+?) \|$", TEXT, re.MULTILINE)
KNOWN = [
    "rope_embed", "apply_rope", "apply_rotary_pos_emb", "precompute_freqs_cis", "apply_rotary_pos_emb_complex",
    "compute_rotary_positional_frequencies", "rotary_positional_embeddings", "apply_rope_to_qk", "rope_attention",
    "RoPEMultiHeadAttention", "AttentionWithRoPE", "SelfAttention", "RelativePositionAttention",
    "RoPETransformerLayer", "RoPETransformer", "RoPELanguageModel", "RoPETextClassifier",
    "absolute_positional_encoding", "sinusoidal_encoding", "rope_encoding", "rope_attention_pattern",
    "rope_attention_decay", "visualize_rope_extrapolation",
]  # fmt: skip


@pytest.fixture(scope="module")
def names():
    """What the page's first block defines."""
    found: dict[str, object] = {}
    exec(re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)[1], found)
    return found


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_name_has_a_row(name):
    """As its own word in the first column."""
    assert any(re.search(rf"`{name}\b", known) for known, _, _ in ROWS)


@pytest.mark.parametrize("call", [call for _, call, _ in ROWS])
def test_every_call_runs(call, names):
    """As it stands in the table."""
    assert eval(call, dict(names)) is not None


def test_what_is_mentioned_exists():
    """Dotted names in the last column are there."""
    mentioned = re.findall(r"`((?:rw|ropewalk)\.[\w.]+)", " ".join(note for _, _, note in ROWS))
    assert len(mentioned) >= 3
    assert [name for name in mentioned if pydoc.locate(re.sub("^rw", "ropewalk", name)) is None] == []
