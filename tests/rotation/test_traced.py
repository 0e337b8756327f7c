"""Under compilers, exporters, function transforms and sharded tensors the rotation is plain mathematics (law 7)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

import ropewalk as rw
from tests.launch.ranks import run_forked

pytestmark = pytest.mark.traced

CONFIGS = {
    "half": rw.RopeConfig(8, interleaved=False),
    "interleaved partial": rw.RopeConfig(8, interleaved=True, rotary_dim=4, scaling=rw.scaling.YaRN(4.0, 64)),
    "llama3": rw.RopeConfig(8, interleaved=False, scaling=rw.scaling.Llama3(8.0, 1.0, 4.0, 64)),
    "given": rw.RopeConfig(8, interleaved=False, inv_freq=(1.0, 0.3, 0.0, -0.02)),
}


class Turn(nn.Module):
    def __init__(self, config: rw.RopeConfig) -> None:
        super().__init__()
        self.rope = rw.RotaryEmbedding(config)

    def forward(self, q, k, position_ids):
        passed = self.rope.config.head_dim - self.rope.config.rotary_dim
        return self.rope(q, k, position_ids=position_ids, rotary_offset=passed)


def inputs(seq: int, batch: int = 2):
    return torch.randn(batch, seq, 4, 8), torch.randn(batch, seq, 2, 8), torch.arange(seq)


@pytest.mark.parametrize(
    "name", ["interleaved partial", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("llama3", "given"))]
)
def test_three_graphs_for_all_lengths(name):
    """fullgraph: one graph for the first length, one dynamic, one for length 1; never more, and never wrong."""
    torch._dynamo.reset()
    graphs = CompileCounter()
    turn = Turn(CONFIGS[name])
    compiled = torch.compile(turn, fullgraph=True, backend=graphs)
    for seq in (7, 9, 11, 1, 13, 1, 300, 5):
        given = inputs(seq)
        for got, expected in zip(compiled(*given), turn(*given), strict=True):
            torch.testing.assert_close(got, expected)
    assert graphs.frame_count <= 3


def test_counted_positions_in_a_graph():
    """Positions that are left out, and an offset that grows with a cache: two graphs, and one exported."""
    torch._dynamo.reset()
    graphs = CompileCounter()
    rope = rw.RotaryEmbedding(CONFIGS["half"])
    compiled = torch.compile(lambda q, k, offset: rope(q, k, offset=offset), fullgraph=True, backend=graphs)
    for seq, offset in ((7, 0), (9, 7), (11, 16), (13, 100)):
        q, k, ids = inputs(seq)
        torch.testing.assert_close(compiled(q, k, offset), rope(q, k, ids + offset))
    assert graphs.frame_count <= 3
    seq = torch.export.Dim("seq", min=2, max=4096)
    q, k, _ = inputs(9)
    exported = torch.export.export(rope, (q, k), dynamic_shapes=({1: seq}, {1: seq})).module()
    q, k, ids = inputs(33)
    torch.testing.assert_close(exported(q, k), rope(q, k, ids))


@pytest.mark.thorough
def test_compiled_for_real():
    """Through the real compiler the result in bfloat16 and the gradients are those of eager."""
    torch._dynamo.reset()
    turn = Turn(CONFIGS["interleaved partial"])
    compiled = torch.compile(turn, fullgraph=True)
    q, k, ids = inputs(9)
    ids = ids + 100_000
    grads = []
    for call in (compiled, turn):
        x = q.bfloat16().requires_grad_()
        a, b = call(x, k, ids)  # keys stay in float32
        ((a.float() ** 3).sum() + b.sum()).backward()
        grads.append((b.detach(), a.detach(), x.grad))
    torch.testing.assert_close(grads[0][0], grads[1][0], rtol=1e-5, atol=1e-5)
    for got, expected in zip(*(each[1:] for each in grads), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=0.4)


@pytest.mark.parametrize(
    "rule", [rw.scaling.DynamicNTK(2.0), rw.scaling.LongRoPE((1.0,) * 4, (2.0, 3.0, 4.0, 5.0), 16)]
)
def test_compiled_for_a_length(rule):
    """A length is a number, fixed for the life of a cache."""
    torch._dynamo.reset()
    rope = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=False, scaling=rule, max_position_embeddings=16))
    turn = lambda x, ids, seq_len: rope.rotate(x, ids, seq_len=seq_len)  # noqa: E731
    compiled = torch.compile(turn, fullgraph=True, backend="eager")
    x, ids = torch.randn(3, 9, 4, 8), torch.arange(9)
    for seq_len in (10, 40):
        torch.testing.assert_close(compiled(x, ids, seq_len), turn(x, ids, seq_len))


def test_export_then_eager():
    """torch.export takes it with a dynamic length, and leaves the module as it was (no fake tensor stored)."""
    turn = Turn(CONFIGS["interleaved partial"])
    seq = torch.export.Dim("seq", min=2, max=4096)
    exported = torch.export.export(turn, inputs(9), dynamic_shapes=({1: seq}, {1: seq}, {0: seq})).module()
    for length in (9, 33):
        given = inputs(length)
        for got, expected in zip(exported(*given), turn(*given), strict=True):
            torch.testing.assert_close(got, expected)
    assert not list(turn.buffers())


def test_fake_tensors_leave_nothing_behind():
    """Shapes can be propagated without numbers, before and after real use."""
    config = rw.RopeConfig(8, interleaved=False, theta=12_345.0)
    with FakeTensorMode():
        fake = rw.RotaryEmbedding(config).rotate(torch.empty(2, 5, 4, 8), position_ids=torch.arange(5))
        assert fake.shape == (2, 5, 4, 8)
    x, table = torch.empty(2, 5, 4, 8, device="meta"), torch.empty(5, 4, device="meta")
    assert rw.rotate(x, table, table, interleaved=True).is_meta
    cos, _ = rw.RotaryEmbedding(config).cos_sin(torch.arange(5))
    assert cos[0].tolist() == [1.0] * 4


def test_vmap_jvp_and_jacobian():
    """Function transforms go through: a batch by vmap, a tangent by jvp, and the transpose as the Jacobian's."""
    cos, sin = torch.rand(5, 4).cos(), torch.rand(5, 4).sin()

    def turn(x):
        return rw.rotate(x, cos, sin, interleaved=True)

    x, tangent = torch.randn(3, 2, 5, 4, 8), torch.randn(3, 2, 5, 4, 8)
    torch.testing.assert_close(torch.func.vmap(turn)(x), torch.stack([turn(row) for row in x]))
    value, out = torch.func.jvp(turn, (x[0],), (tangent[0],))
    torch.testing.assert_close(value, turn(x[0]))
    torch.testing.assert_close(out, turn(tangent[0]))
    jacobian = torch.func.jacrev(lambda y: turn(y.view(1, 5, 1, 8)).flatten())(torch.randn(40))
    torch.testing.assert_close(
        jacobian @ jacobian.T, torch.eye(40) * (cos**2 + sin**2).repeat_interleave(2, -1).flatten()
    )


def _on_rank(rank: int, world: int) -> None:
    """One process of the DTensor test: shard batch, tokens or heads, and compare with the whole."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(0)
    x, ids = torch.randn(2, 6, 4, 8), torch.arange(6)
    for interleaved, placement in ((True, Shard(0)), (False, Shard(1)), (True, Shard(2)), (False, Replicate())):
        rope = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=interleaved, rotary_dim=4))
        sharded = distribute_tensor(x, mesh, [placement]).requires_grad_()
        got = rope.rotate(sharded, position_ids=ids)
        assert tuple(got.placements) == (placement,), (placement, got.placements)
        torch.testing.assert_close(got.full_tensor(), rope.rotate(x, position_ids=ids))
        got.square().sum().backward()
        torch.testing.assert_close(sharded.grad.full_tensor(), 2 * x)


@pytest.mark.thorough
def test_dtensor(tmp_path):
    """Sharded over batch, tokens or heads on two processes: the whole's numbers and gradients, sharding kept."""
    run_forked(_on_rank, 2, tmp_path, 2)
