"""On a CPU that multiplies half types slowly, checkpoints are computed in float32 unless a dtype is named."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.checkpoints.load import fast_dtype_or_warn, load, save, stored_dtype
from ropewalk.checkpoints.opening import open_reader
from ropewalk.models.classifier import TextClassifier
from ropewalk.models.config import TextClassifierConfig
from ropewalk.tokenizer import TextTokenizer
from ropewalk.verification.adapters import TransformersEngine
from tests.checkpoints.random_models import folder_of, random_model

SLOW = "bfloat16 products are slow on this CPU"


@pytest.fixture(autouse=True)
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without instructions for half types."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model as a folder of bfloat16."""
    path = tmp_path_factory.mktemp("own") / "narrow"
    save(load("tiny", dtype=torch.bfloat16), path)
    return path


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of bfloat16 of a family that transformers computes."""
    path = folder_of("phi3", tmp_path_factory.mktemp("foreign") / "narrow")
    random_model("phi3").bfloat16().save_pretrained(path)
    return path


def dtypes(model: Any) -> set[torch.dtype]:
    """The dtypes of a model's weights."""
    return {weight.dtype for weight in model.parameters()}


def test_load_gives_float32_and_says_so(own: Path) -> None:
    """The stored numbers, widened; a dtype that is named is taken with a warning, the built-in model without one."""
    with pytest.warns(UserWarning, match=f"load: narrow: Computed in float32: {SLOW}. Pass `dtype` to choose."):
        wide = load(own)
    assert dtypes(wide) == {torch.float32}
    with pytest.warns(UserWarning, match=f"load: {SLOW}, and the model's dtype does not change"):
        narrow = load(own, dtype=torch.bfloat16)
    assert dtypes(narrow) == {torch.bfloat16}
    for name, weight in narrow.named_parameters():
        assert torch.equal(wide.get_parameter(name), weight.float())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dtypes(load("tiny")) == {torch.float32}


def test_a_fast_dtype_is_kept(own: Path, foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a CPU of AMD with AVX512-BF16."""
    can = {"avx512_bf16": True, "cpu_name": "AMD EPYC"}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: can)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dtypes(load(own)) == {torch.bfloat16}
        assert open_reader(foreign).dtype == torch.bfloat16
        assert fast_dtype_or_warn(own, "load") is None


def test_a_classifier_too(tmp_path: Path) -> None:
    """`load` widens it."""
    config = TextClassifierConfig(
        vocab_size=257, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        labels=["a", "b"], max_length=16, encoding=rw.RopeConfig(8, interleaved=False),
    )  # fmt: skip
    save(TextClassifier(config).half(), tmp_path / "narrow", tokenizer=TextTokenizer.bytes())
    with pytest.warns(UserWarning, match="float16 products are slow"):
        classifier = load(tmp_path / "narrow")
    assert dtypes(classifier) == {torch.float32}


def test_without_memory_the_stored_dtype_stays(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 needs 1.5 times its bytes."""
    count = sum(weight.numel() for weight in load(own, dtype=torch.bfloat16).parameters())
    for free, kept in ((6 * count, True), (6 * count + 1, False)):
        monkeypatch.setattr("psutil.virtual_memory", lambda free=free: SimpleNamespace(available=free))
        words = "Computed in bfloat16: float32 is several" if kept else "Computed in float32:"
        with pytest.warns(UserWarning, match=f"load: narrow: {words}"):
            assert (fast_dtype_or_warn(own, "load") is None) == kept


def test_the_stored_dtype(own: Path, foreign: Path, tmp_path: Path) -> None:
    """By the headers, without tables of angles; unknown if quantized."""
    from safetensors.torch import load_file, save_file

    assert (stored_dtype(own), stored_dtype(foreign)) == (torch.bfloat16, torch.bfloat16)
    weights, config = load_file(own / "model.safetensors"), json.loads((own / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert stored_dtype(tmp_path) is None  # no weights; the loader reports that
    save_file(weights | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}, tmp_path / "model.safetensors")
    assert stored_dtype(tmp_path) == torch.bfloat16
    save_file(weights | {"model.norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    assert stored_dtype(tmp_path) == torch.float32
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"bits": 4}}))
    assert stored_dtype(tmp_path) is None


@pytest.mark.parametrize(
    "content", [b"", b'?\0\0\0\0\0\0\0{"a": {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}']
)
def test_a_damaged_header_has_no_dtype(content: bytes, tmp_path: Path) -> None:
    """The loader then reports it."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes(content)
    assert stored_dtype(tmp_path) is None


def test_the_readers_of_both_libraries(own: Path, foreign: Path) -> None:
    """`open_reader`, and the engine of verify; a dtype that is named is kept."""
    for folder in (own, foreign):
        with pytest.warns(UserWarning, match=f"open_reader: narrow: Computed in float32: {SLOW}"):
            assert open_reader(folder).dtype == torch.float32
    with pytest.warns(UserWarning, match=f"verify: the engine: narrow: Computed in float32: {SLOW}"):
        assert TransformersEngine.load(foreign).model.dtype == torch.float32
    assert open_reader(foreign, dtype=torch.bfloat16).dtype == torch.bfloat16


def test_attach_warns_and_keeps_the_dtype() -> None:
    """Once, with the cure; a model in float32 gives no warning."""
    model = random_model("phi3").bfloat16()
    with pytest.warns(UserWarning, match=f"attach: {SLOW}.* load the model with dtype=torch.float32") as seen:
        rw.attach(model, "yarn", target=128)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert dtypes(model) == {torch.bfloat16}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rw.attach(random_model("phi3"), "yarn", target=128)
