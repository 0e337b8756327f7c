"""What is said of a model that is not there, and of a file of weights that is not read as it is."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import torch

from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError

READERS = [load, Checkpoint.open]


def message_of(source: str | Path) -> str:
    """The error that a source gives."""
    with pytest.raises(RopeError, match="load: ") as refused:
        find(source)
    return str(refused.value)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a checkpoint's folder and a file in it."""
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "llama.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("lama.gguf", "no such file or folder.*llama\\.gguf"),
        ("./smollm-135m", "no such file or folder.*smollm2-135m"),
        ("smolm2-135m", "no such file or folder.*smollm2-135m"),
        ("tinny", "no such file or folder.*tiny"),
        ("HERE/llama.ggu", "llama\\.gguf"),
        ("modles/llama/model.gguf", "no such file.*HERE"),
        ("HERE/smollm2-135m/a/b/config.json", "HERE/smollm2-135m"),
        ("models/config.json", "no such file"),  # OWNER/NAME with the suffix of a file
        ("models/model.safetensors", "no such file"),
        ("smollm2-135m/weights", "no such file"),  # in a folder that exists
        ("meta-llama/Llama-3.2-1B", "OFFLINE is set, and the model is not in the cache.*hf download meta-llama/"),
    ],
)
def test_what_is_not_there_is_told_its_neighbours(source: str, words: str, here: Path) -> None:
    """The nearest file, folder or built-in model, where a path breaks off, or how to fetch a name of the hub."""
    message = message_of(source.replace("HERE", str(here)))
    assert re.search(words.replace("HERE", re.escape(str(here))), message, re.DOTALL)
    assert ("hf download" in message) == source.startswith("meta-llama")


@pytest.mark.parametrize("name", ["model.bin", "model.pt", "model.pth", "model.ckpt", "weights"])
def test_a_file_of_pickles_is_refused_with_the_way_to_convert_it(name: str, tmp_path: Path) -> None:
    """By its suffix, or by its first bytes, of torch's zip files and of pickle; it is never opened as a pickle."""
    torch.save({"weight": torch.zeros(2)}, tmp_path / name)
    way = "Pickles are not supported.*save_pretrained.*weights_only=True"
    assert re.search(way, message_of(tmp_path / name), re.DOTALL)
    for protocol in (2, 3, 4, 5):
        (tmp_path / "weights").write_bytes(pickle.dumps({}, protocol))
        assert "Pickles are not supported" in message_of(tmp_path / "weights")


def test_a_gguf_file_of_another_suffix_is_read(tmp_path: Path) -> None:
    """Old converters wrote GGUF into .bin files."""
    (tmp_path / "model.bin").write_bytes(b"GGUF")
    assert find(tmp_path / "model.bin") == tmp_path / "model.bin"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_a_safetensors_file_is_told_to_be_its_folder(reader, name: str, tmp_path: Path) -> None:
    """Weights without a config are no model."""
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(RopeError, match="Pass the folder") as refused:
        reader(tmp_path / name)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("content", [b"Call me Ishmael.", b"\x89PNG\x00\x80\xff", b""])
def test_a_file_that_is_no_checkpoint_is_shown(content: bytes, tmp_path: Path) -> None:
    """A text, a binary file, an empty one."""
    (tmp_path / "file.txt").write_bytes(content)
    words = re.escape(repr(content)) + ".*a text with --text"
    assert re.search(f"not a checkpoint.*{words}", message_of(tmp_path / "file.txt"), re.DOTALL)


def test_an_adapters_folder_names_its_base_model(tmp_path: Path) -> None:
    """And how to merge it; with a config.json it is a checkpoint."""
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "owner/base"}')
    with pytest.raises(RopeError, match=r"(?s)peft adapter.*owner/base.*merge_and_unload"):
        find(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert find(tmp_path) == tmp_path
