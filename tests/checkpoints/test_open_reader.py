"""Any checkpoint as a reader: a folder of another family, one in the hub's cache; and what is refused."""

from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.opening import open_reader, reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.methods.ropes import Reach
from tests.checkpoints.random_models import folder_of
from tests.checkpoints.test_transformers import CLOSE, ids_of, losses_of


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Gemma 3 with a tokenizer of bytes."""
    return folder_of("gemma3_text", tmp_path_factory.mktemp("checkpoints") / "gemma")


@pytest.fixture
def hub(gemma: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub client's cache with that model as someone/gemma, one revision, called main and v1."""
    place = tmp_path / "hub" / "models--someone--gemma"
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(gemma, place / "snapshots" / commit)
    (place / "refs").mkdir()
    for name in ("main", "v1"):
        (place / "refs" / name).write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return place


def test_a_folder_of_another_family_goes_through_transformers(gemma: Path) -> None:
    """The losses of transformers' own forward, its tokenizer, its ends; so does the built-in model."""
    reader, ids = open_reader(gemma), ids_of(40)
    assert isinstance(reader, Reader)
    assert reader.library.endswith("Gemma3ForCausalLM")
    assert (reader.name, reader.dtype) == ("gemma", torch.float32)
    wanted = losses_of(AutoModelForCausalLM.from_pretrained(gemma), ids)
    assert abs(reader.window_losses(ids, chunk=9) - wanted).max() < CLOSE
    assert reader.tokenizer is not None
    assert reader.tokenizer.eos_ids == (256,)
    assert open_reader(gemma, dtype=torch.bfloat16).dtype == torch.bfloat16
    tiny = open_reader("tiny")
    assert tiny.library.endswith("LlamaForCausalLM")


@pytest.mark.parametrize("name", ["someone/gemma", "someone/gemma@v1"])
def test_a_model_of_the_hub_is_read_from_its_cache(name: str, hub: Path) -> None:
    """By its name and a revision; reports call it by its name, not by the commit's folder."""
    reader = open_reader(name)
    assert reader.name == "gemma"
    assert isinstance(reader, Reader)
    assert Checkpoint.open(name).name == "gemma"


def test_what_the_hub_does_not_have_is_said(hub: Path) -> None:
    """Another revision or model while offline; a snapshot without safetensors; a folder that stands in its way."""
    for name in ("someone/gemma@v2", "someone/other"):
        with pytest.raises(RopeError, match="the model is not in the cache"):
            open_reader(name)
    [weights] = hub.glob("snapshots/*/model.safetensors")
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(RopeError, match="files are missing") as refused:
        open_reader("someone/gemma")
    assert "*.safetensors" in str(refused.value)
    assert Checkpoint.open("someone/gemma").name == "gemma"  # the config alone is enough
    Path("someone").mkdir()
    with pytest.raises(RopeError, match="no such file or folder"):
        open_reader("someone/gemma")


def test_weights_are_whole_or_refused(gemma: Path, tmp_path: Path) -> None:
    """A missing tensor, one of another shape, pickles alone, no weights: nothing is filled with random numbers."""
    folder = tmp_path / "broken"
    shutil.copytree(gemma, folder)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({key: value for key, value in weights.items() if key != name}, folder / "model.safetensors")
    with pytest.raises(RopeError, match=r"tensors .* are missing") as refused:
        open_reader(folder)
    assert name in str(refused.value)
    save_file({**weights, name: weights[name][:3].contiguous()}, folder / "model.safetensors")
    with pytest.raises(RopeError, match="load: "):
        open_reader(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(RopeError, match="only pickles"):
        open_reader(folder)
    (folder / "pytorch_model.bin").unlink()
    with pytest.raises(RopeError, match="no safetensors weights"):
        open_reader(folder)


def test_code_of_a_checkpoint_is_never_run(gemma: Path, tmp_path: Path) -> None:
    """An architecture that only its own code builds is refused; code beside a known one is left alone."""
    folder = tmp_path / "own"
    shutil.copytree(gemma, folder)
    config = json.loads((folder / "config.json").read_text())
    own = {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    (folder / "own.py").write_text("raise SystemExit('it ran')")
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    assert isinstance(open_reader(folder), Reader)
    (folder / "config.json").write_text(json.dumps({**config, **own, "model_type": "unheard_of"}))
    with pytest.raises(RopeError, match="never runs the code"):
        open_reader(folder)


def test_a_model_is_spread_over_all_devices(tmp_path: Path) -> None:
    """The losses are the same; a file is not spread."""
    llama, ids = folder_of("llama", tmp_path / "llama"), ids_of(50)
    ours, spread = (open_reader(llama, device=where).window_losses(ids, chunk=16) for where in ("cpu", "auto"))
    assert abs(ours - spread).max() < CLOSE
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(RopeError, match="need a Hugging Face folder"):
        open_reader(gguf, device="auto")


def test_layers_with_the_hooks_of_several_devices(tmp_path: Path) -> None:
    """accelerate's hooks, which carry a layer's inputs to its device, stay in place under every method."""
    hooks = pytest.importorskip("accelerate.hooks")
    llama, ids, reach = folder_of("llama", tmp_path / "llama"), ids_of(50), Reach(trained=16, target=50)
    model = AutoModelForCausalLM.from_pretrained(llama)
    carried = []

    class Counting(hooks.AlignDevicesHook):  # type: ignore[misc, name-defined]
        def pre_forward(self, module, *args, **kwargs):  # type: ignore[no-untyped-def]
            carried.append(module)
            return super().pre_forward(module, *args, **kwargs)

    for module in list(model.model.layers.modules()):
        hooks.add_hook_to_module(module, Counting(execution_device="cpu", io_same_device=True))
    for name in ("plain", "yarn", "rerope"):
        losses = []
        for reader in (reader_of(AutoModelForCausalLM.from_pretrained(llama)), reader_of(model)):
            carried.clear()
            variant = reader.under(METHODS[name].positions(reader.positions, reach))
            losses.append(variant.window_losses(ids, chunk=16))
        assert carried
        assert abs(losses[0] - losses[1]).max() == 0


# --- what is no checkpoint


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
    """By its suffix, or by its first bytes, of torch's zip files and of pickle; it is never opened as a pickle.

    Old converters wrote GGUF into .bin files, which are read.
    """
    torch.save({"weight": torch.zeros(2)}, tmp_path / name)
    way = "Pickles are not supported.*save_pretrained.*weights_only=True"
    assert re.search(way, message_of(tmp_path / name), re.DOTALL)
    for protocol in (2, 3, 4, 5):
        (tmp_path / "weights").write_bytes(pickle.dumps({}, protocol))
        assert "Pickles are not supported" in message_of(tmp_path / "weights")
    (tmp_path / name).write_bytes(b"GGUF")
    assert find(tmp_path / name) == tmp_path / name


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
