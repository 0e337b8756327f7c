"""The plug-in for vLLM: its line about a model, and the real vLLM with a planted fault."""

from __future__ import annotations

import logging
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from ropewalk.errors import RopeError
from ropewalk.serving.vllm_plugin import VARIABLE, checked, line_of, register

transformers = pytest.importorskip("transformers")

SIZES = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIG = transformers.LlamaConfig(**SIZES)
OTHER = transformers.LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 5e5})


def test_the_line_about_a_model() -> None:
    """It has the class, and the first kind of finding with its cure; a module that receives its tables is none."""
    model = transformers.LlamaModel(CONFIG)
    model.apply_rotary_emb = type("ApplyRotaryEmb", (nn.Module,), {})()
    assert line_of(model, CONFIG) == (logging.INFO, "LlamaModel: the rotary layers agree with the config in float64.")
    level, line = line_of(model, OTHER)
    assert level == logging.ERROR
    assert line.startswith("LlamaModel: frequencies: rotary_emb.inv_freq: pair 7 has")
    assert "theta 10000 in place of 500000" in line
    assert line_of(nn.Linear(2, 2), CONFIG)[0] == logging.WARNING
    model.layers[0].register_buffer("cos_sin_cache", torch.ones(4, 16))
    assert line_of(model, CONFIG, 8)[1].startswith("LlamaModel: short-table: layers.0.cos_sin_cache: has rows for 4")


def test_each_model_has_one_line_and_an_error_may_stop_vllm(caplog: pytest.LogCaptureFixture) -> None:
    """A model's parts have no line of their own; a failure of the check is logged, and nothing else stops vLLM."""
    caplog.set_level(logging.INFO, "vllm.ropewalk")
    model = transformers.LlamaModel(CONFIG)

    def build(config: Any, model_config: Any = None, part: Any = None) -> nn.Module:
        return model if part is None else part(config)

    build = checked(build, refuse=True)
    right, wrong = (
        SimpleNamespace(model_config=SimpleNamespace(hf_config=one, max_model_len=8)) for one in (CONFIG, OTHER)
    )
    assert build(right, part=build) is model
    assert build(wrong, model_config=right.model_config) is model
    assert len(caplog.records) == 2
    with pytest.raises(RopeError, match=f"{VARIABLE}=log"):
        build(wrong)
    assert build(None) is model
    assert "were not checked" in caplog.records[-1].getMessage()


def test_off_and_an_unknown_mode(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """`off` installs nothing; an unknown mode is named, and means `log`; a second call installs nothing more."""
    monkeypatch.setattr(sys, "meta_path", before := [*sys.meta_path])
    monkeypatch.setenv(VARIABLE, "off")
    register()
    assert len(sys.meta_path) == len(before)
    monkeypatch.setattr(sys, "meta_path", [*before])
    monkeypatch.setenv(VARIABLE, "yes")
    register()
    register()
    assert len(sys.meta_path) == len(before) + 1
    assert "is unknown; use log, refuse or off" in caplog.text


def test_the_entry_point_exists() -> None:
    """vLLM finds the function in its group of the installed package."""
    (found,) = entry_points(group="vllm.general_plugins")
    assert found.load() is register


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_in_the_real_vllm(tmp_path: Path) -> None:
    """It says one line about each model, finds a planted fault, and refuses it if told to."""
    plugin = pytest.importorskip("engines.plugin", reason="the source distribution has no benchmarks/")
    if not plugin.PYTHON.is_file():
        pytest.skip("no build/engines/vllm: make engines ENGINES=vllm")
    requests = [{"config": plugin.config_of("llama", "yarn"), "fault": fault} for fault in (False, True)]
    (_, right), (_, wrong) = plugin.answers(requests, tmp_path)
    line = "ropewalk: LlamaForCausalLM: the rotary layers agree with the config in float64."
    assert right["lines"] == [["info", line]]
    ((level, line),) = wrong["lines"]
    assert (level, "cos_sin_cache" in line) == ("error", True)
    (_, right), (_, refused) = plugin.answers(requests, tmp_path / "again", "refuse")
    assert "error" not in right
    assert "RopeError" in refused["error"]
