"""Sharded models: two gloo processes on the CPU give what one process gives, in forward, backward and a cache."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from ropewalk.models.classifier import TextClassifier
from ropewalk.models.config import DecoderConfig, TextClassifierConfig
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import generate
from ropewalk.models.training import Batch, next_token_loss
from ropewalk.rope.config import RopeConfig
from tests.launch.ranks import run_forked

WORLD, VOCAB = 2, 50
IDS = torch.randint(0, VOCAB, (WORLD, 13), generator=torch.Generator().manual_seed(5))
CLOSE = {"rtol": 1e-5, "atol": 1e-6}


def decoder(*, tied: bool, layers: int = 1) -> Decoder:
    """The same weights in every process."""
    torch.manual_seed(1)
    rope = RopeConfig(8, interleaved=False)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 4}
    config = DecoderConfig(
        vocab_size=VOCAB, num_key_value_heads=2, rope=rope, tie_word_embeddings=tied,
        initializer_range=0.2, **sizes,
    )  # fmt: skip
    return Decoder(config)


def batch(rows: slice) -> Batch:
    """These rows, with the tokens that follow."""
    return Batch(IDS[rows, :-1], IDS[rows, 1:])


def step(model: nn.Module, loss: Tensor) -> None:
    """One step of plain gradient descent."""
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()


def whole(value: Tensor) -> Tensor:
    """A sharded tensor in full."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def same_weights(sharded: nn.Module, plain: nn.Module) -> None:
    """After a step: the same numbers."""
    for (name, got), wanted in zip(sharded.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(whole(got), wanted, **CLOSE, msg=name)


def check_fsdp(rank: int, mesh: DeviceMesh, tied: bool) -> None:
    """Each process has its own window: the mean loss, a step, and measures through a cache."""
    plain, sharded = decoder(tied=tied), decoder(tied=tied)
    for layer in sharded.layers:
        fully_shard(layer, mesh=mesh)
    if sharded.lm_head is not None:
        fully_shard(sharded.lm_head, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    wanted = next_token_loss(plain, batch(slice(None)))
    loss = next_token_loss(sharded, batch(slice(rank, rank + 1)))
    total = loss.detach().clone()
    dist.all_reduce(total)
    torch.testing.assert_close(total / WORLD, wanted.detach(), **CLOSE)
    step(plain, wanted)
    step(sharded, loss)
    same_weights(sharded, plain)
    if not tied:  # the head's own forward gathers its weight
        same_measures(sharded, plain)


def same_measures(sharded: Decoder, plain: Decoder) -> None:
    """Logits in chunks and greedy tokens, both through a cache."""
    row = IDS[0]
    got, wanted = (cached(model, row) for model in (sharded, plain))
    torch.testing.assert_close(got, wanted, **CLOSE)
    ids = row.tolist()
    assert generate(sharded, [ids[:3]], max_new_tokens=2) == generate(plain, [ids[:3]], max_new_tokens=2)


@torch.no_grad()
def cached(model: Decoder, row: torch.Tensor) -> torch.Tensor:
    """The logits of one row, seven tokens at a time."""
    cache = model.new_cache(seq_len=len(row), capacity=len(row))
    return torch.cat([model(part[None], cache=cache) for part in row.split(7)], 1)


def check_tensor_parallel(mesh: DeviceMesh) -> None:
    """Each process has half of the heads: forward, losses and gradients."""
    plain, sharded = (decoder(tied=True, layers=2).double() for _ in range(2))
    for layer in sharded.layers:
        columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
        plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
        plan |= {name: RowwiseParallel() for name in ("self_attn.o_proj", "mlp.down_proj")}
        parallelize_module(layer, mesh, plan)
    torch.testing.assert_close(sharded(IDS), plain(IDS), rtol=1e-12, atol=1e-12)
    loss, wanted = (next_token_loss(model, batch(slice(None))) for model in (sharded, plain))
    torch.testing.assert_close(loss, wanted, **CLOSE)
    loss.backward()
    wanted.backward()
    for name in ("layers.0.self_attn.k_proj.weight", "layers.1.mlp.down_proj.weight"):
        got, expected = (model.get_parameter(name).grad for model in (sharded, plain))
        torch.testing.assert_close(whole(got), expected, **CLOSE, msg=name)


def check_classifier(rank: int, mesh: DeviceMesh) -> None:
    """A sharded classifier takes the same step."""
    models = []
    for _ in range(2):
        torch.manual_seed(2)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
        models.append(TextClassifier(TextClassifierConfig(vocab_size=VOCAB, labels=("no", "yes"), **sizes)))
    plain, sharded = models
    fully_shard(sharded.layers[0], mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    step(plain, plain(IDS).square().mean())
    step(sharded, sharded(IDS[rank : rank + 1]).square().mean())
    same_weights(sharded, plain)


def check_all(rank: int) -> None:
    """What one process runs."""
    mesh = init_device_mesh("cpu", (WORLD,))
    for tied in (True, False):
        check_fsdp(rank, mesh, tied)
    check_tensor_parallel(mesh)
    check_classifier(rank, mesh)


def test_two_processes_are_one(tmp_path: Path) -> None:
    """FSDP2, tensor parallelism and a sharded classifier; a failure in a process is shown with its traceback."""
    run_forked(check_all, WORLD, tmp_path)
