"""A checkpoint's tensors: trained parameters, the optimizer's state and the random generators', by safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ropewalk.distributed.mesh import Mesh
from ropewalk.distributed.sharding import put_whole, whole
from ropewalk.errors import RopeError
from ropewalk.optional import need

OPTIMIZER = "optimizer.safetensors"
TRAINED = "trained.safetensors"
GATHERED = "gathered.safetensors"
"""Of a run on several processes: weights and the optimizer's state in full, and every process's generators."""


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
    """Write the optimizer's state and the states of torch's generators into a checkpoint's folder."""
    write_tensors(folder / OPTIMIZER, {**optimizer_tensors(model, optimizer), **random_states()})


def read_training_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore what `write_training_state` wrote. Call it last: making or loading a model draws random numbers."""
    tensors = read_tensors(folder / OPTIMIZER)
    restore_optimizer(model, optimizer, tensors)
    restore_random(tensors)


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


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's state by parameter: `exp_avg.NAME`, `exp_avg_sq.NAME`, `step.NAME`."""
    return {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for kind, value in optimizer.state[parameter].items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put into the optimizer what `optimizer_tensors` gave."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        optimizer.state[parameter] = {
            kind: tensors[f"{kind}.{name}"].to(parameter.device) for kind in ("step", "exp_avg", "exp_avg_sq")
        }


def random_states() -> dict[str, Tensor]:
    """The states of torch's generators."""
    states = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(tensors: Mapping[str, Tensor]) -> None:
    """Put torch's generators into the states that `random_states` gave."""
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])


def whole_training_state(model: nn.Module, optimizer: torch.optim.Optimizer, mesh: Mesh) -> dict[str, Tensor]:
    """Trained weights, the optimizer's state, and each process's generators: in full, gathered by all processes."""
    weights = {f"model.{name}": each for name, each in model.named_parameters() if each.requires_grad}
    tensors = {name: whole(each) for name, each in {**weights, **optimizer_tensors(model, optimizer)}.items()}
    for name, state in random_states().items():
        tensors[name] = torch.stack(mesh.gathered(state))
    return tensors


def read_whole_state(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, mesh: Mesh) -> None:
    """Restore this process's part of what `whole_training_state` gave, from a file that all processes see."""
    tensors = read_tensors(path)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        put_whole(parameter, tensors[f"model.{name}"])
        state = {"step": tensors[f"step.{name}"].to(parameter.device)}
        for kind in ("exp_avg", "exp_avg_sq"):
            state[kind] = torch.zeros_like(parameter.detach())
            put_whole(state[kind], tensors[f"{kind}.{name}"])
        optimizer.state[parameter] = state
    states = {name: tensors[name] for name in random_states() if name in tensors}
    if all(len(each) > mesh.rank for each in states.values()):
        restore_random({name: each[mesh.rank] for name, each in states.items()})
