"""What each rank of a launcher measures of an attached model that FSDP2 shards; written as JSON.

accelerate shards on accelerators alone: on a CPU its state says MULTI_CPU, and FSDP is passed over. Here the state is
told that it is FSDP, and everything after that is accelerate's own. The way through transformers' `distributed_config`
needs no such help.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType
from torch import Tensor, nn
from transformers import LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.distributed import DistributedConfig

import ropewalk as rw
from tests.attachment.families import apart, small_model

STEPS, RATE, LENGTH, FAR = 3, 0.1, 80, 1_000_000
IDS = torch.randint(3, 64, (2 * STEPS, LENGTH), generator=torch.Generator().manual_seed(1))
CASES = (("none", False), ("yarn", True), ("dca", False))  # a method, attached before sharding or after
TRAINED = ("yarn",)


def attach(model: nn.Module, method: str) -> rw.attachment.Attachment:
    """Under a method to four times the trained length, or none."""
    return rw.attach(model) if method == "none" else rw.attach(model, method, target=256)


def accelerator(precision: str = "no") -> Accelerator:
    """accelerate with FSDP2 on gloo."""
    AcceleratorState._reset_state()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    made = Accelerator(cpu=True, mixed_precision=precision)
    if precision != "no":
        plugin.set_mixed_precision(precision)
    made.state.distributed_type, made.state.fsdp_plugin = DistributedType.FSDP, plugin
    return made


def trained(model: nn.Module, optimizer: Any, rows: list[Tensor]) -> tuple[list[float], dict[str, Tensor]]:
    """The loss before each step, over all ranks, and the whole gradients of the first."""
    losses, first = [], {}
    for ids in rows:
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        first = first or {name: full(weight.grad).clone() for name, weight in model.named_parameters()}
        optimizer.step()
        total = loss.detach().clone()
        if type(model).__name__.startswith("FSDP"):
            dist.all_reduce(total)
            total /= dist.get_world_size()
        losses.append(float(total))
    return losses, first


def full(x: Tensor) -> Tensor:
    """The whole of a sharded tensor."""
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def shift(model: nn.Module, ids: Tensor) -> float:
    """By how much a shift of all positions moves a logit."""
    places = torch.arange(ids.shape[1])[None]
    with torch.no_grad():
        near = model(input_ids=ids, position_ids=places).logits
        return float((model(input_ids=ids, position_ids=places + FAR).logits - near).abs().max())


def by_accelerate(method: str, first: bool, rank: int) -> dict[str, Any]:
    """Sharded by `accelerator.prepare`, attached before (`first`) or after it, against one process."""
    whole = small_model("llama", num_hidden_layers=2)
    attach(whole, method)
    losses, gradients = trained(whole, torch.optim.SGD(whole.parameters(), lr=RATE), list(IDS.split(2)))
    model, maker = small_model("llama", num_hidden_layers=2), accelerator()
    if first:
        attach(model, method)
    prepared, optimizer = maker.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    if not first:
        attach(prepared, method)
    rows = [pair[rank : rank + 1] for pair in IDS.split(2)]
    moved = shift(prepared, rows[0])
    ours, sharded = trained(prepared, optimizer, rows)
    off = max(abs(a - b) for a, b in zip(ours, losses, strict=True))
    with torch.no_grad():
        fall = losses[0] - float(whole(input_ids=IDS[:2], labels=IDS[:2]).loss)
    return {
        "class": type(prepared).__name__, "sharded": all(hasattr(w, "full_tensor") for w in prepared.parameters()),
        "gradients": apart(gradients, sharded), "losses": off, "fall": fall, "shift": moved,
    }  # fmt: skip


def in_bfloat16(method: str) -> dict[str, Any]:
    """FSDP's mixed precision: parameters are float32, and the check must know that the forward is not."""
    model, maker = small_model("llama", num_hidden_layers=2), accelerator("bf16")
    prepared, _ = maker.prepare(model, torch.optim.SGD(model.parameters(), lr=RATE))
    handle = attach(prepared, method)
    return {"weights": str(next(prepared.parameters()).dtype), "difference": handle.difference}


class Losses(TrainerCallback):
    """The losses that the Trainer logs."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        """Keep the loss of a step."""
        self.seen += [float((logs or {})["loss"])] if "loss" in (logs or {}) else []


def by_trainer(method: str, folder: Path, rank: int) -> dict[str, Any]:
    """Sharded by `from_pretrained(distributed_config=...)`, attached, trained and saved by transformers' Trainer."""
    source, out = folder / "model", folder / f"out-{method}"
    whole = LlamaForCausalLM.from_pretrained(source)
    attach(whole, method)
    losses, _ = trained(whole, torch.optim.SGD(whole.parameters(), lr=RATE), list(IDS.split(2)))
    model = LlamaForCausalLM.from_pretrained(source, distributed_config=DistributedConfig(fsdp_size=2))
    handle, seen = attach(model, method), Losses()
    settings = TrainingArguments(
        output_dir=str(folder / "run"), max_steps=STEPS, per_device_train_batch_size=1, optim="sgd", weight_decay=0.0,
        learning_rate=RATE, lr_scheduler_type="constant", max_grad_norm=0.0, logging_steps=1, save_strategy="no",
        train_sampling_strategy="sequential", report_to="none", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    rows = [{"input_ids": ids, "labels": ids} for ids in IDS]
    trainer = Trainer(model=model, args=settings, train_dataset=rows, callbacks=[seen])
    trainer.train()
    found: dict[str, Any] = {
        "class": type(trainer.model).__name__, "attached": handle.attached, "steps": len(seen.seen),
        "losses": max(abs(a - b) for a, b in zip(seen.seen, losses, strict=True)) if seen.seen else 0.0,
    }  # fmt: skip
    trainer.model.save_pretrained(out)
    dist.barrier()
    back = LlamaForCausalLM.from_pretrained(out)
    found["rope"] = back.config.rope_parameters["rope_type"]
    with torch.no_grad(), rw.attach(back):
        expected = whole(IDS[:1]).logits
        found["saved"] = float((back(IDS[:1]).logits - expected).abs().max() / expected.abs().max())
    return found


def main() -> None:
    """Everything, as one line of JSON for each rank."""
    torch.set_num_threads(1)
    os.environ["ACCELERATE_USE_FSDP"] = "false"  # the Trainer of the second part must not take accelerate's way
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    found: dict[str, Any] = {}
    for method, first in CASES:
        found[f"accelerate {method} {'before' if first else 'after'}"] = by_accelerate(method, first, rank)
    found["bfloat16 dca"] = in_bfloat16("dca")
    AcceleratorState._reset_state()
    if rank == 0:
        small_model("llama", num_hidden_layers=2).save_pretrained(folder / "model")
    dist.barrier()
    for method in TRAINED:
        found[f"trainer {method}"] = by_trainer(method, folder, rank)
    (folder / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
