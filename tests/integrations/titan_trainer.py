# ruff: noqa: E402
"""torchtitan's Trainer on a CPU, as far as it goes: built up to its tokenizer, then one step by hand; prints JSON.

It asks for a GPU twice: for the device's type, and for its name and memory. Both are answered for it here. What is its
own: the override, the model built on the meta device, activation checkpointing, FSDP2, `init_weights`, the optimizer.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

import torch
import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"  # before torchtitan asks

import torch.nn.functional as F
from torchtitan.components import metrics
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel
from torchtitan.trainer import Trainer


class _NoMonitor:
    device_name = "cpu"

    def get_peak_stats(self) -> Any:
        return metrics.DeviceMemStats(0, 0, 0, 0, 0, 0)

    def reset_peak_stats(self) -> None:
        """There are none."""


class _BuiltError(Exception):
    """The model and its optimizer are there."""


def step(imports: list[str], folder: str) -> tuple[dict[str, torch.Tensor], list[str], str]:
    """Logits around one step of the Trainer's optimizer, and gradients; ropes and buffers; the model's class."""
    config = llama3_debugmodel()
    config.training.seq_len, config.training.local_batch_size, config.training.disable_cuda_graphs = 32, 2, True
    config.training.mixed_precision_param = "float32"
    config.override.imports, config.dump_folder = imports, folder
    for layer in config.model_spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()

    class Stopping(type(config.tokenizer)):  # type: ignore[misc]
        def build(self, **_: Any) -> Any:
            raise _BuiltError

    config.tokenizer = Stopping()
    trainer = Trainer.__new__(Trainer)
    with suppress(_BuiltError):
        trainer.__init__(config)  # type: ignore[misc]
    model = trainer.model_parts[0]
    model._skip_lm_head = False
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=1.5 / weight.shape[-1] ** 0.5)
    ids = torch.randint(0, 2048, (2, 32), generator=torch.Generator().manual_seed(1))
    places = torch.arange(32).expand(2, -1)
    logits = model(ids, places)
    F.cross_entropy(logits.flatten(0, 1), ids.flatten()).backward()
    found = {f"gradient of {name}": w.grad.full_tensor().clone() for name, w in model.named_parameters()}
    trainer.optimizers.step()
    with torch.no_grad():
        found |= {"logits": logits.detach(), "logits after a step": model(ids, places)}
    kinds = sorted({type(layer.attention.rope).__qualname__ for layer in model.layers.values()})
    torch.distributed.destroy_process_group()
    return found, kinds + [name for name, _ in model.named_buffers()], type(model).__name__


def main() -> None:
    """Its own rotation against ours."""
    metrics.build_device_memory_monitor = lambda: _NoMonitor()
    own, _, _ = step([], sys.argv[1])
    ours, held, name = step(["ropewalk.integrations.torchtitan.complex_rope"], sys.argv[1])
    size = max(float(x.abs().max()) for key, x in own.items() if key.startswith("gradient"))
    off = {key: float((own[key] - ours[key]).abs().max()) for key in own}
    print(json.dumps({
        "model": name, "held": held, "gradients": max(x for key, x in off.items() if key.startswith("gradient")) / size,
        "logits": off["logits"] / float(own["logits"].abs().max()),
        "after": off["logits after a step"] / float(own["logits"].abs().max()),
        "moved": float((own["logits"] - own["logits after a step"]).abs().max()),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
