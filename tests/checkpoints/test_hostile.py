"""Damaged and hostile checkpoints: every file of a folder, and the config of a live model, load or raise RopeError."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import ropewalk as rw
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.opening import open_reader, reader_of
from ropewalk.errors import RopeError
from tests.checkpoints.random_models import folder_of, random_model

SEED = int(os.environ.get("ROPEWALK_SEED", random.randrange(2**32)))
VALUES: list[Any] = [
    None, True, False, 0, -1, -0.0, 1.5, 7, "2", "", "a/b", [], {}, [1], ["a"], {"a": 1}, [[]], float("inf"),
    float("nan"), 10**30, -(10**30),
]  # fmt: skip


def damaged(content: Any, rng: random.Random) -> Any:
    """JSON with one value replaced, removed or moved, at a random depth."""
    content = copy.deepcopy(content)
    holder = content
    while True:
        key: Any = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        inner = holder[key]
        if not (isinstance(inner, dict | list) and inner and rng.random() < 0.8):
            break
        holder = inner
    if rng.random() < 0.2:
        del holder[key]
    else:
        holder[key] = rng.choice(VALUES)
    return content if rng.random() < 0.95 else rng.choice(VALUES)


def damaged_file(path: Path, rng: random.Random) -> None:
    """Write damaged JSON, or bytes that are cut or changed."""
    if rng.random() < 0.7:
        path.write_text(json.dumps(damaged(json.loads(path.read_bytes()), rng)))
    else:
        damaged_bytes(path, rng)


def damaged_bytes(path: Path, rng: random.Random) -> None:
    """Cut a file, or change a few of its first bytes."""
    whole = bytearray(path.read_bytes())
    if rng.random() < 0.5:
        whole = whole[: rng.choice((0, 7, 8, 9, rng.randrange(len(whole))))]
    else:
        for _ in range(3):
            whole[rng.randrange(min(len(whole), 200))] = rng.randrange(256)
    path.write_bytes(bytes(whole))


def damaged_header(path: Path, rng: random.Random) -> None:
    """Change the JSON header of a safetensors file, and its length with it."""
    whole = path.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.dumps(damaged(json.loads(whole[8 : 8 + size]), rng)).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + whole[8 + size :])


WAYS: dict[str, tuple[str, Callable[[Path, random.Random], None]]] = {
    "header": ("model-00001-of-00002.safetensors", damaged_header),
    "weights": ("model-00002-of-00002.safetensors", damaged_bytes),
    "index": ("model.safetensors.index.json", damaged_file),
    "config": ("config.json", damaged_file),
    "generation": ("generation_config.json", damaged_file),
    "tokenizer": ("tokenizer.json", damaged_file),
    "tokenizer config": ("tokenizer_config.json", damaged_file),
}


def in_shards(folder: Path) -> Path:
    """Split a folder's weights into two files with an index."""
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    parts = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for part, of_part in parts.items():
        save_file({name: weights[name].clone() for name in of_part}, folder / part, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {name: part for part, of_part in parts.items() for name in of_part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def encoded(folder: Path) -> str:
    """A text encoded and decoded by the tokenizer of a folder."""
    tokenizer = open_reader(folder).tokenizer
    assert tokenizer is not None
    return tokenizer.decode(tokenizer.encode_prompt("A whale, 1851"))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("way", WAYS)
def test_damaged_folders(way: str, family: str, tmp_path: Path) -> None:
    """15 random cases of each file; ROPEWALK_SEED repeats those of the printed seed."""
    print(f"ROPEWALK_SEED={SEED}")
    name, damage = WAYS[way]
    folder = in_shards(folder_of(family, tmp_path / "model"))
    path, whole = folder / name, (folder / name).read_bytes()
    for case in range(15):
        path.write_bytes(whole)
        damage(path, random.Random(f"{SEED} {way} {family} {case}"))
        for call in (encoded, load, Checkpoint.open):
            with suppress(RopeError):
                call(folder)


NAMED: list[tuple[str, str, bytes, str]] = [  # file, its content, and the words of the message
    ("empty", "model-00001-of-00002.safetensors", b"", r"truncated or damaged.*model-00001-of-00002"),
    ("7 bytes", "model-00002-of-00002.safetensors", b"0123456", r"truncated or damaged.*model-00002-of-00002"),
    ("a list", "model.safetensors.index.json", b"[]", r"contains list.*|index\.json"),
    ("no map", "model.safetensors.index.json", b'{"weight_map": [1]}', r"no `weight_map`.*index\.json"),
    ("no shards", "model.safetensors.index.json", b'{"weight_map": {}}', r"no `weight_map`.*index\.json"),
    ("outside", "model.safetensors.index.json", b'{"weight_map": {"a": "../model/x.safetensors"}}', r"missing.*index"),
    ("absolute", "model.safetensors.index.json", b'{"weight_map": {"a": "/c.safetensors"}}', r"missing.*index\.json"),
    ("tokenizer", "tokenizer.json", b"{}", r"tokenizer\.json"),
]


@pytest.mark.parametrize(("file", "content", "words"), [row[1:] for row in NAMED], ids=[row[0] for row in NAMED])
def test_what_is_damaged_is_named(file: str, content: bytes, words: str, tmp_path: Path) -> None:
    """By every way of opening a folder, before a library fails on it."""
    folder = in_shards(folder_of("llama", tmp_path / "model"))
    (folder / file).write_bytes(content)
    for call in (load, open_reader):
        with pytest.raises(RopeError, match=f"(?s){words}"):
            call(folder)


def test_more_layers_than_tensors(tmp_path: Path) -> None:
    """A damaged number of layers is refused before they are built."""
    folder = folder_of("gemma2", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2**12, "layer_types": None}))
    with pytest.raises(RopeError, match=r"(?s)missing from the checkpoint.*num_hidden_layers"):
        open_reader(folder)


KEYS = {
    "mistral": ("sliding_window", "head_dim", "text_config", "return_dict", "rope_parameters", "layer_types", "dtype",
                "num_hidden_layers", "vocab_size", "no_rope_layers", "hidden_size", "max_position_embeddings"),
    "smollm3": ("no_rope_layers", "layer_types", "rope_parameters", "sliding_window"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("family", "key"), [(family, key) for family, keys in KEYS.items() for key in keys])
def test_hostile_configs_of_live_models(family: str, key: str) -> None:
    """Every value in every key: measured and attached, or refused."""
    model = random_model(family)
    for value in VALUES:
        before = dict(vars(model.config))
        vars(model.config)[key] = copy.deepcopy(value)  # past the checks of transformers' own setter
        for call in (
            lambda: reader_of(model).window_losses(torch.arange(20)),
            lambda: rw.attach(model, "yarn", target=64).detach(),
            lambda: rw.RopeConfig.from_hf(model.config),
        ):
            with suppress(RopeError):
                call()
        vars(model.config).clear()
        vars(model.config).update(before)


@pytest.mark.parametrize("broken", ["zeros", "nan"])
def test_weights_without_content(broken: str) -> None:
    """All logits are equal, or not finite: nothing can be measured."""
    model = random_model("llama")
    for weight in model.parameters():
        weight.data.fill_(0.0 if broken == "zeros" else float("nan"))
    with pytest.raises(RopeError, match="empty or damaged"):
        reader_of(model)
