"""Loading and saving folders: every model comes back as it was, and loading takes one copy of the weights."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.audit.findings import blocks
from ropewalk.audit.traps import query_scale
from ropewalk.checkpoints import sources
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.decoder_config import config_to_hf
from ropewalk.checkpoints.load import load, save
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.serving.serve import serve_config
from ropewalk.tokenizer import TextTokenizer
from tests.checkpoints.random_models import HALF, SIZES, make
from tests.models.material import input_ids, logits

OTHER = rw.RopeConfig(head_dim=8, interleaved=False, theta=1e6, max_position_embeddings=64)
NTK = rw.RopeConfig(head_dim=8, interleaved=False, scaling=rw.scaling.NTK(4.0), max_position_embeddings=64)
PAPER = rw.scaling.YaRN(4.0, 16, variant="paper")
RESONANCE = rw.scaling.Resonance(rw.scaling.YaRN(4.0, 16, variant="paper"))
LONG = rw.scaling.LongRoPE((1.0, 1.0, 1.5, 2.0), (1.0, 2.0, 3.0, 4.0), 16, factor=4.0)
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "dropout": ("llama", {"residual_dropout": 0.1, "attention_dropout": 0.2}),
    "no length": ("llama", {"rope": rw.RopeConfig(head_dim=8, interleaved=False)}),
    "longrope": ("llama", {"rope": rw.RopeConfig(8, interleaved=False, scaling=LONG, max_position_embeddings=64)}),
    "window": ("ropewalk", {"sliding_window": 8}),
    "windows": ("ropewalk", {"attention_bias": True, "sliding_window": (None, 8, 8)}),
    "a layer without": ("ropewalk", {"rope": (HALF, HALF, None)}),
    "biases": ("ropewalk", {"attention_bias": True, "mlp_bias": True, "sliding_window": 8}),
    "two thetas": ("ropewalk", {"rope": (HALF, OTHER, HALF), "sliding_window": (8, None, 8)}),
    "no rope": ("ropewalk", {"rope": None}),
    "partial": ("ropewalk", {"rope": rw.RopeConfig(head_dim=8, interleaved=True, rotary_dim=4)}),
    "ntk": ("ropewalk", {"rope": NTK}),
    "paper": ("ropewalk", {"rope": rw.RopeConfig(8, interleaved=False, scaling=PAPER, max_position_embeddings=64)}),
    "resonance": ("ropewalk", {"rope": rw.RopeConfig(8, interleaved=False, scaling=RESONANCE)}),
    "abf": ("ropewalk", {"rope": rw.RopeConfig(8, interleaved=False, scaling=rw.scaling.ABF(5e5))}),
    "mixed pairing": ("ropewalk", {"rope": (HALF, rw.RopeConfig(head_dim=8, interleaved=True, theta=1e6), HALF)}),
}


@pytest.mark.parametrize("name", SHAPES)
def test_round_trip(name: str, tmp_path: Path) -> None:
    """Whatever a Decoder is, save and load bring back its config and logits, under the model_type that can say it."""
    model_type, changes = SHAPES[name]
    model = make(**changes)
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == model_type
    assert torch.equal(logits(again), logits(model)) or name == "mixed pairing"
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-6)
    if name not in ("no length", "mixed pairing"):
        assert again.config.ropes == model.config.ropes
        assert again.config.sliding_windows == model.config.sliding_windows
    assert not again.training


def test_interleaved_heads_are_written_half_split(tmp_path: Path) -> None:
    """An interleaved model becomes a right Hugging Face checkpoint: rows of q and k re-ordered, the function kept."""
    import transformers

    model = make(rope=rw.RopeConfig(head_dim=8, interleaved=True, max_position_embeddings=64))
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert again.config.ropes[0] == HALF
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-5)
    torch.testing.assert_close(logits(theirs), logits(model), rtol=0, atol=1e-5)
    assert config_to_hf(model.config)["model_type"] == "ropewalk"  # without its weights nothing can be re-ordered


def test_dtype_is_kept_or_converted(tmp_path: Path) -> None:
    """A checkpoint in several dtypes takes the widest; `dtype` converts all."""
    model = make().to(torch.bfloat16)
    model.norm.to(torch.float32)
    save(model, tmp_path / "model")
    assert {p.dtype for p in load(tmp_path / "model").parameters()} == {torch.float32}
    assert {p.dtype for p in load(tmp_path / "model", dtype=torch.float16).parameters()} == {torch.float16}
    save(make().to(torch.bfloat16), tmp_path / "narrow")
    assert {p.dtype for p in load(tmp_path / "narrow", dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    assert json.loads((tmp_path / "narrow" / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_loaded_model_can_be_trained(folder: Path) -> None:
    """Mapped weights take gradients and in-place updates, and the file stays as it was."""
    before = (folder / "model.safetensors").read_bytes()
    model = load(folder)
    model(input_ids()).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(model.embed_tokens.weight, load(folder).embed_tokens.weight)
    assert (folder / "model.safetensors").read_bytes() == before


def test_tokenizer_travels_along(tmp_path: Path) -> None:
    """The tokenizer is saved beside the model and comes back on it, with its special tokens in both configs."""
    model = make(vocab_size=257)
    save(model, tmp_path / "model", tokenizer=TextTokenizer.bytes())
    again = load(tmp_path / "model")
    assert again.tokenizer is not None
    assert again.tokenizer.encode("né") == [110, 195, 169]
    assert json.loads((tmp_path / "model" / "generation_config.json").read_text())["eos_token_id"] == 256
    save(again, tmp_path / "model")  # over itself, while its weights are mapped
    third = load(tmp_path / "model")
    assert third.tokenizer is not None
    assert third.tokenizer.eos_ids == (256,)
    assert torch.equal(third.embed_tokens.weight, model.embed_tokens.weight)


def test_the_builtin_model_is_found_by_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no path is looked up among the package's models; a path of that name goes first."""
    package = tmp_path / "package"
    (package / "builtin").mkdir(parents=True)
    folder.rename(package / "builtin" / "small")
    monkeypatch.setattr(sources, "files", lambda _: package)
    monkeypatch.chdir(tmp_path)
    assert load("small").config.num_hidden_layers == 3
    save(make(num_hidden_layers=1), "small")
    assert load("small").config.num_hidden_layers == 1
    with pytest.raises(RopeError, match="HF_HUB_OFFLINE is set"):
        load("meta-llama/Llama-3.2-1B")


MEASURE = """
import gc, re, sys, torch
from pathlib import Path
from ropewalk.checkpoints.load import load
import safetensors, tokenizers
def memory(which):
    return int(re.search(rf"{which}:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024
with torch.device("meta"):
    torch.nn.Embedding(2, 2).weight.detach().normal_()  # its first use imports 75 MB of torch
for folder in sys.argv[1:]:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = memory("VmRSS")
    model = load(folder, dtype=torch.float32)
    total = sum(float(p.detach().sum()) for p in model.parameters())  # touch every page
    print((memory("VmHWM") - before) / sum(p.numel() * p.element_size() for p in model.parameters()))
    del model
"""


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_one_copy_of_the_weights(tmp_path: Path) -> None:
    """Peak memory is one copy; if bfloat16 is widened, also its mapped file, whose pages the kernel can take back."""
    large = {"hidden_size": 512, "intermediate_size": 4096, "vocab_size": 32000}
    with torch.device("meta"):
        model = Decoder(DecoderConfig(**SIZES | large | {"rope": None}))
    model.load_state_dict({n: torch.zeros(t.shape) for n, t in model.state_dict().items()}, assign=True)
    save(model, tmp_path / "float32")
    save(model.to(torch.bfloat16), tmp_path / "bfloat16")
    arguments = [sys.executable, "-c", MEASURE, *map(str, (tmp_path / "float32", tmp_path / "bfloat16"))]
    printed = subprocess.run(arguments, check=True, capture_output=True, text=True).stdout
    as_stored, widened = map(float, printed.split())
    assert 0.95 < as_stored < 1.1
    assert 0.95 < widened < 1.6


# --- saving is whole or not at all


def test_a_kill_at_any_moment_leaves_a_whole_model(folder: Path) -> None:
    """A process that saves over a folder again and again, killed, leaves a checkpoint that loads."""
    program = (
        "import sys, torch\nfrom ropewalk.checkpoints.load import load, save\n"
        "model = load(sys.argv[1])\nprint('go', flush=True)\n"
        "while True:\n    model.norm.weight.data.add_(1)\n    save(model, sys.argv[1])\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(random.Random().uniform(0.05, 0.3))  # unseeded: another moment in every run
        process.kill()
    weights = load(folder).norm.weight
    assert (weights == weights[0]).all()


def test_what_is_replaced_and_what_is_not(folder: Path) -> None:
    """A checkpoint, whole, with nothing beside it and readable for others; a folder that holds anything else is not."""
    model = make(num_hidden_layers=1)
    mask = os.umask(0o022)
    try:
        save(model, folder)
    finally:
        os.umask(mask)
    assert torch.equal(logits(load(folder)), logits(model))
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}  # safetensors writes 0600
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(RopeError, match=r"(?s)would delete them.*thesis\.tex"):
        save(make(), folder)
    assert (folder / "thesis.tex").read_text() == "years of work"
    with pytest.raises(RopeError, match="the path of the folder is a file"):
        save(make(), folder / "thesis.tex")


# --- folders without config.json

MISTRAL = {"dim": 512, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 128, "rope_theta": 1e6,
           "vocab_size": 1000, "max_position_embeddings": 65_536}  # fmt: skip
LENGTH = {"original_max_position_embeddings": 16_384}
SCALED = {"yarn": {"factor": 4, **LENGTH, "beta": 16, "alpha": 1, "apply_scale": False},
          "llama_4_scaling": {**LENGTH, "beta": 0.1}}  # fmt: skip


@pytest.mark.parametrize("place", [".", "original"])
def test_params_json(place: str, tmp_path: Path) -> None:
    """Mistral's file, in the folder or in one of its folders: neighbouring features, YaRN without its factor."""
    (tmp_path / place).mkdir(exist_ok=True)
    (tmp_path / place / "params.json").write_text(json.dumps(MISTRAL))
    plain = rw.RopeConfig(128, interleaved=True, theta=1e6, max_position_embeddings=65_536)
    assert Checkpoint.open(tmp_path).ropes.rotating == {None: plain}
    (tmp_path / place / "params.json").write_text(json.dumps(MISTRAL | SCALED))
    found = Checkpoint.open(tmp_path)
    rule = rw.scaling.YaRN(4.0, 16_384, attention_factor=1.0, beta_fast=16.0)
    assert found.ropes.rotating == {None: replace(plain, scaling=rule)}
    assert query_scale(next(blocks(found.config))) == (0.1, 16_384)
    with pytest.raises(RopeError, match="which no setting changes"):
        serve_config(tmp_path, "vllm")


@pytest.mark.parametrize(
    "params", [{"dim": 8}, MISTRAL | {"use_scaled_rope": True}, MISTRAL | {"kv_lora_rank": 4}, MISTRAL | {"yarn": 4}]
)
def test_params_json_that_is_refused(params: dict[str, Any], tmp_path: Path) -> None:
    """Sizes are missing, Meta's code has the scaling, latent attention, and no object."""
    (tmp_path / "params.json").write_text(json.dumps(params))
    with pytest.raises(RopeError, match=r"(?s)params\.json.*"):
        Checkpoint.open(tmp_path)


def test_a_config_in_a_folder_of_the_folder(tmp_path: Path) -> None:
    """The only one is opened, and served from there; of two none is."""
    for name in ("model", "other"):
        save(make(), tmp_path / name / "deep")
        (tmp_path / name / "deep" / "params.json").write_text("{}")  # config.json precedes it
    found = Checkpoint.open(tmp_path / "model")
    assert found.path == tmp_path / "model" / "deep"
    assert str(found.path) in serve_config(tmp_path / "model", "vllm").steps[0]
    shutil.copytree(tmp_path / "other" / "deep", tmp_path / "model" / "second")
    with pytest.raises(RopeError, match=r"(?s)several of its folders have one.*deep.*second"):
        Checkpoint.open(tmp_path / "model")
    with pytest.raises(RopeError, match=r"config\.json"):
        Checkpoint.open(tmp_path)
