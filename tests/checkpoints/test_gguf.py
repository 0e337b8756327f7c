"""GGUF files: every stored type, llama.cpp's permutation undone, rope metadata, and damage that is named."""

from __future__ import annotations

import struct
import warnings
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from ropewalk.checkpoints.checkpoint import Checkpoint
from ropewalk.checkpoints.gguf_file import GGUFFile
from ropewalk.checkpoints.gguf_rope import rule_of_divisors, scaled_rope
from ropewalk.checkpoints.opening import load_gguf
from ropewalk.errors import RopeError
from tests.checkpoints.test_gguf_architectures import header
from tests.models.material import data, input_ids, logits, make, smollm2, write_gguf
from tests.oracle import ladder, llama3

KINDS = gguf.GGMLQuantizationType
STORED = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
          "IQ4_NL", "IQ4_XS")  # fmt: skip


def load(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The transformers model of a file."""
    return load_gguf(path, dtype)[0]


@pytest.mark.parametrize("kind", [KINDS[name] for name in STORED], ids=STORED)
def test_stored_types(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    """Blocks of random bytes read as gguf's own reader dequantises them."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 60, size=(3, 2 * size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("x", raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "k.gguf")
    assert file.tensors["x"].shape == (3, 2 * block)
    [theirs] = gguf.GGUFReader(tmp_path / "k.gguf").tensors
    expected = gguf.quants.dequantize(theirs.data, theirs.tensor_type).astype(np.float32)
    assert torch.equal(file.read("x"), torch.from_numpy(expected).view(3, -1))
    assert torch.equal(file.read("x", torch.bfloat16), torch.from_numpy(expected).view(3, -1).bfloat16())


def llama3_divisors(theta: float, dim: int, factor: float, low: float, high: float, length: int) -> torch.Tensor:
    """rope_freqs.weight as llama.cpp's converter computes it, in float32."""
    block = {"factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    block["original_max_position_embeddings"] = length
    return torch.from_numpy(ladder(theta, dim) / llama3(theta, dim, block)).float()


@pytest.mark.parametrize(
    ("theta", "dim", "factor", "low", "high", "length"),
    [
        (500_000.0, 128, 8.0, 1.0, 4.0, 8192),  # Llama 3.1
        (500_000.0, 64, 32.0, 1.0, 4.0, 8192),  # Llama 3.2 1B
        (1e6, 128, 4.0, 1.0, 4.0, 32768),  # with a stated length
    ],
)
def test_rope_freqs_give_the_rule_back(
    theta: float, dim: int, factor: float, low: float, high: float, length: int
) -> None:
    """The divisors of a Llama 3 file name the rule they were made by, though the file does not hold it."""
    divisors = llama3_divisors(theta, dim, factor, low, high, length).tolist()
    rule = rule_of_divisors(divisors, theta, dim, length, 131072)
    assert isinstance(rule, rw.scaling.Llama3)
    assert astuple(rule) == pytest.approx([factor, low, high, length], rel=1e-4)


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32_768}


@pytest.mark.parametrize(
    ("metadata", "divisors", "trained"),
    [
        ({"rope.freq_base": 5e5}, llama3_divisors(5e5, 64, 32.0, 1.0, 4.0, 8192).tolist(), (131_072, True)),
        ({"rope.freq_base": 1e5}, llama3_divisors(1e5, 64, 16.0, 1.0, 4.0, 8192).tolist(), (8192, None)),
        (YARN, [], (32_768, None)),
        ({**YARN, "rope.scaling.finetuned": True}, [], (131_072, True)),
    ],
)
def test_what_a_file_says_of_the_training(
    metadata: dict[str, Any], divisors: list[float], trained: tuple[int, bool | None], tmp_path: Path
) -> None:
    """Llama 3.2 is known by its numbers; `finetuned` says it of any other; else it is open."""
    stated = {"context_length": 131_072, "attention.key_length": 64, **metadata}
    rope = Checkpoint.open(header(tmp_path / "m.gguf", "llama", stated, tuple(divisors))).ropes.present_ropes[0]
    assert (rope.trained_length, rope.scaling_is_trained) == trained


@pytest.mark.parametrize(
    ("stated", "named"),
    [
        ({"yarn_ext_factor": 1.0, "yarn_attn_factor": 1.138629436, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}, []),
        ({"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0}, ["start it with --yarn-beta-fast 16 --yarn-beta-slow 2,"]),
        ({"yarn_ext_factor": 0.5, "yarn_attn_factor": 1.5}, ["start it with --yarn-ext-factor 0.5, or use"]),
    ],
)
def test_numbers_of_yarn_that_llama_cpp_ignores(stated: dict[str, float], named: list[str]) -> None:
    """`TextModel.set_gguf_parameters` writes them; test_a_real_llama_cpp_agrees runs them in b11549."""
    metadata = {"context_length": 131_072, **YARN, **{f"rope.scaling.{key}": value for key, value in stated.items()}}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rope = scaled_rope(metadata, {}, 64, "a file", arch="qwen3")
    assert rope.scaling == rw.scaling.YaRN(4.0, 32_768)
    assert [[words in str(one.message) for words in named] for one in caught] == [[True] for _ in named]


@given(st.lists(st.floats(1, 64), min_size=4, max_size=4))
@settings(max_examples=50, deadline=None)
def test_any_divisors_are_kept_exactly(divisors: list[float]) -> None:
    """What no Llama 3 rule reproduces is kept as it is: the frequencies are theta^(-2i/d) / divisor."""
    rule = rule_of_divisors(divisors, 1e4, 8, None, 64)
    rope = rw.RopeConfig(8, interleaved=False, scaling=rule, max_position_embeddings=64)
    frequencies = rw.inverse_frequencies(rope, seq_len=50)
    expected = [1e4 ** (-2 * i / 8) / divisor for i, divisor in enumerate(divisors)]
    assert frequencies.inv_freq[0].tolist() == pytest.approx(expected, rel=2e-6)
    assert frequencies.attention_factor == 1.0


def typed(kind: str, **more: float) -> dict[str, Any]:
    """The metadata of a kind of scaling."""
    return {"llama.rope.scaling.type": kind, **{f"llama.rope.scaling.{key}": value for key, value in more.items()}}


# a model, and its rule in the metadata; Llama 3.1's is a tensor of divisors alone; see test_gguf_foreign for Phi-3's
SCALINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("llama", typed("none")),
    "linear": ("llama-linear", typed("linear", factor=2.0)),
    "scale_linear": ("llama-linear", {"llama.rope.scale_linear": 2.0}),
    "yarn": ("llama-yarn", typed("yarn", factor=4.0, original_context_length=32)),
    "llama3": ("llama-llama3", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SCALINGS)
def test_scalings(name: str, tmp_path: Path) -> None:
    """As llama.cpp stores them; the dtype is the one asked for."""
    case, metadata = SCALINGS[name]
    theirs, extra = make(case), {}
    if name == "llama3":
        extra = {"rope_freqs.weight": llama3_divisors(5e5, 8, 8.0, 1.0, 4.0, 32)}
    path = write_gguf(tmp_path / "m.gguf", theirs.config, theirs.state_dict(), metadata=metadata, extra=extra)
    assert (logits(load(path), input_ids(48)) - logits(theirs, input_ids(48))).abs().max() < 1e-5
    assert {weight.dtype for weight in load(path, torch.bfloat16).parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.attention.scale": 0.5}, r"unknown key.*attention\.scale"),
        ({"llama.attention.causal": False}, r"unknown key.*attention\.causal"),
        ({"llama.attention.value_length": 4}, "same width"),
        ({"llama.rope.spiral": 0.5}, "unknown rope scaling"),
        ({"llama.context_length": "long"}, "context_length"),
        ({"split.count": 2}, "one part of a split GGUF"),
        ({"llama.embedding_length": 1_526_726_688}, "embedding_length"),
        ({"llama.feed_forward_length": 1_000_000}, r"shape of a tensor differs.*ffn_gate.*1000000"),
        ({"llama.rope.freq_base": 0.0}, "must be above 0"),
        ({"llama.block_count": 2_000_000_000}, "num_hidden_layers  2000000000"),
    ],
)
def test_metadata_that_is_refused(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    """What would change the computation and is not understood is named."""
    theirs = make("llama")
    path = write_gguf(tmp_path / "model.gguf", theirs.config, theirs.state_dict(), metadata=metadata)
    with pytest.raises(RopeError, match=f"(?s){message}"):
        load(path)


def test_architectures_and_tensors_that_are_refused(tmp_path: Path) -> None:
    """Unknown architecture, a missing tensor, one too many, one of another shape, a file that is no GGUF."""
    theirs = make("llama")
    state = theirs.state_dict()
    path = tmp_path / "model.gguf"
    with pytest.raises(RopeError, match=r"(?s)not read from GGUF files.*gemma"):
        load(write_gguf(path, theirs.config, state, arch="gemma"))
    fewer = {name: tensor for name, tensor in state.items() if "layers.2.mlp.up" not in name}
    with pytest.raises(RopeError, match=r"(?s)missing or unknown.*missing_keys.*layers\.2\.mlp\.up_proj\.weight"):
        load(write_gguf(path, theirs.config, fewer))
    with pytest.raises(RopeError, match=r"(?s)unexpected_keys.*blk\.0\.ffn_gate_exps\.weight"):
        load(write_gguf(path, theirs.config, state, extra={"blk.0.ffn_gate_exps.weight": torch.zeros(2, 2)}))
    narrow = state | {"model.norm.weight": torch.zeros(31)}
    with pytest.raises(RopeError, match=r"(?s)shape of a tensor differs.*output_norm.*\(31,\)"):
        load(write_gguf(path, theirs.config, narrow))
    whole = write_gguf(path, theirs.config, state).read_bytes()
    path.write_bytes(whole.replace(b"blk.0.attn_k.weight", b"blk.0.attn_v.weight"))
    with pytest.raises(RopeError, match=r"(?s)two tensors have the same name.*blk\.0\.attn_v"):
        load(path)
    path.write_bytes(b"not a model")
    with pytest.raises(RopeError, match=r"(?s)not a GGUF file.*model\.gguf"):
        load(path)


def loss(model: Any, ids: list[int]) -> float:
    """Mean loss in nats of a text's own next tokens."""
    tokens = torch.tensor([ids])
    return float(torch.nn.functional.cross_entropy(logits(model, tokens)[0, :-1], tokens[0, 1:]))


@pytest.mark.slow
def test_smollm2_loads_as_it_should() -> None:
    """The real file: shapes, rope and tokenizer, and 3.77 nats on Moby-Dick as ../shared/data/README.md measured."""
    model, tokenizer = load_gguf(smollm2())
    assert model.num_parameters() == 134_515_008
    rope = rw.RopeConfig.from_hf(model.config.to_dict())
    assert rope == rw.RopeConfig(64, interleaved=False, theta=1e5, max_position_embeddings=8192)
    assert tokenizer is not None
    text = data("moby_dick.txt").read_text(encoding="utf-8")[30_000:40_000]
    assert loss(model, tokenizer.encode(text)[:1024]) == pytest.approx(3.77, abs=0.01)


# --- files that are cut off or damaged


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small GGUF, rope scaling and tokenizer included."""
    theirs = make("llama", num_hidden_layers=1)
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    metadata: dict[str, Any] = {
        "llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32, "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": ["a", "b", "ab", "<end>"],
        "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.add_bos_token": True,
    }  # fmt: skip
    if request.param == "sentencepiece":
        metadata |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [-1.0, -2.0, -3.0, -4.0]}
    return write_gguf(path, theirs.config, theirs.state_dict(), metadata=metadata).read_bytes()


HEADER = 2200  # bytes of a small file that hold its metadata and the names of its tensors


@given(st.integers(0, HEADER) | st.integers(0, 10**9))
@settings(max_examples=40, deadline=None)
def test_truncation_anywhere_is_named(small: bytes, tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    """A file cut at any byte is a RopeError that names it."""
    path = tmp_path_factory.mktemp("cut") / "cut.gguf"
    path.write_bytes(small[: end % len(small)])
    with pytest.raises(RopeError, match=r"cut\.gguf"):
        load_gguf(path)


@given(st.lists(st.tuples(st.integers(0, HEADER), st.integers(0, 255)), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
def test_damage_is_never_a_traceback(
    small: bytes, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    """A few bytes of the header changed: the file loads, or a RopeError says why not."""
    changed = bytearray(small)
    for at, value in changes:
        changed[at] = value
    path = tmp_path_factory.mktemp("damage") / "damaged.gguf"
    path.write_bytes(bytes(changed))
    with suppress(RopeError):
        load_gguf(path)


def test_versions_and_byte_order(small: bytes, tmp_path: Path) -> None:
    """Version 1 and big-endian files are refused by name."""
    path = tmp_path / "old.gguf"
    for version in (struct.pack("<I", 1), struct.pack(">I", 3)):
        path.write_bytes(small[:4] + version + small[8:])
        with pytest.raises(RopeError, match="unknown GGUF version"):
            load_gguf(path)


def test_arrays_within_arrays(tmp_path: Path) -> None:
    """llama.cpp refuses them, too; no RecursionError."""
    path = tmp_path / "nested.gguf"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 4) + b"deep" + struct.pack("<I", 9)
    path.write_bytes(header + struct.pack("<IQ", 9, 1) * 5000 + struct.pack("<IQI", 4, 1, 7))
    with pytest.raises(RopeError, match="unknown metadata type"):
        GGUFFile(path)
