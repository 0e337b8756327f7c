"""The Trainer's callback: a right model trains, a wrong one stops before the first update or is logged."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.errors import RopeError

transformers = pytest.importorskip("transformers")

from ropewalk.audit import RopeCheck  # noqa: E402
from tests.parity.causal import small_model  # noqa: E402


def trainer(folder: Path, model: Any, callback: RopeCheck) -> Any:
    """A Trainer of two updates."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=2, use_cpu=True, per_device_train_batch_size=2, report_to="none",
        disable_tqdm=True, save_strategy="no", logging_steps=100,
    )  # fmt: skip
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(4)]
    made = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback])
    made.remove_callback(transformers.trainer_callback.PrinterCallback)
    return made


def test_a_right_model_trains(tmp_path: Path) -> None:
    """No finding, and both updates run."""
    callback = RopeCheck()
    made = trainer(tmp_path, small_model("llama"), callback)
    made.train()
    assert (callback.findings, made.state.global_step) == ((), 2)


def test_a_wrong_model_stops_or_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A model that was cast to 16 bits stops before the first update; with strict=False it trains."""
    model = small_model("llama").bfloat16()
    made = trainer(tmp_path, model, RopeCheck())
    with pytest.raises(RopeError, match=r"RopeCheck: the rotary modules(.|\n)*dtype bfloat16"):
        made.train()
    assert made.state.global_step == 0
    caplog.clear()
    callback = RopeCheck(strict=False)
    trainer(tmp_path, model, callback).train()
    assert callback.findings[0].code == "dtype"
    logged = [record for record in caplog.records if record.name == "ropewalk.audit"]
    assert logged[0].levelno == logging.ERROR
    assert "dtype bfloat16, expected float32" in logged[0].getMessage()


def test_a_wrapped_model_and_another_config(tmp_path: Path) -> None:
    """The config of the model inside a wrapper counts; one that is passed replaces it."""
    model = small_model("llama")
    callback = RopeCheck(strict=False)
    callback.on_train_begin(None, None, None, model=torch.nn.Sequential(model))
    assert callback.findings == ()
    fields = model.config.to_dict()
    fields["rope_parameters"]["rope_theta"] = 5e5
    other = RopeCheck(fields)
    with pytest.raises(RopeError, match="theta 10000 in place of 500000"):
        other.on_train_begin(None, None, None, model=model)
