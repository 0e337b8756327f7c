"""Configs and texts from disk."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ropewalk.context.sources import read_source, read_text, ropes_of
from ropewalk.errors import RopeError
from ropewalk.models.checkpoint import save
from ropewalk.rope.config import RopeConfig
from tests.context.models import ROPE, tiny_decoder

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
    assert read_source(path).ropes == read_source(str(tmp_path)).ropes == expected


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


def test_our_own_form_is_read(tmp_path: Path) -> None:
    """A decoder that no family can say: two ropes, one layer without."""
    other = RopeConfig(8, interleaved=False, theta=1e6, max_position_embeddings=16)
    save(tiny_decoder((ROPE, None, other), num_hidden_layers=3), tmp_path / "m")
    assert list(read_source(tmp_path / "m").ropes.values()) == [ROPE, other]
    save(tiny_decoder(None), tmp_path / "nope")
    with pytest.raises(RopeError, match="no rotary embedding in any layer"):
        read_source(tmp_path / "nope")


def test_what_is_not_there_or_damaged_is_refused(tmp_path: Path) -> None:
    """A missing name, half a file, a list."""
    with pytest.raises(RopeError, match="no such file or folder"):
        read_source(tmp_path / "absent")
    path = tmp_path / "config.json"
    for content in ('{"model_type": "ll', "[]"):
        path.write_text(content)
        with pytest.raises(RopeError, match=r"config\.json"):
            read_source(path)


def test_the_packaged_text_is_moby_dick() -> None:
    """The default text ships with the package."""
    name, text = read_text(None)
    assert name == "moby_dick"
    assert "Call me Ishmael." in text
    assert len(text) > 1_000_000


def test_texts_plain_and_gzipped(tmp_path: Path) -> None:
    """Characters are counted as decoded, line ends as they are."""
    content = "né\r\nzwei"
    (tmp_path / "a.txt").write_bytes(content.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content.encode()))
    assert read_text(tmp_path / "a.txt") == ("a.txt", content)
    assert read_text(tmp_path / "b.txt.gz") == ("b.txt.gz", content)


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", gzip.compress(b"cut")[:-9]])
def test_texts_that_cannot_be_read_are_refused(tmp_path: Path, content: bytes | None) -> None:
    """Missing, not UTF-8, a cut gzip."""
    path = tmp_path / "t"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RopeError, match="the text cannot be read"):
        read_text(path)
