"""A decoder cut over a mesh: tensor parallel layers, FSDP2 over data and context parallel ranks, and the way back.

All by torch's own means: `parallelize_module`, `fully_shard`, DTensor. Embedding, norms and head are whole on every
tensor-parallel rank, so a head may be tied. Gradients are summed over the ranks, never averaged: each rank's loss is
its share of the batch's mean.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.distributed.mesh import Mesh
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder


def check_fits(config: DecoderConfig, mesh: Mesh) -> None:
    """Refuse a model that cannot be cut so: heads and features that are no multiple of tp, ..."""
    sizes = {
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.intermediate_size,
    }
    if any(size % mesh.tp for size in sizes.values()):
        raise RopeError(
            "train: tensor parallelism gives each process whole heads and an equal part of the feed-forward.",
            facts={"tp": mesh.tp, **sizes},
            cure="Choose a --tp that divides them all.",
        )
    if config.encoding is not None and (mesh.tp > 1 or mesh.cp > 1):
        raise RopeError(
            "train: only models with a rope, or without positions, are cut over heads or within windows.",
            facts={"encoding": config.encoding, "tp": mesh.tp, "cp": mesh.cp},
            cure="Leave out --tp and --cp: --dp works with every encoding.",
        )
    extension = next((each for each in config.extensions if each is not None), None)
    if extension is not None and mesh.cp > 1:
        raise RopeError(
            "train: this method counts each row's tokens itself, so a window cannot be cut.",
            facts={"extension": extension, "cp": mesh.cp},
            cure="Leave out --cp: --dp and --tp work with every method.",
        )


def spread(model: Decoder, mesh: Mesh) -> Decoder:
    """Cut a decoder over a mesh, in place: from now on each process holds its part of every weight.

    The weights must be on the meta device, or the same on every process. Raises `RopeError` where it cannot be cut so.
    """
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    check_fits(model.config, mesh)
    if mesh.device_mesh is None:
        return model
    if mesh.tp > 1:
        for layer in model.layers:
            _share_heads(layer, mesh.device_mesh["tp"])
    options: dict[str, Any] = {"mesh": mesh.fsdp, "mp_policy": MixedPrecisionPolicy(cast_forward_inputs=False)}
    for layer in model.layers:
        fully_shard(layer, **options)
    if model.lm_head is not None:
        fully_shard(model.lm_head, **options)
    fully_shard(model, **options)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
    return model


def _share_heads(layer: nn.Module, mesh: Any) -> None:
    """Tensor parallelism of one layer: heads, and features of the feed-forward."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"}
    plan |= {
        "self_attn.o_proj": RowwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(),
    }
    if getattr(layer.mlp, "gate_proj", None) is not None:
        plan["mlp.gate_proj"] = ColwiseParallel()
    for name in ("q_norm", "k_norm"):  # of heads, of which each rank has a part: its gradients are summed
        if getattr(layer.self_attn, name) is not None:
            plan[f"self_attn.{name}"] = SequenceParallel(sequence_dim=2, use_local_output=True)
    parallelize_module(layer, mesh, plan)


def reshard(model: nn.Module) -> None:
    """Let go of what a forward pass without a backward pass has gathered: every parameter is this process's part again.

    FSDP2 keeps the outermost weights whole until a backward pass: after validation no optimizer knows them.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """A tensor in full on the CPU, of whose parts each process has one: all processes call this together."""
    from torch.distributed.tensor import DTensor, Replicate

    found = tensor.detach()
    if not isinstance(found, DTensor):
        return found.cpu()
    placements = list(found.placements)
    for dim in range(len(placements)):  # one after the other: torch warns where it has to find the order itself
        placements[dim] = Replicate()
        found = found.redistribute(placements=placements)
    return found.to_local().cpu()


def whole_state(model: nn.Module, mesh: Mesh, *, everywhere: bool = False) -> dict[str, Tensor]:
    """The weights in full, by name, on the first process's CPU (on all, if `everywhere`); {} on the others."""
    reshard(model)
    found = {}
    for name, parameter in model.named_parameters():
        tensor = whole(parameter)
        if everywhere or mesh.is_first:
            found[name] = tensor.clone() if tensor.data_ptr() == parameter.data_ptr() else tensor
    return found


@torch.no_grad()
def put_whole(place: Tensor, value: Tensor) -> None:
    """Put this process's part of a whole tensor, which every process has, where it belongs."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    if isinstance(place, DTensor):
        local = local_part(place)
        given = value.to(device=local.device, dtype=local.dtype)
        local.copy_(distribute_tensor(given, place.device_mesh, place.placements, src_data_rank=None).to_local())
    else:
        place.copy_(value)


def of_meshes(parameters: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters, those that are cut over one mesh together: an optimizer steps through each such group."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in parameters:
        groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(groups.values())


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], largest: float, mesh: Mesh) -> float:
    """Scale all gradients so that their norm over all processes is at most `largest`; returns the norm before."""
    if not mesh.several:
        return float(torch.nn.utils.clip_grad_norm_(parameters, largest))
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    squares = torch.zeros((), dtype=torch.float64, device=mesh.device)
    for grad in grads:
        if _counts(grad, mesh):
            squares += local_part(grad).double().square().sum()
    norm: float = mesh.total([float(squares)])[0] ** 0.5
    if norm > largest:
        for grad in grads:
            local_part(grad).mul_(largest / (norm + 1e-6))
    return norm


def _counts(grad: Tensor, mesh: Mesh) -> bool:
    """Whether this process's part of a gradient is not another's as well."""
    of: Any = grad
    placements = dict(zip(of.device_mesh.mesh_dim_names or (), of.placements, strict=False))
    return mesh.tp_rank == 0 or ("tp" in placements and bool(placements["tp"].is_shard()))


def local_part(tensor: Any) -> Tensor:
    """This process's part of a tensor that may be cut; without a gradient."""
    local: Tensor = tensor.detach()
    return local.to_local() if hasattr(local, "to_local") else local
