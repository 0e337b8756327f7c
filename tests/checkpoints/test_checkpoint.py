"""Loading and saving folders: what is refused and how it is named, memory, whole-or-not-at-all writing."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file

import ropewalk as rw
from ropewalk.checkpoints import sources
from ropewalk.checkpoints.load import load, read_config, save, write_config
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.checkpoints.widen import Widened
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from tests.models import families
from tests.models.families import input_ids
from tests.models.material import write_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
HALF = rw.RopeConfig(head_dim=8, interleaved=False, max_position_embeddings=64)
OTHER = rw.RopeConfig(head_dim=8, interleaved=False, theta=1e6, max_position_embeddings=64)


def make(**changes: Any) -> Decoder:
    """A small random decoder in eval mode."""
    return Decoder(DecoderConfig(**SIZES | {"rope": HALF, "initializer_range": 0.2} | changes)).eval()


def logits(model: Decoder) -> torch.Tensor:
    """Logits over a fixed batch."""
    with torch.no_grad():
        return model(input_ids(40), seq_len=40 if model.config.needs_seq_len else None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a small Llama."""
    save(make(), tmp_path / "model")
    return tmp_path / "model"


def change_config(folder: Path, **changes: Any) -> None:
    """Put other values into a folder's config.json; `...` takes a key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not ...}))


def change_weights(folder: Path, **changes: Any) -> None:
    """Put other tensors into a folder's weights (dots written as two underscores); None takes one away."""
    path = folder / "model.safetensors"
    weights = dict(load_file(path)) | {name.replace("__", "."): tensor for name, tensor in changes.items()}
    kept = {name: tensor.clone() for name, tensor in weights.items() if tensor is not None}
    path.unlink()
    save_file(kept, path, metadata={"format": "pt"})


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
    "mistral": ("mistral", {"sliding_window": 8}),
    "qwen2": ("qwen2", {"attention_bias": True, "sliding_window": (None, 8, 8)}),
    "qwen3": ("qwen3", {"qk_norm": True}),
    "smollm3": ("smollm3", {"rope": (HALF, HALF, None)}),
    "layernorm": ("ropewalk", {"norm": "layernorm", "hidden_act": "gelu"}),
    "relu": ("ropewalk", {"hidden_act": "relu", "mlp_bias": True}),
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

    model = make(rope=rw.RopeConfig(head_dim=8, interleaved=True, max_position_embeddings=64), qk_norm=True, head_dim=8)
    with torch.no_grad():
        for layer in model.layers:
            layer.self_attn.q_norm.weight.uniform_(0.5, 1.5)
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert again.config.ropes[0] == HALF
    torch.testing.assert_close(logits(again), logits(model), rtol=0, atol=1e-5)
    torch.testing.assert_close(theirs(input_ids(40)).logits.detach(), logits(model), rtol=0, atol=1e-5)
    assert write_config(model.config)["model_type"] == "ropewalk"  # without its weights nothing can be re-ordered


def test_dtype_is_kept_or_converted(tmp_path: Path) -> None:
    """A checkpoint in several dtypes takes the widest; `dtype` converts all."""
    model = make().to(torch.bfloat16)
    model.norm.to(torch.float32)
    save(model, tmp_path / "model")
    assert {p.dtype for p in load(tmp_path / "model").parameters()} == {torch.float32}
    assert {p.dtype for p in load(tmp_path / "model", dtype=torch.float16).parameters()} == {torch.float16}
    save(make().to(torch.bfloat16), tmp_path / "narrow")
    assert {p.dtype for p in load(tmp_path / "narrow").parameters()} == {torch.bfloat16}
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


def test_truncation_anywhere_is_named(folder: Path) -> None:
    """A safetensors file cut at any of many places."""
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for end in (0, 4, 8, 100, 1000, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(RopeError, match=r"(?s)truncated or damaged.*model\.safetensors"):
            load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model__norm__weight": None}, r"(?s)missing from the checkpoint.*'norm\.weight'"),
        ({"model__extra__weight": torch.zeros(2)}, r"(?s)no place for.*'model\.extra\.weight'"),
        ({"model__norm__weight": torch.zeros(31)}, r"(?s)another shape.*model\.norm\.weight.*\(31,\).*\(32,\)"),
        ({"model__norm__weight": torch.zeros(32, dtype=torch.int8)}, r"(?s)plain floating type.*model\.norm\.weight"),
        ({"lm_head__weight": torch.zeros(96, 32)}, r"(?s)ties the head.*lm_head\.weight"),
    ],
)
def test_wrong_tensors_are_named(changes: dict[str, Any], message: str, folder: Path) -> None:
    """Missing, unexpected, of a wrong shape or type, or a head where there should be none."""
    change_weights(folder, **changes)
    with pytest.raises(RopeError, match=message):
        load(folder)


def test_harmless_tensors_are_passed_over(folder: Path) -> None:
    """Old Llama checkpoints store inv_freq; some tied ones repeat the embedding as a head; some lack the prefix."""
    expected = logits(load(folder))
    weights = load_file(folder / "model.safetensors")
    change_weights(
        folder,
        lm_head__weight=weights["model.embed_tokens.weight"].clone(),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(4),
    )
    assert torch.equal(logits(load(folder)), expected)
    save_file({n.removeprefix("model."): t.clone() for n, t in weights.items()}, folder / "model.safetensors")
    assert torch.equal(logits(load(folder)), expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, r"(?s)unknown architecture.*'mamba'"),
        ({"model_type": ...}, "unknown architecture"),
        ({"architectures": ["MyLlamaForCausalLM"]}, r"(?s)unknown architecture.*MyLlamaForCausalLM"),
        ({"model_type": "mylm", "auto_map": {"AutoModel": "code.My"}}, r"(?s)is never run here.*'mylm'.*code\.My"),
        ({"architectures": ["My"], "auto_map": {"AutoModel": "code.My"}}, r"(?s)unknown architecture.*never run here"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"hidden_act": "gelu"}, "gated by silu"),
        ({"hidden_size": ...}, r"(?s)`hidden_size` must be a whole number.*missing"),
        ({"num_hidden_layers": "3"}, "`num_hidden_layers` must be a whole number"),
        ({"num_attention_heads": 0}, "`num_attention_heads` must be"),
        ({"rms_norm_eps": "tiny"}, "`rms_norm_eps` must be a number"),
        ({"partial_rotary_factor": 0.5}, "turn the whole head"),
        (
            {"rope_parameters": {"rope_type": "no-such", "rope_theta": 1e4}},
            r"(?s)rope_type.*config\.json|config\.json.*rope",
        ),
        (
            {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
            "layers of a llama model are all alike",
        ),
        ({"model_type": "qwen2", "architectures": None, "layer_types": ["sliding_attention"] * 3}, "no window is set"),
        ({"model_type": "qwen2", "architectures": None, "layer_types": ["full_attention"]}, "once per layer"),
        ({"model_type": "qwen2", "architectures": None, "layer_types": 3}, "layer_types"),
        ({"layer_types": [["full_attention"]] * 3}, "layer_types"),
        ({"model_type": "smollm3", "architectures": None, "no_rope_layers": [1]}, "one entry per layer"),
        ({"model_type": "ropewalk"}, "model_type ropewalk is damaged"),
    ],
)
def test_configs_that_are_refused(changes: dict[str, Any], message: str, folder: Path) -> None:
    """Unknown architectures, code of one's own, and numbers that are missing or impossible."""
    change_config(folder, **changes)
    with pytest.raises(RopeError, match=message):
        load(folder)


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    """No such folder, no config.json, no weights, damaged JSON."""
    with pytest.raises(RopeError, match="no such file or folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(RopeError, match=r"no config\.json"):
        load(tmp_path)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(RopeError, match=r"(?s)no safetensors weights.*pytorch_model\.bin.*refused"):
        load(folder)
    (folder / "config.json").write_text("[1, 2]")
    with pytest.raises(RopeError, match="must hold a JSON object"):
        load(folder)
    (folder / "config.json").write_text('{"model_type": ')
    with pytest.raises(RopeError, match=r"config\.json cannot be read"):
        load(folder)


def test_code_beside_a_known_family_is_not_run(folder: Path) -> None:
    """Many re-uploads carry an auto_map: the family is read as without it, and a trap in the code never springs."""
    expected = logits(load(folder))
    change_config(folder, auto_map={"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"})
    (folder / "code.py").write_text(f"open({str(folder / 'sprung')!r}, 'w')")
    assert torch.equal(logits(load(folder)), expected)
    assert read_config(folder) == load(folder).config
    assert not (folder / "sprung").exists()


@pytest.mark.rejects
def test_a_path_names_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty path is not the current folder, which `save` would replace; what is no path is said to be none."""
    save(make(), tmp_path / "model")
    monkeypatch.chdir(tmp_path / "model")
    before = sorted(Path().iterdir())
    for source in ("", None, 3, b"tiny", ["tiny"]):
        for call in (load, read_config, lambda folder: save(make(), folder)):
            with pytest.raises(RopeError, match=r"(?s)a path is a string.*not empty"):
                call(source)  # type: ignore[operator]
    assert sorted(Path().iterdir()) == before
    assert load(".").config.num_hidden_layers == 3
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(RopeError, match=r"looked up|no such file"):
            load(name)


@pytest.mark.rejects
@pytest.mark.parametrize("dtype", ["float32", torch.int8, torch.complex64, 32], ids=str)
def test_the_dtype_is_a_floating_one(dtype: Any) -> None:
    """Nothing is read for another."""
    with pytest.raises(RopeError, match="`dtype` must be a floating dtype"):
        load("tiny", dtype=dtype)


def test_a_pickle_is_never_opened(folder: Path) -> None:
    """A file that would run code on unpickling is refused unread."""
    import pickle

    class Trap:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(folder / "sprung"),))

    path = folder / "pytorch_model.bin"
    path.write_bytes(pickle.dumps(Trap()))
    (folder / "model.safetensors").unlink()
    for source in (folder, path):
        with pytest.raises(RopeError):
            load(source)
    assert not (folder / "sprung").exists()


def test_shards(folder: Path) -> None:
    """Shards load; a missing file, a path out of the folder, or a tensor that its shard lacks is named."""
    expected = logits(load(folder))
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for part, of_part in parts.items():
        save_file({name: weights[name].clone() for name in of_part}, folder / part)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {name: part for part, of_part in parts.items() for name in of_part}}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    assert torch.equal(logits(load(folder)), expected)

    path.write_text(json.dumps({"weight_map": index["weight_map"] | {"model.more.weight": "a.safetensors"}}))
    with pytest.raises(RopeError, match=r"(?s)does not hold.*a\.safetensors.*model\.more\.weight"):
        load(folder)
    path.write_text(
        json.dumps({"weight_map": {name: f"../model/{part}" for name, part in index["weight_map"].items()}})
    )
    with pytest.raises(RopeError, match="not in the folder"):
        load(folder)
    path.write_text(json.dumps({"weight_map": [1]}))
    with pytest.raises(RopeError, match="no `weight_map`"):
        load(folder)
    path.write_text(json.dumps(index))
    (folder / "b.safetensors").unlink()
    with pytest.raises(RopeError, match=r"(?s)shard that the index names.*b\.safetensors"):
        load(folder)


def test_a_save_that_fails_leaves_the_old_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or not at all: a disk that fills up half-way changes nothing and leaves nothing behind."""
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(path: Path, *_: Any, **__: Any) -> None:
        if path.name == "tokenizer.json":
            raise OSError(28, "No space left on device")
        path.write_text("{}")

    monkeypatch.setattr("ropewalk.checkpoints.tokenizer.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        save(make(vocab_size=257), folder, tokenizer=TextTokenizer.bytes())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


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


def test_others_may_read_what_is_saved(folder: Path) -> None:
    """Every file has the mode that the user's umask gives, also the weights, which safetensors writes as 0600."""
    mask = os.umask(0o022)
    try:
        save(load(folder), folder.with_name("copy"))
    finally:
        os.umask(mask)
    modes = {path.stat().st_mode & 0o777 for path in folder.with_name("copy").iterdir()}
    assert modes == {0o644}


def test_foreign_files_are_not_lost(folder: Path) -> None:
    """A folder that holds anything but a checkpoint is not replaced; without renameat2 the swap works as well."""
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(RopeError, match=r"(?s)would lose them.*thesis\.tex"):
        save(make(), folder)
    assert (folder / "thesis.tex").read_text() == "years of work"
    with pytest.raises(RopeError, match="a file where the folder should be"):
        save(make(), folder / "thesis.tex")


def test_replacing_without_the_kernel_s_exchange(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system cannot swap two names in one step, two renames do it."""
    monkeypatch.setattr("ropewalk.atomic_io.ctypes.CDLL", lambda _: object())
    model = make(num_hidden_layers=1)
    save(model, folder)
    assert torch.equal(logits(load(folder)), logits(model))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_the_builtin_model_is_found_by_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is no path is looked up among the package's models; a path of that name goes first."""
    package = tmp_path / "package"
    package.mkdir()
    folder.rename(package / "small")
    monkeypatch.setattr(sources, "files", lambda _: package)
    monkeypatch.chdir(tmp_path)
    assert load("small").config.num_hidden_layers == 3
    assert read_config("small").vocab_size == 96
    save(make(num_hidden_layers=1), "small")
    assert load("small").config.num_hidden_layers == 1
    with pytest.raises(RopeError, match="HF_HUB_OFFLINE is set"):
        load("meta-llama/Llama-3.2-1B")


MEASURE = """
import gc, re, sys, torch
from pathlib import Path
from ropewalk.checkpoints.load import load
import ropewalk.checkpoints.gguf, safetensors, tokenizers, gguf
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


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
def test_one_copy_of_the_weights(tmp_path: Path) -> None:
    """Peak memory is one copy of the weights, also where bfloat16 is widened: the narrow file is not held beside it."""
    config = DecoderConfig(**SIZES | {"hidden_size": 512, "intermediate_size": 4096, "vocab_size": 32000, "rope": None})
    with torch.device("meta"):
        model = Decoder(config)
    model.load_state_dict({n: torch.zeros(t.shape) for n, t in model.state_dict().items()}, assign=True)
    save(model, tmp_path / "float32")
    save(model.to(torch.bfloat16), tmp_path / "bfloat16")
    arguments = [sys.executable, "-c", MEASURE, str(tmp_path / "float32"), str(tmp_path / "bfloat16")]
    as_stored, widened = map(
        float, subprocess.run(arguments, check=True, capture_output=True, text=True).stdout.split()
    )
    assert 0.95 < as_stored < 1.1
    assert 0.95 < widened < 1.1


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from Linux's /proc")
@pytest.mark.thorough  # `test_one_copy_of_the_weights` stays
def test_one_copy_of_a_widened_gguf(tmp_path: Path) -> None:
    """The same for a GGUF in float16, whose tensors come out in float32; the last one, its head, is a large one."""
    theirs = families.make("qwen3", hidden_size=512, intermediate_size=4096, vocab_size=32000)
    path = write_gguf(
        tmp_path / "model.gguf", theirs.config, theirs.state_dict(), arch="qwen3", kind=gguf.GGMLQuantizationType.F16
    )
    printed = subprocess.run([sys.executable, "-c", MEASURE, str(path)], check=True, capture_output=True, text=True)
    head = 512 * 32000 * 2 / sum(tensor.numel() * 4 for tensor in theirs.state_dict().values())
    assert 0.95 < float(printed.stdout) < 1.05 + head


def test_converted_tensors_are_those_of_torch(tmp_path: Path) -> None:
    """Whatever is stored and asked for, the numbers are `.to`'s; scalars and empty tensors beside odd sizes."""
    tensors = {
        "a": torch.randn(3, 5), "b": torch.randn(()), "c": torch.zeros(0, 4), "d": torch.randn(7).to(torch.bfloat16),
        "e": torch.randn(1025, 33).half(), "f": torch.randn(2, 3).double(),
    }  # fmt: skip
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    pieces = Widened(tmp_path / "x.safetensors")
    for name, tensor in tensors.items():
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            read = pieces.read(name, tuple(tensor.shape), tensor.dtype, dtype)
            if dtype != tensor.dtype:
                assert torch.equal(read, tensor.to(dtype))
                assert read.shape == tensor.shape
