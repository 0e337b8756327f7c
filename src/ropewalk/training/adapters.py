"""Low-rank adapters on a model's linear layers, by peft: put in, and added to the weights."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ropewalk.optional import need


def add_adapters(model: nn.Module, rank: int, targets: Sequence[str]) -> None:
    """Put adapters of `rank`, weighted by 2, on the linear layers whose names end so; all other weights are frozen.

    They begin at zero, so that the model computes what it did; their other matrix is drawn by torch's generator.
    Source: Hu et al. 2021, arXiv:2106.09685.
    """
    kit = need("peft", extra="tune")
    settings = kit.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(targets), bias="none")
    kit.inject_adapter_in_model(settings, model)


def merge_adapters(model: nn.Module) -> None:
    """Add the adapters to the weights, in place, and take them out."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if hasattr(child, "lora_A") and hasattr(child, "get_base_layer"):
                child.merge(safe_merge=True)  # type: ignore[operator]
                setattr(module, name, child.get_base_layer())  # type: ignore[operator]
