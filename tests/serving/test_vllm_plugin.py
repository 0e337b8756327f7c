"""The plug-in on stand-ins with the interface of vLLM's rotary layers: vLLM itself cannot be installed here."""

from __future__ import annotations

import importlib
import logging
import math
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.frequencies import inverse_frequencies
from ropewalk.serving.vllm_plugin import LAYERS, VARIABLE, register

pytest.importorskip("transformers")

YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
MROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64,
        "short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
DEEPSEEK = {**YARN, "rope_type": "deepseek_yarn", "mscale": 1.0, "mscale_all_dim": 1.0}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
BLOCKS = {"plain": None, "yarn": YARN, "llama3": LLAMA3, "mrope": MROPE, "longrope": LONG, "dynamic": DYNAMIC,
          "deepseek": DEEPSEEK, "partial": PARTIAL, "linear": {**DYNAMIC, "rope_type": "linear"}}  # fmt: skip


class Layer(nn.Module):
    """The interface of vLLM's RotaryEmbedding: `cos_sin_cache` with the cosines, then the sines."""

    def __init__(self, cache: Tensor, neox: bool, name: str = "cos_sin_cache") -> None:
        super().__init__()
        self.register_buffer(name, cache, persistent=False)
        self.is_neox_style = neox


def cache_of(frequencies: Tensor, factor: float, rows: int) -> Tensor:
    x = torch.arange(rows, dtype=torch.float32, device="cpu")[:, None] * frequencies.float()
    return torch.cat((x.cos() * factor, x.sin() * factor), dim=-1)


def make(head: int, longest: int, neox: bool, block: dict[str, Any] | None, dtype: torch.dtype) -> Layer:
    """What vLLM's classes compute, with the lengths of their tables; the frequencies are transformers'."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    block = {"rope_type": "default", "rope_theta": 1e4, **(block or {})}
    kind = block["rope_type"] = block["rope_type"].removeprefix("deepseek_")
    width = int(head * block.pop("partial_rotary_factor", 1.0))
    config = LlamaConfig(head_dim=width, max_position_embeddings=longest, rope_parameters=block)

    def cache(rows: int, length: int) -> Tensor:
        if kind == "default":
            return cache_of(block["rope_theta"] ** (-torch.arange(0, width, 2) / width), 1.0, rows)
        return cache_of(*ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length), rows)

    if kind == "longrope":
        original = block["original_max_position_embeddings"]
        both = torch.cat((cache(original, 1), cache(longest, original + 1)))
        return Layer(both.to(dtype), neox, "long_short_cos_sin_cache")
    rows = math.ceil(longest * block["factor"]) if kind in ("linear", "dynamic") else longest
    rows *= 4 if "mrope_section" in block else 1
    with torch.device("cpu"):
        return Layer(cache(rows, rows).to(dtype), neox)


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Modules in place of vLLM's, with the newest `get_rope`, a model file that imports it, and a config."""
    state = SimpleNamespace(change=lambda layer: None, config=None, dtype=torch.float32)

    def get_rope(head_size: int, max_position: int, is_neox_style: bool = True,
                 rope_parameters: dict[str, Any] | None = None, dtype: torch.dtype | None = None) -> Layer:  # fmt: skip
        layer = make(head_size, max_position, is_neox_style, rope_parameters, dtype or state.dtype)
        state.change(layer)
        return layer

    def get_current_vllm_config() -> Any:
        if state.config is None:
            raise AssertionError("Current vLLM config is not set.")
        return SimpleNamespace(model_config=SimpleNamespace(hf_text_config=state.config))

    names = LAYERS.split(".")
    modules = {".".join(names[: i + 1]): ModuleType(".".join(names[: i + 1])) for i in range(len(names))}
    modules |= {name: ModuleType(name) for name in ("vllm.config", "vllm.model_executor.models.llama")}
    modules[LAYERS].get_rope = modules["vllm.model_executor.models.llama"].get_rope = get_rope  # type: ignore
    modules["vllm.config"].get_current_vllm_config = get_current_vllm_config  # type: ignore
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv(VARIABLE, raising=False)
    state.layers, state.models = modules[LAYERS], modules["vllm.model_executor.models.llama"]
    return state


def messages(caplog: pytest.LogCaptureFixture, level: int = logging.WARNING) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= level]


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("neox", [True, False])
def test_right_layers_pass(vllm: SimpleNamespace, caplog: pytest.LogCaptureFixture, name: str, neox: bool) -> None:
    """Each of vLLM's rules agrees with float64, in both pairings; the log says so."""
    caplog.set_level(logging.INFO, "vllm.ropewalk")
    register()
    layer = vllm.layers.get_rope(16, 256, neox, BLOCKS[name])
    assert isinstance(layer, Layer)
    assert messages(caplog) == []
    assert any("agrees with float64" in message for message in messages(caplog, logging.INFO))


def frequencies_of(rope: RopeConfig) -> Callable[[Layer], None]:
    def change(layer: Layer) -> None:
        layer.cos_sin_cache = cache_of(inverse_frequencies(rope, 1).inv_freq.sum(0), 1.0, 256)

    return change


FAULTS = {
    "theta": (YARN, frequencies_of(RopeConfig(16, interleaved=False)), "no scaling, theta 10000 in place of 1000000"),
    "no scaling": (LLAMA3, frequencies_of(RopeConfig(16, interleaved=False, theta=5e5)), ": no scaling"),
    "attention factor": (YARN, lambda layer: layer.cos_sin_cache.div_(0.1 * math.log(4) + 1), "without its attention"),
    "partial": (PARTIAL, frequencies_of(RopeConfig(16, interleaved=False)), "partial factor ignored"),
    "pairing": (None, lambda layer: setattr(layer, "is_neox_style", False), "is_neox_style: is False, expected True"),
    "short": (None, lambda layer: setattr(layer, "cos_sin_cache", layer.cos_sin_cache[:100]), "rows for 100 positions"),
    "empty": (None, lambda layer: layer.cos_sin_cache.fill_(math.nan), "after to_empty()"),
    "long factors": (LONG, lambda layer: layer.long_short_cos_sin_cache[64:].copy_(
        cache_of(1e4 ** (-torch.arange(8) / 8), 1.2, 256)), "long factors"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_logged_and_refused(
    vllm: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By default a wrong layer is logged; with refuse it stops the start."""
    block, vllm.change, words = FAULTS[name]
    original = vllm.layers.get_rope
    register()
    assert isinstance(vllm.models.get_rope(16, 256, True, block), Layer)
    assert any(words in message for message in messages(caplog, logging.ERROR)), messages(caplog)
    vllm.layers.get_rope = original
    monkeypatch.setenv(VARIABLE, "refuse")
    register()
    with pytest.raises(RopeError, match="ROPEWALK_VLLM_CHECK=log"):
        vllm.layers.get_rope(16, 256, True, block)


def test_the_model_config_counts(vllm: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    """A model file that drops the config's scaling gets a layer that is right by its arguments only."""
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 256}
    vllm.config = {**config, "rope_parameters": YARN}
    register()
    vllm.layers.get_rope(16, 256, True, {"rope_type": "default", "rope_theta": 1e6})
    assert any("unlike the model's config" in one and ": no scaling" in one for one in messages(caplog, logging.ERROR))
    caplog.clear()
    vllm.layers.get_rope(16, 256, True, YARN)
    vllm.layers.get_rope(32, 256, True, None)  # of a vision tower, with another head size
    assert messages(caplog) == []


def test_16_bits_are_a_warning_and_never_refused(
    vllm: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM keeps its tables in the dtype of the model, also under a default device and dtype."""
    monkeypatch.setenv(VARIABLE, "refuse")
    vllm.dtype = torch.bfloat16
    register()
    with torch.device("meta"):
        vllm.layers.get_rope(16, 256, True, YARN)
    (message,) = messages(caplog)
    assert "dtype bfloat16: cos and sin have a rounding error of up to 3.9e-03" in message


def test_the_old_signature(vllm: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    """Before rope_parameters, theta and the width were arguments of their own."""

    def get_rope(head_size: int, rotary_dim: int, max_position: int, base: float, is_neox_style: bool = True,
                 rope_scaling: dict[str, Any] | None = None, dtype: torch.dtype | None = None,
                 partial_rotary_factor: float = 1.0) -> Layer:  # fmt: skip
        block = {**(rope_scaling or {"rope_type": "default"}), "rope_theta": base}
        share = rotary_dim * partial_rotary_factor / head_size
        return make(head_size, max_position, is_neox_style, {**block, "partial_rotary_factor": share}, torch.float32)

    vllm.layers.get_rope = get_rope
    register()
    assert isinstance(vllm.layers.get_rope(16, 16, 256, 5e5), Layer)
    assert isinstance(vllm.layers.get_rope(16, 16, 256, 5e5, rope_scaling=YARN, partial_rotary_factor=0.5), Layer)
    assert messages(caplog) == []


def test_it_never_breaks_vllm(
    vllm: SimpleNamespace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unknown rules are a note, failures of the check a log line; the check is not installed twice, and off is off."""
    caplog.set_level(logging.INFO, "vllm.ropewalk")
    original = vllm.layers.get_rope
    monkeypatch.setenv(VARIABLE, "off")
    register()
    assert vllm.layers.get_rope is original
    monkeypatch.setenv(VARIABLE, "refuse")
    register()
    checked = vllm.layers.get_rope
    register()
    assert vllm.layers.get_rope is checked is vllm.models.get_rope
    monkeypatch.setattr("ropewalk.serving.vllm_plugin.check", lambda *_: 1 / 0)
    assert isinstance(checked(16, 256), Layer)
    assert "a rotary layer was not checked" in messages(caplog, logging.ERROR)[0]
    del sys.modules[LAYERS].get_rope  # type: ignore[attr-defined]
    register()
    assert "the rotary layers are not checked" in messages(caplog, logging.ERROR)[1]


def test_the_layers_are_not_imported_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where vLLM has not imported its layers, they are wrapped when it does, and other imports work."""
    folder = tmp_path.joinpath(*LAYERS.split("."))
    folder.mkdir(parents=True)
    for part in (folder, *list(folder.parents)[:3]):
        (part / "__init__.py").touch()
    (folder / "__init__.py").write_text("def get_rope(head_size, max_position):\n    return None\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    with patch.dict(sys.modules):
        register()
        register()
        assert not any(name.startswith("vllm") for name in sys.modules)
        get_rope = importlib.import_module(LAYERS).get_rope
        assert get_rope.ropewalk_checks
        assert get_rope(16, 256) is None
        assert not any("Watcher" in type(finder).__name__ for finder in sys.meta_path)


def test_a_rule_of_vllm_only_is_a_note(vllm: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    """A rule that no Hugging Face config has is not checked, and the log says so."""
    caplog.set_level(logging.INFO, "vllm.ropewalk")
    vllm.layers.get_rope = lambda head_size, max_position, rope_parameters: Layer(torch.ones(4, 16), True)
    register()
    vllm.layers.get_rope(16, 256, {"rope_type": "xdrope", "alpha": 1000.0})
    assert "was not checked" in messages(caplog, logging.INFO)[0]


def test_the_entry_point_exists() -> None:
    """vLLM finds the function in its group of the installed package."""
    (found,) = entry_points(group="vllm.general_plugins")
    assert found.load() is register
