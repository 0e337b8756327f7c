"""Checkpoints of a training run: weights, optimizer state and adapters as safetensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
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


OPTIMIZER = "optimizer.safetensors"
TRAINED = "trained.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name to a safetensors file."""
    need("safetensors.torch").save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file of a checkpoint; `RopeError` where it is missing or damaged."""
    read = need("safetensors.torch").load_file
    try:
        tensors: dict[str, Tensor] = read(path)
    except Exception as error:  # safetensors has its own exception, which is not importable when it is missing
        raise RopeError(
            "train: a checkpoint cannot be read.",
            facts={"file": str(path), "error": str(error)},
            cure="Remove this checkpoint's folder: the run continues from the one before it.",
        ) from error
    return tensors


def write_training_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write AdamW's state by parameter (`exp_avg.NAME`, ...) and torch's generators' into a checkpoint's folder."""
    tensors = {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for kind, value in optimizer.state[parameter].items()
    }
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    write_tensors(folder / OPTIMIZER, tensors)


def read_training_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore what `write_training_state` wrote. Call it last: making or loading a model draws random numbers."""
    tensors = read_tensors(folder / OPTIMIZER)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            optimizer.state[parameter] = {
                kind: tensors[f"{kind}.{name}"].to(parameter.device) for kind in ("step", "exp_avg", "exp_avg_sq")
            }
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])


def write_trained(folder: Path, model: nn.Module) -> None:
    """Write the parameters that are trained: enough for a model whose frozen rest comes from elsewhere."""
    write_tensors(
        folder / TRAINED, {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    )


@torch.no_grad()
def read_trained(folder: Path, model: nn.Module) -> None:
    """Put into the model what `write_trained` wrote; raises `RopeError` where it was another model's."""
    tensors = read_tensors(folder / TRAINED)
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {name: tuple(parameter.shape) for name, parameter in wanted.items()}:
        raise RopeError(
            "train: the checkpoint holds other tensors than the model trains.",
            facts={"only in one of them": sorted(shapes.keys() ^ wanted.keys())[:4]},
            cure="Begin again (--restart), or continue with the settings that the run began with.",
        )
    for name, parameter in wanted.items():
        parameter.copy_(tensors[name])


def check_rotations(checkpoint: Path, stored: Sequence[str] | None, now: Sequence[str]) -> None:
    """Refuse to go on with other ropes than the checkpoint was trained under; None is said by older checkpoints.

    No tensor tells them apart: without this a model under another YaRN factor would be trained on silently.
    """
    if stored is None or list(stored) == list(now):
        return
    layer = next((at for at, (was, is_) in enumerate(zip(stored, now, strict=False)) if was != is_), None)
    was, is_ = (f"{len(stored)} layers", f"{len(now)} layers") if layer is None else (stored[layer], now[layer])
    raise RopeError(
        "train: the checkpoint was trained under another rope than the model has now.",
        facts={"checkpoint": str(checkpoint), "layer": layer, "in the checkpoint": was, "now": is_},
        cure="Continue with the rope that the run began with, or begin again (--restart).",
    )
