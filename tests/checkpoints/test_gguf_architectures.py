"""llama.cpp's architectures: every name is read from a file's metadata alone, or refused with its reason."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import ropewalk as rw
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.errors import NoRotation, RopeError
from ropewalk.families import FAMILIES
from ropewalk.families.llama_cpp import ARCHITECTURES, STILL
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import Linear, YaRN
from ropewalk.serving.serve import serve_config

NAMES = tuple(gguf.MODEL_ARCH_NAMES.values())
SIZES: dict[str, Any] = {
    "block_count": 8, "context_length": 32_768, "embedding_length": 512, "attention.head_count": 4,
    "attention.head_count_kv": 2, "rope.freq_base": 1e6,
}  # fmt: skip
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 8192}
PATTERN = [True, True, True, False] * 2
SECTIONS = [24, 20, 20, 0]


def header(
    path: Path, arch: str, keys: dict[str, Any], divisors: tuple[float, ...] = (), *, vocabulary: bool = False
) -> Path:
    """A file without weights, and without a tokenizer unless llama.cpp is to open it."""
    writer = gguf.GGUFWriter(path, arch)
    add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
           list: writer.add_array}  # fmt: skip
    for key, value in {**SIZES, **keys}.items():
        if value is not None:
            add[type(value)](key if key.startswith(("split", "xielu")) else f"{arch}.{key}", value)
    if vocabulary:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))])
        writer.add_token_scores([0.0] * 259)
        writer.add_token_types([2, 3, 3] + [6] * 256)
    if divisors:
        writer.add_tensor("rope_freqs.weight", np.array(divisors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file() if divisors else writer.write_ti_data_to_file()
    writer.close()
    return path


def required(arch: str) -> dict[str, Any]:
    """The keys of windows and axes without which llama.cpp refuses some architectures, and a number of layers."""
    row = ARCHITECTURES.get(arch)
    if row is None:
        return {}
    layers = row.layers or (row.windows.layers if row.windows else None) or 8
    keys: dict[str, Any] = {"block_count": layers}
    keys |= {"attention.sliding_window": 64} if row.windows else {}
    keys |= {"attention.sliding_window_pattern": PATTERN} if row.windows and row.windows.period is None else {}
    return keys | ({"rope.dimension_sections": SECTIONS} if row.axes else {})


def read(path: Path, arch: str, keys: dict[str, Any] | None = None, *divisors: float) -> ModelRopes:
    """The ropes of such a file; warnings pass."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Checkpoint.open(header(path / f"{arch}.gguf", arch, {**required(arch), **(keys or {})}, divisors)).ropes


@pytest.mark.parametrize("arch", NAMES)
def test_every_name(arch: str, tmp_path: Path) -> None:
    """The package gguf lists them; each is described once, and a file of its metadata has ropes or a reason."""
    assert (arch in ARCHITECTURES) != (arch in STILL)
    if arch in STILL:
        with pytest.raises(NoRotation, match=f"(?s)no layer of this GGUF file rotates; {arch} uses {STILL[arch][:9]}"):
            read(tmp_path, arch)
        return
    ropes, row = read(tmp_path, arch), ARCHITECTURES[arch]
    assert ropes.num_layers == required(arch)["block_count"]
    assert {rope.interleaved for rope in ropes.present_ropes} == {row.interleaved and row.axes is None}
    assert row.family is None or row.family in FAMILIES


def test_the_table_has_no_other_names() -> None:
    """A row that gguf does not know would be a slip."""
    assert {*ARCHITECTURES, *STILL} == {*NAMES}


# What a class requires besides the rope. llama.cpp stops at the missing weights, after it has printed its numbers.
_KEYS: dict[str, Any] = {
    "feed_forward_length": 64, "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5,
    "logit_scale": 1.0, "expert_feed_forward_length": 64, "expert_shared_feed_forward_length": 64,
    "expert_shared_count": 1, "expert_weights_scale": 1.0, "leading_dense_block_count": 1, "moe_every_n_layers": 2,
    "interleave_moe_layer_step": 1, "expert_weights_norm": True, "expert_gating_func": 2, "attention.q_lora_rank": 16,
    "attention.kv_lora_rank": 16, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
    "attention.indexer.head_count": 2, "attention.indexer.key_length": 128, "attention.indexer.top_k": 16,
    "ssm.conv_kernel": 4, "ssm.inner_size": 512, "ssm.state_size": 16, "ssm.time_step_rank": 8, "ssm.group_count": 1,
    "attention.clamp_kqv": 8.0, "swin_norm": False, "shortconv.l_cache": 3, "embedding_length_per_layer_input": 4,
    "attention.key_length_swa": 128, "attention.value_length_swa": 128, "expert_chunk_feed_forward_length": 64,
    "expert_group_scale": 1.0, "experts_per_group": 1, "activation_sparsity_scale": [0.0] * 8, "altup.active_idx": 0,
    "altup.num_inputs": 4, "n_deepstack_layers": 0, "use_parallel_residual": True, "xielu.alpha_n": 0.8,
    "xielu.alpha_p": 0.8, "xielu.beta": 0.5, "xielu.eps": 1e-6,
}  # fmt: skip
_LOADER = """
import os, sys, time, xllamacpp
for path in sys.argv[1:]:
    if not (child := os.fork()):
        log = os.open(path + ".log", os.O_CREAT | os.O_WRONLY)
        os.dup2(log, 1), os.dup2(log, 2)
        settings = xllamacpp.CommonParams()
        settings.model.path, settings.n_ctx, settings.verbosity = path, 64, 10
        try:
            xllamacpp.Server(settings)
        except RuntimeError:
            time.sleep(0.2)  # its log has a thread
        os._exit(0)
    os.waitpid(child, 0)
"""
_PAIRED = {"0": True, "2": False, "8": False, "40": False}  # llama_rope_type: NORM, NEOX, MROPE, IMROPE


@pytest.mark.thorough
def test_a_real_llama_cpp_reads_the_same_numbers(tmp_path: Path) -> None:
    """b11549 prints pairing, width, thetas, scales and window of a header; two graphs and one of LFM2 ignore them."""
    pytest.importorskip("xllamacpp", reason="llama.cpp is in the extra llama-cpp")
    keys, files = {**_KEYS, **YARN, "rope.dimension_count": 128}, dict[str, Path]()
    for arch in ARCHITECTURES:
        files[arch] = header(tmp_path / f"{arch}.gguf", arch, {**keys, **required(arch)}, vocabulary=True)
    subprocess.run([sys.executable, "-c", _LOADER, *map(str, files.values())], check=True, timeout=280)
    for arch, file in files.items():
        told = dict(re.findall(r"print_info: ([\w ]+?) += (\S+)", Path(f"{file}.log").read_text(errors="replace")))
        row = ARCHITECTURES[arch]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ropes = Checkpoint.open(file).ropes
        layers = [*zip(ropes.ropes, ropes.sliding_windows, strict=True)]
        assert (told["is_swa_any"] != "0") == any(window for _, window in layers), arch
        for rope, window in layers if not row.plain else ():
            if rope is None:
                continue
            assert _PAIRED[told["rope type"]] == rope.interleaved, arch
            assert window is None or int(told["n_swa"]) == window, arch
            if window and row.windows is not None and not (row.windows.own_theta or arch == "olmo2"):
                window = None  # its graph takes the numbers of the other layers
            scale = float(told["freq_scale_swa" if window else "freq_scale_train"])
            assert scale * getattr(rope.scaling, "factor", 1.0) == pytest.approx(1.0), arch
            assert float(told["freq_base_swa" if window else "freq_base_train"]) == rope.theta, arch
            assert int(told["n_rot_swa" if window else "n_rot"]) == rope.rotary_dim, arch


def still(ropes: ModelRopes) -> list[int]:
    """The layers that do not rotate."""
    return [layer for layer, rope in enumerate(ropes.ropes) if rope is None]


@pytest.mark.parametrize(
    ("arch", "keys", "layers"),
    [
        ("smollm3", {}, [3, 7]),
        ("afmoe", {"attention.sliding_window": 0}, [3, 7]),
        ("llama4", {}, [3, 7]),
        ("llama4", {"attention.sliding_window": 0}, [7]),  # b11549's code says: always rotate
        ("smallthinker", {}, [0, 4]),
        ("smallthinker", {"attention.sliding_window": 0}, []),
        ("cohere2", {"attention.sliding_window_pattern": 2}, [1, 3, 5, 7]),
        ("exaone4", {"block_count": 8}, []),
        ("exaone4", {}, [*range(3, 64, 4)]),
        ("qwen35", {"full_attention_interval": 3}, [0, 1, 3, 4, 6, 7]),
        ("qwen3next", {"attention.recurrent_layers": [True] * 7 + [False]}, [*range(7)]),
        ("lfm2", {"attention.head_count_kv": [0, 0, 2, 0, 0, 2, 0, 0]}, [0, 1, 3, 4, 6, 7]),
        ("deci", {"attention.head_count": [4, 4, 0, 4, 4, 4, 4, 4]}, [2]),
        ("glm4moe", {"block_count": 9, "nextn_predict_layers": 1}, []),
    ],
)
def test_layers_that_do_not_rotate(arch: str, keys: dict[str, Any], layers: list[int], tmp_path: Path) -> None:
    """By number, by window, by heads; layers of multi-token prediction are none of the model's."""
    ropes = read(tmp_path, arch, keys)
    assert still(ropes) == layers
    assert ropes.num_layers == {**SIZES, **required(arch), **keys}["block_count"] - ("nextn_predict_layers" in keys)


@pytest.mark.parametrize(
    ("arch", "keys"),
    [("baichuan", {"block_count": 40}), ("granite", {"rope.scaling.finetuned": False}),
     ("granitehybrid", {"attention.head_count_kv": [0] * 8})],
)  # fmt: skip
def test_models_of_a_rotating_architecture_without_rotation(arch: str, keys: dict[str, Any], tmp_path: Path) -> None:
    """Baichuan 13B has ALiBi, Granite 4 a switch, and a hybrid may be all recurrent."""
    with pytest.raises(NoRotation, match="no layer of this GGUF file rotates"):
        read(tmp_path, arch, keys)
    assert not Checkpoint.open(tmp_path / f"{arch}.gguf", rotates=False).ropes.present_ropes


def rope(**changes: Any) -> RopeConfig:
    """The rope of `SIZES`, half-split."""
    values = {"interleaved": False, "theta": 1e6, "max_position_embeddings": 32_768, **changes}
    return rw.RopeConfig(128, **values)


FOUR = YaRN(4.0, 8192)
CASES: list[tuple[str, dict[str, Any], dict[str | None, RopeConfig]]] = [
    ("gemma3", {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0},
     {"full_attention": rope(scaling=Linear(8.0)), "sliding_attention": rope(theta=1e4)}),
    ("olmo2", YARN | {"rope.freq_base_swa": 5e5}, {"full_attention": rope(scaling=FOUR), "sliding_attention": rope()}),
    ("gpt-oss", YARN, {None: rope(scaling=FOUR)}),  # truncated, unlike the published model
    ("gemma2", {"rope.freq_base_swa": 5e5}, {"full_attention": rope(), "sliding_attention": rope(theta=5e5)}),
    ("step35", {"rope.dimension_count": 128},
     {"full_attention": rope(rotary_dim=64), "sliding_attention": rope(theta=1e4)}),
    ("gemma4", {"rope.dimension_count_swa": 32, "attention.key_length_swa": 64},
     {"full_attention": rope(),
      "sliding_attention": rw.RopeConfig(64, interleaved=False, rotary_dim=32, max_position_embeddings=32_768)}),
    ("phi2", {"rope.dimension_count": 32}, {None: rope(rotary_dim=32)}),
    ("deepseek2", YARN | {"attention.key_length": 576, "rope.dimension_count": 64, "attention.key_length_mla": 192,
                          "rope.scaling.yarn_log_multiplier": 0.0707},
     {None: rw.RopeConfig(64, interleaved=True, theta=1e6, max_position_embeddings=32_768,
                          scaling=YaRN(4.0, 8192, attention_factor=1.0))}),
    ("glm-dsa", YARN | {"rope.dimension_count": 64},
     {None: rw.RopeConfig(64, interleaved=True, theta=1e6, max_position_embeddings=32_768, scaling=FOUR)}),
    ("mistral3", YARN | {"rope.scaling.yarn_log_multiplier": 1.0, "rope.scaling.yarn_beta_fast": 4.0},
     {None: rope(interleaved=True, scaling=YaRN(4.0, 8192, attention_factor=1.0, beta_fast=4.0))}),
    ("mistral3", YARN | {"rope.scaling.yarn_log_multiplier": 0.0}, {None: rope(interleaved=True, scaling=FOUR)}),
    ("grok", YARN | {"rope.scaling.yarn_ext_factor": 1.0}, {None: rope(scaling=YaRN(4.0, 8192, beta_fast=8.0))}),
    ("grok", YARN | {"rope.scaling.yarn_ext_factor": 0.0}, {None: rope(scaling=Linear(4.0))}),
    ("hunyuan-dense", {"rope.freq_base": 1e4, "rope.scaling.alpha": 1000.0, "rope.dimension_sections": None},
     {None: rope(theta=1e4 * 1000.0 ** (128 / 126))}),
    ("cogvlm", YARN, {None: rope(theta=1e4)}),
    ("glm4", {"rope.dimension_sections": [16, 24, 24, 0]},
     {None: rope(axes=(0,) * 16 + (1,) * 24 + (2,) * 24)}),
    ("glm4", {"rope.dimension_sections": None}, {None: rope(interleaved=True)}),
]  # fmt: skip


@pytest.mark.parametrize(("arch", "keys", "expected"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_ropes(arch: str, keys: dict[str, Any], expected: dict[str | None, RopeConfig], tmp_path: Path) -> None:
    """Thetas, scalings, widths and axes as `load_arch_hparams` and the graph of each class in b11549 take them."""
    ropes = read(tmp_path, arch, keys)
    assert dict(ropes.rotating) == expected


def test_the_fourth_axis(tmp_path: Path) -> None:
    """Qwen3-VL's 61st and 62nd of 64 pairs have a position that is 0 for text, which transformers does not have."""
    with pytest.warns(UserWarning, match=r"pairs 61, 62 the fourth axis"):
        ropes = Checkpoint.open(header(tmp_path / "vl.gguf", "qwen3vl", required("qwen3vl"))).ropes
    axes = ropes.present_ropes[0].axes
    assert axes is not None
    assert axes[:6] == (0, 1, 2) * 2
    assert axes[58:] == (1, 2, 0, 3, 3, 0)


HF: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("gemma3", {"rope.freq_base_swa": 1e4}, {"model_type": "gemma3_text", "sliding_window_pattern": 6}),
    ("smollm3", {}, {"model_type": "smollm3"}),
    ("cohere2", {}, {"model_type": "cohere2", "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2}),
    ("llama4", {"attention.sliding_window": None}, {"model_type": "llama4_text"}),
    ("stablelm", {"rope.dimension_count": 32}, {"model_type": "stablelm"}),
    ("qwen3next", {"rope.dimension_count": 32}, {"model_type": "qwen3_next", "full_attention_interval": 4}),
]


@pytest.mark.parametrize(("arch", "keys", "config"), HF, ids=[case[0] for case in HF])
def test_a_config_of_the_same_model(arch: str, keys: dict[str, Any], config: dict[str, Any], tmp_path: Path) -> None:
    """Its class in transformers rotates the same layers by the same frequencies."""
    named = {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 128, "max_position_embeddings": 32_768, "rope_theta": 1e6, "sliding_window": 64}  # fmt: skip
    transformers = pytest.importorskip("transformers")
    made = transformers.CONFIG_MAPPING[config["model_type"]](**{**named, **config})
    theirs, ours = ModelRopes.from_hf(made), read(tmp_path, arch, keys)
    assert theirs.num_layers == ours.num_layers
    shown = [[(rope.theta, rope.rotary_dim, rope.scaling) if rope else None for rope in each.ropes]
             for each in (theirs, ours)]  # fmt: skip
    assert shown[0] == shown[1]
    assert [bool(window) for window in theirs.sliding_windows] == [bool(window) for window in ours.sliding_windows]


# --- files that end early


def test_a_file_that_only_begins_a_split(tmp_path: Path) -> None:
    """The first part has the metadata, later ones do not; serve-config needs no more."""
    split = {"split.count": 3, "split.no": 0}
    first = header(tmp_path / "m-00001-of-00003.gguf", "glm4moe", {**split, "rope.dimension_count": 64})
    assert Checkpoint.open(first).ropes.present_ropes[0].rotary_dim == 64
    served = serve_config(first, "llama.cpp", method="yarn", factor=2)
    assert served.steps[0].endswith("--rope-scaling yarn --rope-scale 2 --yarn-orig-ctx 32768")
    assert served.length == 65_536
    with pytest.raises(RopeError, match="not read from GGUF files"):
        serve_config(first, "vllm")
    later = header(tmp_path / "m-00002-of-00003.gguf", "glm4moe", {**split, "split.no": 1})
    with pytest.raises(RopeError, match=r"(?s)no metadata of a model.*pass the first part, -00001-of-"):
        Checkpoint.open(later)


def test_a_file_that_ends_behind_its_metadata(tmp_path: Path) -> None:
    """Without the names of its tensors a warning tells of divisors; with the name, they are missed."""
    path = header(tmp_path / "m.gguf", "llama", {}, (1.0,) * 32 + (8.0,) * 32)
    whole, content = Checkpoint.open(path).ropes, path.read_bytes()
    assert whole.present_ropes[0].scaling is not None
    path.write_bytes(content[: content.index(b"rope_freqs") - 4])
    with pytest.warns(UserWarning, match=r"ends before the names of its tensors"):
        assert Checkpoint.open(path).ropes.present_ropes[0].scaling is None
    path.write_bytes(content[:-100])
    with pytest.raises(RopeError, match=r"(?s)ends inside this tensor.*rope_freqs.*at least up to there"):
        Checkpoint.open(path)
    path = header(path, "qwen3", {}, (1.0,) * 64)
    with pytest.raises(RopeError, match="does not load these divisors"):
        Checkpoint.open(path)


@pytest.mark.parametrize(
    ("engine", "arch", "keys", "why"),
    [
        ("llama.cpp", "olmo2", {}, "layers with a window keep theirs"),
        ("llama.cpp", "cogvlm", {}, "copies no .gguf file"),  # llama.cpp scales nothing
        ("llama.cpp", "deepseek2", {}, "copies no .gguf file"),  # the softmax scale is, too
        ("ollama", "glm4moe", {}, "copies no .gguf file"),
        ("sglang", "llama", {}, "a number is missing"),
    ],
)
def test_flags_that_would_not_do_it(engine: str, arch: str, keys: dict[str, Any], why: str, tmp_path: Path) -> None:
    """A refusal, where the flags of YaRN change less or more than the rope, or the file cannot become a folder."""
    path = header(tmp_path / "m.gguf", arch, {**required(arch), **keys})
    with pytest.raises(RopeError, match=why) as raised:
        serve_config(path, engine, method="yarn", factor=2)
    assert "in Python" not in raised.value.cure  # transformers does not load it


def wrong() -> Iterator[tuple[str, dict[str, Any]]]:
    """Architectures with each of their keys in a wrong type, or out of range."""
    more = {"attention.key_length": 128, "attention.sliding_window": 64, "attention.sliding_window_pattern": PATTERN,
            "rope.dimension_count": 64, "rope.dimension_sections": SECTIONS, "rope.freq_base_swa": 1e4,
            "nextn_predict_layers": 0, "full_attention_interval": 4, "attention.recurrent_layers": [True] * 8,
            "rope.scaling.alpha": 2.0, **YARN}  # fmt: skip
    bad: tuple[Any, ...] = (None, "x", -1.0, 0, 1, 2**31, 0.5, True, [0], ["x"] * 8, [2**31 - 1] * 8, float("nan"))
    for arch in ("gemma4", "qwen35", "hunyuan_vl", "deepseek2"):
        for key, value in itertools.product({**SIZES, **more}, bad):
            yield arch, {**more, key: value}


@pytest.mark.thorough
def test_wrong_values_are_never_a_traceback(tmp_path: Path) -> None:
    """Ropes, or a RopeError."""
    refused = 0
    for arch, keys in wrong():
        try:
            read(tmp_path, arch, keys)
        except RopeError:
            refused += 1
    assert refused > 200
