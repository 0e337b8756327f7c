"""`DoctorCallback`: what it measures of a model in training, what it leaves as it was, what it refuses."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import ropewalk as rw
from ropewalk.diagnosis.callback import DoctorCallback
from ropewalk.errors import RopeError
from ropewalk.layers.tokenizer import TextTokenizer
from ropewalk.layers.training import held_out_windows
from tests.prose import prose
from tests.serving.material import checkpoint

TRAINED, TARGET = 256, 512  # facts need room


@pytest.fixture
def held_out(tmp_path: Path) -> Path:
    """A text to measure on."""
    path = tmp_path / "held out.txt"
    path.write_text(prose(400, 7))
    return path


def trainer(folder: Path, model: Any, callback: DoctorCallback, *, steps: int = 4, lr: float = 1e-2) -> Any:
    """A Trainer of windows of the trained length."""
    windows = held_out_windows([TextTokenizer.bytes().encode(prose(900))], length=TRAINED, limit=2 * steps)
    rows = [{"input_ids": window[:-1], "labels": window[:-1]} for window in windows]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "run"), max_steps=steps, use_cpu=True, per_device_train_batch_size=2, report_to="none",
        remove_unused_columns=False, learning_rate=lr, disable_tqdm=True, save_strategy="no", logging_steps=100,
    )  # fmt: skip
    made = transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=transformers.default_data_collator,
        callbacks=[callback],
    )  # fmt: skip
    made.remove_callback(transformers.trainer_callback.PrinterCallback)
    return made


def model_of(folder: Path) -> Any:
    """A small Llama in training mode."""
    path = checkpoint(folder / "source", max_position_embeddings=TRAINED)
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).train()


def test_it_measures_before_during_and_after(tmp_path: Path, held_out: Path) -> None:
    """After 0, 2 and 4 updates; the numbers are the model's own losses, and change with it."""
    model = model_of(tmp_path)
    handle = rw.attach(model, "yarn", target=TARGET)
    callback = DoctorCallback(TextTokenizer.bytes(), text=held_out, every=2)
    made = trainer(tmp_path, model, callback)
    made.train()
    assert [reading.step for reading in callback.readings] == [0, 2, 4]
    assert model.training
    assert handle.attached
    losses = [reading.metrics()["doctor/loss_within"] for reading in callback.readings]
    assert len(set(losses)) == 3
    logged = [entry["doctor/loss_within"] for entry in made.state.log_history if "doctor/loss_within" in entry]
    assert logged == losses
    assert list(callback.readings[-1].diagnosis.readings) == ["plain", "yarn", "crop"]


def test_adapters_in_another_dtype_are_measured(tmp_path: Path, held_out: Path) -> None:
    """bfloat16 weights with float32 adapters and norms run only under autocast; the callback measures a copy.

    If `log` is set, the numbers are passed to it.
    """
    peft = pytest.importorskip("peft")
    model = model_of(tmp_path).bfloat16()
    rw.attach(model, "yarn", target=TARGET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["norm"]))
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.float()
    callback, seen = DoctorCallback(TextTokenizer.bytes(), text=held_out), list[dict[str, float]]()
    callback.log = seen.append
    made = trainer(tmp_path, model, callback, steps=1)
    callback.on_train_begin(made.args, made.state, made.control, model=model)
    assert seen == [callback.readings[0].metrics()]
    assert set(seen[0]) == {"doctor/loss_within", "doctor/found_beyond", "doctor/beyond_minus_crop"}
    assert np.isfinite(list(seen[0].values())).all()
    assert {weight.dtype for weight in model.parameters()} == {torch.float32, torch.bfloat16}


def test_a_model_without_a_method_is_refused(tmp_path: Path) -> None:
    """There is no length to measure up to."""
    model = model_of(tmp_path)
    for attach in (False, True):
        if attach:
            rw.attach(model)
        with pytest.raises(RopeError, match="not attached to a method with a target"):
            trainer(tmp_path, model, DoctorCallback(TextTokenizer.bytes()), steps=1).train()
