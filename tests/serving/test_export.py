"""Folders with a changed config: every other file stays, transformers computes the method; and what is refused."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from ropewalk import load
from ropewalk.checkpoints.opening import open_reader, quietly
from ropewalk.checkpoints.sources import find
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS, Reach
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.serving import apply
from ropewalk.serving.plan import text_of
from ropewalk.serving.serve import CARD
from tests.checkpoints.random_models import folder_of
from tests.checkpoints.test_transformers import ids_of, losses_of
from tests.oracle import yarn
from tests.rope.models import fixture
from tests.serving.material import (
    EXPORTABLE,
    INEXPRESSIBLE,
    LOW_THETA,
    QWEN,
    TARGET,
    TRAINED,
    checkpoint,
    extended,
    furthest,
    under,
)


def exported(source: str | Path, out: Path, method: str, **options: Any) -> Any:
    """The config.json of a written folder; lengths and `overwrite` as for `apply`."""
    target = options.pop("target", TARGET)
    target = target if METHODS[method].extends else None
    return apply(source, out, method=method, target=target, **options)


@pytest.mark.parametrize("method", EXPORTABLE)
def test_transformers_computes_the_same(method: str, tmp_path: Path) -> None:
    """A random Llama: logits within 1e-3, shorter than the trained length, at it and up to the target."""
    source = checkpoint(tmp_path / "source", **LOW_THETA.get(method, {}))
    exported(source, tmp_path / "out", method)
    assert furthest(tmp_path / "out", extended(source, method)) < 1e-3


OWN = {  # scalings that a model may have been trained with, to 16 tokens
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 4},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 4},
    "linear": {"factor": 4.0},
    "longrope": {
        "short_factor": [1.0, 1.1, 1.3, 1.6],
        "long_factor": [1.5, 2.0, 3.0, 4.0],
        "original_max_position_embeddings": 8,
    },
}


@pytest.mark.parametrize("rule", OWN)
@pytest.mark.parametrize("method", ["plain", "yarn"])
def test_transformers_computes_the_same_on_a_scaling_that_belongs_to_the_model(
    rule: str, method: str, tmp_path: Path
) -> None:
    """A method on top of it becomes one divisor for each pair; plain keeps the block as it was."""
    own = {"rope_type": rule, "rope_theta": 1e4, "finetuned": True, **OWN[rule]}
    source = checkpoint(tmp_path / "source", rope_parameters=own)
    rope = load(source).config.ropes[0]
    assert (rope.scaling_is_trained, rope.trained_length) == (True, TRAINED)
    config = exported(source, tmp_path / "out", method)
    assert config["rope_parameters"]["rope_type"] == (rule if method == "plain" else "longrope")
    assert config["max_position_embeddings"] == (TRAINED if method == "plain" else TARGET)
    assert furthest(tmp_path / "out", extended(source, method)) < 1e-3
    bare = under(load(source, dtype=torch.float32).with_positions(rope=rope.unscaled()), method)
    assert furthest(tmp_path / "out", bare) > 0.02  # not the method on the plain ladder


@pytest.mark.parametrize(
    ("family", "method", "length"),
    [
        ("gemma3_text", "yarn", None), ("granite", "ntk", 96), ("gpt_neox", "pi", None), ("glm4", "yarn", None),
        ("cohere", "yarn", None), ("phi3", "yarn", 96), ("phi3", "ntk", None), ("qwen3", "yarn", None),
        ("smollm3", "llama3", None), ("qwen3_5_text", "yarn", None),
    ],
)  # fmt: skip
def test_families(family: str, method: str, length: int | None, tmp_path: Path) -> None:
    """Partial rotation, M-RoPE, blocks by type; a shorter length is stated, with the frequencies of the target."""
    folder = folder_of(family, tmp_path / "source", **(QWEN if family == "qwen3_5_text" else {}))
    config = exported(folder, tmp_path / "out", method, target=128, length=length)
    assert config["max_position_embeddings"] == (length or 128)
    ids, reader = ids_of(120), open_reader(folder)
    wanted = reader.under(METHODS[method].positions(reader.positions, Reach(32, 128))).window_losses(ids)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    assert abs(losses_of(model, ids) - wanted).max() < 1e-3
    assert abs(reader.window_losses(ids) - wanted).max() > 1e-2


SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
}  # fmt: skip
MROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1], "mrope_interleaved": False}
TOWER = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "out_hidden_size": 32}
WHOLE: dict[str, dict[str, Any]] = {
    "qwen3_5": {"text_config": {**SMALL, **QWEN, "mtp_num_hidden_layers": 1}, "vision_config": TOWER},
    "qwen2_vl": {"text_config": {**SMALL, "rope_parameters": MROPE},
                 "vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 2, "hidden_size": 32}},
    "gemma3": {"text_config": {**SMALL, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16},
               "vision_config": {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "image_size": 28,
                                 "num_attention_heads": 2, "patch_size": 14}},
    "llama": SMALL,
}  # fmt: skip


def whole_model(family: str, folder: Path) -> Path:
    """A checkpoint with every part: a vision tower, tensors that no class loads, and all kinds of other files."""
    config = transformers.AutoConfig.for_model(family, **WHOLE[family])
    kind = transformers.AutoModelForMultimodalLM if "vision_config" in WHOLE[family] else None
    with quietly():
        (kind or transformers.AutoModelForCausalLM).from_config(config).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "mtp.fc.weight": torch.ones(4, 4)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 64, "eos_token": "<s>"}))
    (folder / "README.md").write_text("the model's own card")
    (folder / "processor").mkdir()
    (folder / "processor" / "chat.jinja").write_text("{{ x }}")
    (folder / "LICENSE").symlink_to(folder / "README.md")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kept(before: dict[str, Any], after: dict[str, Any], *changed: str) -> bool:
    """Whether every entry is as before, except those that may change."""
    return all(after[key] == value for key, value in before.items() if key not in changed)


@pytest.mark.parametrize("family", WHOLE)
def test_nothing_is_lost(family: str, tmp_path: Path) -> None:
    """All files but the configs are there, byte for byte; the config has all keys; transformers' class rotates so."""
    source = whole_model(family, tmp_path / "source")
    before = contents(source)
    config = exported(source, tmp_path / "out", "yarn", target=256)
    after = contents(tmp_path / "out")
    assert contents(source) == before
    assert after.keys() - before.keys() == {CARD}
    assert kept(before, after, "config.json", "tokenizer_config.json")
    assert json.loads(after["tokenizer_config.json"]) == {"model_max_length": 256, "eos_token": "<s>"}
    own, rope = json.loads(before["config.json"]), ("rope_parameters", "max_position_embeddings")
    text, text_before = text_of(config), text_of(own)
    assert kept(own, config, "text_config", *rope)
    assert kept(text_before, text, *rope)
    block = text["rope_parameters"].get("full_attention", text["rope_parameters"])
    stated = text_before["rope_parameters"].get("full_attention", text_before["rope_parameters"])
    assert block == stated | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    model = getattr(transformers, config["architectures"][0]).from_pretrained(tmp_path / "out")
    found = getattr(model.model, "language_model", model.model).rotary_emb
    width = int(text["head_dim"] * block.get("partial_rotary_factor", 1.0))
    name = "full_attention_" if "full_attention" in text["rope_parameters"] else ""
    inv_freq = getattr(found, f"{name}inv_freq").double().numpy()
    assert np.allclose(inv_freq, yarn(block["rope_theta"], width, block, 64), rtol=1e-6)
    assert getattr(found, f"{name}attention_scaling") == pytest.approx(0.1 * math.log(4.0) + 1.0)


def test_weights_are_not_opened(tmp_path: Path) -> None:
    """Bytes that are no safetensors are copied, and a folder without weights is enough; both files stay independent."""
    source = checkpoint(tmp_path / "source")
    (source / "model.safetensors").write_bytes(b"not opened")
    exported(source, tmp_path / "out", "yarn")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == b"not opened"
    with (tmp_path / "out" / "model.safetensors").open("r+b") as file:
        file.write(b"NOT")
    assert (source / "model.safetensors").read_bytes() == b"not opened"
    (source / "model.safetensors").unlink()
    (source / ".cache").mkdir()
    exported(source, source / "inside", "yarn")  # as with "." for the model
    config = exported(source, tmp_path / "bare", "pi")
    assert config["rope_parameters"]["rope_type"] == "linear"
    assert not {"inside", ".cache"} & {path.name for path in (tmp_path / "bare").iterdir()}
    os.mkfifo(source / "pipe")
    with pytest.raises(RopeError, match="cannot be written"):
        exported(source, tmp_path / "pipe", "yarn")


def test_plain_undoes_an_extension(tmp_path: Path) -> None:
    """The trained length and the plain block, under the keys of transformers 4 as well; as-is is the same config.

    vLLM 0.32.0's model_arch_config_convertor.py:404 and SGLang's common.py:668 prefer `model_max_length`.
    """
    source = checkpoint(tmp_path / "source", model_max_length=TRAINED)
    assert exported(source, tmp_path / "longer", "yarn")["model_max_length"] == TARGET
    back = exported(tmp_path / "longer", tmp_path / "back", "plain")
    assert back["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e4}
    assert back["max_position_embeddings"] == back["model_max_length"] == TRAINED
    assert "rope_scaling" not in back
    exported(tmp_path / "longer", tmp_path / "same", "as-is")
    assert contents(tmp_path / "same")["config.json"] == contents(tmp_path / "longer")["config.json"]


def test_a_scaling_of_the_model(tmp_path: Path) -> None:
    """Without a length it is not guessed whether it belongs to the model; no block holds dynamic NTK on top of it."""
    block = {"rope_type": "yarn", "rope_theta": 1e4, **OWN["yarn"]}
    source = checkpoint(tmp_path / "source", rope_parameters=block)
    with pytest.raises(RopeError, match="unknown whether the model was trained with the scaling"):
        exported(source, tmp_path / "out", "yarn")
    with pytest.raises(RopeError, match="gives different ropes"):
        exported(source, tmp_path / "out", "dynamic", trained_length=TRAINED)
    for length, rule in ((TRAINED, "longrope"), (4, "yarn")):
        config = exported(source, tmp_path / rule, "yarn", trained_length=length)
        assert config["rope_parameters"]["rope_type"] == rule


@pytest.mark.parametrize(
    ("family", "method", "words"),
    [
        *(("llama", name, "cannot be written: .*. *") for name in sorted(INEXPRESSIBLE)),
        ("phi3", "dynamic", "gives different ropes"),  # its class takes LongRoPE only
        ("gemma2", "yarn", "one rope for all layers"),
        ("gptj", "pi", "no block of rope parameters"),
    ],
)
def test_what_no_config_can_say_is_refused(family: str, method: str, words: str, tmp_path: Path) -> None:
    """The reason, and what works instead; nothing is written."""
    shape = {"n_embd": 32, "n_head": 4, "n_layer": 2, "rotary_dim": 4} if family == "gptj" else {}
    source = folder_of(family, tmp_path / "source", **shape)
    with pytest.raises(RopeError, match=words) as caught:
        exported(source, tmp_path / "out", method, target=128)
    assert ("--method" in caught.value.cure) or ("rw.attach" in caught.value.cure) or family == "gptj"
    assert not (tmp_path / "out").exists()


def test_a_config_alone(tmp_path: Path) -> None:
    """For trainers: from a config without weights, beside other files; what it says is what a folder would."""
    source, own, out = checkpoint(tmp_path / "source"), tmp_path / "own.json", tmp_path / "longer.json"
    own.write_bytes((source / "config.json").read_bytes())
    config = exported(own, out, "ntk")
    assert json.loads(out.read_text()) == config
    assert config == exported(source, tmp_path / "folder", "ntk")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "longer.json", "own.json", "source"]
    with pytest.raises(RopeError, match=r"must be a folder, .* or a new"):
        exported(own, out, "ntk", overwrite=True)


def test_folders_that_hold_something_are_left_alone(tmp_path: Path) -> None:
    """Refused when not empty, when foreign, when it is the source; with overwrite an earlier export is replaced."""
    source, out = checkpoint(tmp_path / "source"), tmp_path / "out"
    exported(source, out, "pi")
    with pytest.raises(RopeError, match="exists already"):
        exported(source, out, "pi")
    assert exported(source, out, "yarn", overwrite=True)["rope_parameters"]["rope_type"] == "yarn"
    card = (out / CARD).read_text()
    for name, content in ((CARD, "mine"), ("thesis.tex", "")):
        (out / name).write_text(content)
        with pytest.raises(RopeError, match="not from an export of this model"):
            exported(source, out, "yarn", overwrite=True)
        (out / CARD).write_text(card)
    for place in (source, source / "config.json"):
        with pytest.raises(RopeError, match=r"is the model itself|must be a folder"):
            exported(source, place, "yarn", overwrite=True)


def test_a_config_that_stays_in_the_spelling_of_transformers_4(tmp_path: Path) -> None:
    """The note has its block all the same."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_text(json.dumps(fixture("llama_2_7b")))
    written = apply(tmp_path / "source", tmp_path / "out", method="as-is")
    assert written == fixture("llama_2_7b")
    assert '"rope_theta": 10000.0' in (tmp_path / "out" / CARD).read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": None, "rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {}, "rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 5e5},
        {"model_type": "gemma3_text", "rope_parameters": {
            "full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["as-is", "plain"])
def test_a_config_of_an_unchanged_rope_keeps_it(changes: dict[str, Any], method: str, tmp_path: Path) -> None:
    """An empty block, a theta beside the block, and blocks of layer types without a rule."""
    content = json.loads((find("tiny") / "config.json").read_text()) | {"max_position_embeddings": 512}
    content = {key: value for key, value in content.items() if key not in ("rope_parameters", "rope_theta")} | changes
    (tmp_path / "config.json").write_text(json.dumps(content))
    written = apply(tmp_path, tmp_path / "new.json", method=method)
    before, after = (ModelRopes.from_hf(one).ropes for one in (content, written))
    assert method == "plain" or before == after
