"""`tables=False`: angles formed where they are used, by an exact integer phase."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import ropewalk as rw
from tests import oracle

FAR = [0, 1, 255, 131_071, 2**24 + 1, 10_000_000, -3, -9_999_999, 2**31 + 5, -(2**33)]


def rope(head_dim: int = 16, **changes) -> rw.RotaryEmbedding:
    return rw.RotaryEmbedding(rw.RopeConfig(head_dim, **{"interleaved": True, "theta": 5e5, **changes}))


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_any_position(dtype, interleaved):
    """Within float32's rounding at any position, where the frequency's own rounding allows it."""
    positions = np.array(FAR)
    x = torch.randn(1, len(FAR), 3, 16).to(dtype)
    got = rope(interleaved=interleaved).rotate(x, position_ids=torch.from_numpy(positions), tables=False)
    angle = oracle.angles(positions, 5e5, 16)[None, :, None]
    expected = oracle.rotate(x.double().numpy(), angle, interleaved=interleaved)
    unit = {torch.float64: 1e-16, torch.float32: 1.2e-7, torch.bfloat16: 2.0**-8}[dtype]
    bound = 4 * unit * np.hypot(1, np.abs(expected)) + 2.0**-52 * np.abs(positions)[None, :, None, None] * 4
    assert (np.abs(got.double().numpy() - expected) <= bound).all()
    assert got.dtype == dtype


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
def test_as_with_tables(layout):
    """Layouts, batches, fewer key heads, partial rotation, the attention factor, in place: as through tables."""
    turned = rope(rotary_dim=8, scaling=rw.scaling.YaRN(4.0, 64), max_position_embeddings=256)
    shapes = {"bshd": (2, 5, 4, 16), "bhsd": (2, 4, 5, 16), "thd": (5, 4, 16)}
    q = torch.randn(shapes[layout])
    k = q.narrow({"bshd": 2, "bhsd": 1, "thd": 1}[layout], 0, 1).clone()
    ids = torch.tensor([7, 0, 3, 9_000_000, 5], dtype=torch.int32)
    for positions in [ids] + [torch.stack((ids, ids + 3))] * (layout != "thd"):
        right = turned(q, k, position_ids=positions, layout=layout)
        for got, expected in zip(turned(q, k, position_ids=positions, layout=layout, tables=False), right, strict=True):
            torch.testing.assert_close(got, expected, atol=1e-6, rtol=0)
        q2, k2 = q.clone(), k.clone()
        same = turned(q2, k2, position_ids=positions, layout=layout, tables=False, inplace=True)
        assert same[0] is q2
        assert same[1] is k2
        torch.testing.assert_close(q2, right[0], atol=1e-6, rtol=0)
        torch.testing.assert_close(k2, right[1], atol=1e-6, rtol=0)
        out = torch.empty_like(q)
        assert turned.rotate(q, position_ids=positions, layout=layout, tables=False, out=out) is out
        torch.testing.assert_close(out, right[0], atol=1e-6, rtol=0)
        back = turned.rotate(q, position_ids=positions, layout=layout, tables=False, inverse=True)
        expected = turned.rotate(q, position_ids=positions, layout=layout, inverse=True)
        torch.testing.assert_close(back, expected, atol=1e-6, rtol=0)


def test_gradients():
    """Backward is the opposite rotation, and differentiable again."""
    x = torch.randn(2, 3, 1, 16, dtype=torch.float64, requires_grad=True)
    ids = torch.tensor([[0, 5, 10_000_000], [2, -7, 1]])
    turn = rope()
    assert torch.autograd.gradcheck(lambda x: turn.rotate(x, position_ids=ids, tables=False), x)
    assert torch.autograd.gradgradcheck(lambda x: turn.rotate(x, position_ids=ids, tables=False), x)


def tensors_alive() -> list[torch.Tensor]:
    gc.collect()
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]


@pytest.mark.parametrize("backend", [None, "reference"])
def test_inference_mode_before_gradients(backend):
    """A call under inference mode leaves nothing behind that a later call with gradients would meet."""
    x, ids, turn = torch.randn(1, 4, 2, 16), torch.arange(4), rope(theta=1234.5)
    with torch.inference_mode():
        first = turn.rotate(x, position_ids=ids, tables=False, backend=backend)
    again = turn.rotate(x.clone().requires_grad_(), position_ids=ids, tables=False, backend=backend)
    again.square().sum().backward()
    assert torch.equal(first, again.detach())
    turn(x.clone().requires_grad_(), x, position_ids=ids, tables=False)[0].sum().backward()


def test_no_tensor_is_kept():
    """Memos hold numbers: calls of every kind leave no tensor behind that was not there before."""
    x = torch.randn(2, 4, 2, 16)
    long = {"scaling": rw.scaling.DynamicNTK(), "max_position_embeddings": 8}

    def call(theta: float) -> None:
        plain, ids = rope(theta=theta), torch.arange(4)
        plain(x, x, position_ids=ids)
        plain(x, x, position_ids=ids, tables=False)
        plain.rotate(x, position_ids=ids, tables=False, backend="reference")
        rope(theta=theta, **long)(x, x, position_ids=ids.expand(2, 4), seq_len=torch.tensor([4, 40]))
        rope(theta=theta, axes=(0, 1) * 4)(x, x, position_ids=torch.zeros(4, 2, dtype=torch.int64))
        rw.rotate(x.clone().requires_grad_(), *plain.cos_sin(ids), interleaved=True).sum().backward()

    call(1e3)  # what is set up once
    # held, so that no id below can be an old one's; what dies elsewhere meanwhile does not count
    before = tensors_alive()
    ids = {id(tensor) for tensor in before}
    call(2e3)
    assert [tuple(tensor.shape) for tensor in tensors_alive() if id(tensor) not in ids] == []


@pytest.mark.traced
def test_traced():
    """One graph, in which the integer phase is plain arithmetic; and no fake tensor is kept."""
    x, ids, turn = torch.randn(1, 4, 2, 16), torch.arange(4) + 9_000_000, rope(theta=77.0)
    with FakeTensorMode():
        turn.rotate(torch.empty(1, 4, 2, 16), position_ids=torch.arange(4), tables=False)
    right = turn.rotate(x, position_ids=ids, tables=False)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, ids: turn.rotate(x, position_ids=ids, tables=False), fullgraph=True,
                             backend="eager")  # fmt: skip
    torch.testing.assert_close(compiled(x, ids), right)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("config", "ids", "message"),
    [
        ({}, torch.arange(4.0), "needs integer positions"),
        ({"axes": (0, 1) * 4}, torch.zeros(4, 2, dtype=torch.int64), "needs integer positions"),
        ({}, torch.arange(5), "4 tokens but `position_ids` has 5"),
        ({}, torch.zeros(3, 4, dtype=torch.int64), "batch of `position_ids`"),
        ({"scaling": rw.scaling.DynamicNTK(), "max_position_embeddings": 8}, torch.arange(4), "depend on the sequence"),
    ],
)
def test_bad_calls(config, ids, message):
    """What has no integer phase is refused, and shapes are checked as for tables."""
    with pytest.raises(rw.RopeError, match=message):
        rope(**config).rotate(torch.randn(2, 4, 1, 16), position_ids=ids, tables=False)
