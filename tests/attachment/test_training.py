"""Training through an attached model: adapters, activation checkpointing, the meta device, TRL's trainer."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import ropewalk as rw
from tests.attachment.families import apart, small_model

IDS = torch.randint(3, 64, (2, 80), generator=torch.Generator().manual_seed(1))
OLD_NAME = "ignore:`is_gradient_checkpointing`:FutureWarning"  # peft asks transformers by it


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Of each trained weight, for the language model's loss."""
    model.zero_grad()
    model(input_ids=IDS, labels=IDS).loss.backward()
    return {name: w.grad.clone() for name, w in model.named_parameters() if w.grad is not None}


@pytest.mark.filterwarnings(OLD_NAME)
@pytest.mark.parametrize("method", [None, "yarn", "dca"])
def test_an_adapters_gradients(method):
    """LoRA's: without a method the model's own; under one the same whether attached inside or around peft's wrapper."""
    from peft import LoraConfig, get_peft_model

    settings = LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj"], init_lora_weights=False)
    options = {} if method is None else {"target": 256}

    def adapted(attach: str) -> dict[str, Tensor]:
        base = small_model("llama", num_hidden_layers=2)
        if attach == "inside":
            rw.attach(base, method, **options)
        torch.manual_seed(0)
        model = get_peft_model(base, settings)
        if attach == "around":
            rw.attach(model, method, **options)
        return gradients(model)

    own, inside, around = (adapted(how) for how in ("never", "inside", "around"))
    assert all("lora" in name for name in own)
    assert apart(inside, around) == 0.0
    assert apart(own, inside) < 2e-5 if method is None else apart(own, inside) > 1e-2


@pytest.mark.parametrize("method", [None, "yarn", "dca"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(method, reentrant):
    """What is computed again in the backward pass gives the same gradients."""
    model = small_model("llama", num_hidden_layers=2)
    rw.attach(model, method, **({} if method is None else {"target": 256}))
    model.train()
    kept = gradients(model)
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    assert apart(kept, gradients(model)) < 1e-6


def test_built_on_the_meta_device():
    """Attached there, materialised and loaded, it is right, although the live frequencies are not."""
    from transformers import AutoModelForCausalLM

    whole = small_model("llama", num_hidden_layers=2)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(whole.config).eval()
    with pytest.raises(rw.RopeError, match="meta device"):
        rw.attach(model, "dca", target=256)
    assert rw.attachment.attachment_of(model) is None
    handle = rw.attach(model, "yarn", target=256)
    assert handle.difference is None
    model.to_empty(device="cpu")
    model.load_state_dict(whole.state_dict())
    assert not torch.equal(model.model.rotary_emb.inv_freq, whole.model.rotary_emb.inv_freq)
    rw.attach(whole, "yarn", target=256)
    with torch.no_grad():
        assert torch.equal(model(IDS).logits, whole(IDS).logits)
    handle.detach()
    with pytest.raises(rw.RopeError, match="to_empty"):
        rw.attach(model)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["dca", "yarn"])
def test_checkpoints_of_the_trainer(tmp_path, method):
    """Each is written, resumes to the weights of a run without a stop, and is loaded with its method."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

    def run(folder: Path, steps: int, resume: bool) -> nn.Module:
        model = small_model("llama", num_hidden_layers=2)
        rw.attach(model, method, target=256)
        settings = TrainingArguments(
            output_dir=str(folder), max_steps=steps, save_steps=1, per_device_train_batch_size=2, learning_rate=1e-3,
            lr_scheduler_type="constant", report_to="none", use_cpu=True, disable_tqdm=True, logging_strategy="no",
        )  # fmt: skip
        rows = [{"input_ids": ids, "labels": ids} for ids in IDS]
        Trainer(model=model, args=settings, train_dataset=rows).train(resume_from_checkpoint=resume)
        return model.eval()

    with pytest.warns(UserWarning, match="cannot be written") if method == "dca" else nullcontext():
        whole = run(tmp_path / "whole", 2, False)
        run(tmp_path / "parts", 1, False)
        resumed = run(tmp_path / "parts", 2, True)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "parts" / "checkpoint-2").eval()
    rw.attach(loaded)
    with torch.no_grad():
        assert torch.equal(resumed(IDS).logits, whole(IDS).logits)
        assert (loaded(IDS).logits - whole(IDS).logits).abs().max() <= 1e-4
