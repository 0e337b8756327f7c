"""What one rank of a mesh holds and sends in a training step: planned on the meta device, with no process but this one.

torch's fake process group stands for all ranks: the model is built on the meta device, cut by tensor parallelism and
FSDP2 over data and context parallel ranks together, and the bytes of rank 0's own parts are counted. All layers are
alike, and each parameter is cut by itself, so one layer is wrapped and counted as often as the model has layers.
Activations and traffic follow from the shapes by the formulas below.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ropewalk.distributed.positions import positions_for_rank
from ropewalk.errors import RopeError
from ropewalk.models.config import DecoderConfig
from ropewalk.models.decoder import Decoder
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import Llama3

SINGLE, HALF = 4, 2  # bytes of float32 and of bfloat16
HEAD_ROWS = 512  # tokens whose logits exist at one time


def _llama(hidden: int, inner: int, layers: int, heads: int) -> DecoderConfig:
    scaling = Llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    return DecoderConfig(
        vocab_size=128_256,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        rope=RopeConfig(128, interleaved=False, theta=500_000.0, scaling=scaling, max_position_embeddings=131_072),
        tie_word_embeddings=False,
    )


LLAMA_3 = {"Llama-3-8B": _llama(4096, 14_336, 32, 32), "Llama-3-70B": _llama(8192, 28_672, 80, 64)}
"""The shapes of Llama 3.1 (arXiv:2407.21783, table 3)."""


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """One rank's bytes in a training step of one sequence for each data-parallel rank.

    - `dp`, `cp`, `tp`: the mesh; FSDP2 cuts over dp x cp. `tokens`: of the sequence.
    - `parameters`, `gradients`, `states`: float32, cut; AdamW's states are two numbers for each parameter.
    - `unsharded`: bfloat16 parameters of the two layers, or of the embedding or head, that FSDP2 has gathered.
    - `activations`: with activation checkpointing each layer's float32 input, and what one layer or the head keeps.
    - `keys_and_values`: bfloat16, of one layer and the whole sequence, gathered over the context-parallel ranks.
    - `traffic`: bytes that the rank sends in a step, by "fsdp", "tp", "cp".
    """

    dp: int
    cp: int
    tp: int
    tokens: int
    parameters: int
    gradients: int
    states: int
    unsharded: int
    activations: int
    keys_and_values: int
    traffic: dict[str, int]

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.dp * self.cp * self.tp

    @property
    def total(self) -> int:
        """Bytes that the rank holds at the most."""
        held = self.parameters + self.gradients + self.states
        return held + self.unsharded + self.activations + self.keys_and_values


def plan_rank(config: DecoderConfig, tokens: int, *, dp: int, cp: int, tp: int) -> RankPlan:
    """What rank 0 of a mesh holds and sends, in bytes; nothing is computed and no memory is taken.

    - `config`: all layers alike. `tokens`: of a sequence, dealt out head-tail to the cp ranks.
    - `dp`, `cp`, `tp`: ranks of data, context and tensor parallelism; keys and values must have a head for each of tp.

    Raises `RopeError` for a mesh that does not fit the model, and where a process group is there already.

    >>> from ropewalk.distributed.plan import LLAMA_3
    >>> plan_rank(LLAMA_3["Llama-3-8B"], 131_072, dp=8, cp=8, tp=8).keys_and_values // 2**20
    64
    """
    if config.kv_heads % tp or config.num_attention_heads % tp or config.intermediate_size % tp:
        raise RopeError(
            "plan_rank: tensor parallelism gives each rank whole heads and an equal part of the feed-forward.",
            facts={"tp": tp, "kv_heads": config.kv_heads, "intermediate_size": config.intermediate_size},
            cure="Choose a tp that divides the key-value heads.",
        )
    rows = len(positions_for_rank("head-tail", tokens, rank=0, cp=cp, device="meta"))
    with _fake_ranks(dp * cp * tp):
        of_layer, of_rest = _wrapped_sizes(config, dp, cp, tp)
    layers, fsdp = config.num_hidden_layers, dp * cp
    own = layers * sum(of_layer["own"]) + sum(of_rest["own"])
    layer_whole, rest_whole = sum(of_layer["whole"]), sum(of_rest["whole"])
    width, kv_width = config.num_attention_heads * (config.head_dim or 0), config.kv_heads * (config.head_dim or 0)
    one_layer = rows * (2 * HALF * config.hidden_size + SINGLE * config.hidden_size)  # both norms, the sum between
    one_layer += rows * HALF * (2 * width + 2 * kv_width + 3 * config.intermediate_size) // tp
    head = rows * SINGLE * config.hidden_size + HEAD_ROWS * config.vocab_size // tp * (SINGLE + HALF)
    kept = layers * rows * SINGLE * config.hidden_size
    keys_and_values = 2 * tokens * kv_width // tp * HALF
    passes = 3  # forward, forward again under activation checkpointing, backward
    return RankPlan(
        dp=dp,
        cp=cp,
        tp=tp,
        tokens=tokens,
        parameters=SINGLE * own,
        gradients=SINGLE * own,
        states=2 * SINGLE * own,
        unsharded=HALF * max(2 * layer_whole, max(of_rest["whole"])),
        activations=kept + max(one_layer, head),
        keys_and_values=keys_and_values,
        traffic={
            # parameters gathered for the forward and for the backward with its second forward, gradients scattered
            "fsdp": (fsdp - 1) * (2 * HALF + SINGLE) * (layers * layer_whole + rest_whole) // fsdp,
            # two sums of the hidden states in each pass of each layer; a ring sends each twice
            "tp": layers * passes * 2 * 2 * (tp - 1) * rows * config.hidden_size * HALF // tp,
            # keys and values gathered in both forwards, their gradients scattered
            "cp": layers * passes * (cp - 1) * keys_and_values // cp,
        },
    )


def _wrapped_sizes(
    config: DecoderConfig, dp: int, cp: int, tp: int
) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """Numbers of rank 0, and of its tensor-parallel part before FSDP2 cuts it: of one layer, and of all else."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with torch.device("meta"):
        model = Decoder(replace(config, num_hidden_layers=1))
    mesh = init_device_mesh("cpu", (dp, cp, tp), mesh_dim_names=("dp", "cp", "tp"))
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan: dict[str, Any] = {f"layers.0.{name}": ColwiseParallel() for name in columns}
    plan |= {f"layers.0.{name}": RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
    plan |= {"embed_tokens": RowwiseParallel(), "lm_head": ColwiseParallel()}
    parallelize_module(model, mesh["tp"], plan)
    whole = {id(parameter): _local(parameter) for parameter in model.parameters()}
    names = {name: whole[id(parameter)] for name, parameter in model.named_parameters()}
    over = mesh["dp", "cp"]._flatten("fsdp")
    fully_shard(model.layers[0], mesh=over)
    fully_shard(model, mesh=over)
    found: tuple[dict[str, list[int]], dict[str, list[int]]] = {"own": [], "whole": []}, {"own": [], "whole": []}
    for name, parameter in model.named_parameters():
        part = found[0] if name.startswith("layers.") else found[1]
        part["own"].append(_local(parameter))
        part["whole"].append(names[name])
    return found


def _local(parameter: nn.Parameter) -> int:
    """How many numbers of a parameter this rank has."""
    part: Any = parameter
    return int(part.to_local().numel() if hasattr(part, "to_local") else part.numel())


@contextmanager
def _fake_ranks(ranks: int) -> Iterator[None]:
    """This process as rank 0 of so many that are not there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise RopeError(
            "plan_rank: this process belongs to a group already.",
            cure="Plan in a process of its own: make plan.",
        )
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
