"""What only the Triton backend has: launches, plans, grids, compiled code. Without a GPU interpreted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import ropewalk as rw
from ropewalk.rotation.backends import triton as backend
from ropewalk.rotation.backends.request import Norm, Store, Turn
from tests.rotation.backends.calls import Call, Lie, check_call
from tests.rotation.backends.norms import NormCall, check_norm, check_store
from tests.rotation.backends.places import PLACES
from tests.rotation.backends.truth import same_bits

PLACE = next((place for place in reversed(PLACES) if place.backend == "triton"), None)  # the GPU before the interpreter
pytestmark = pytest.mark.skipif(PLACE is None, reason="no Triton here")
DEVICE = "cpu" if PLACE is None else PLACE.device
HALF, BF16 = Turn(False, 1.0, False, "bshd"), torch.bfloat16


def some(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def tables(seq: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = some(seq, pairs) * 9
    return angle.cos(), angle.sin()


@pytest.fixture
def launches(monkeypatch) -> list[object]:
    """The plan of every launch."""
    from ropewalk.rotation.backends.gpu.plans import LaunchPlan

    seen: list[object] = []
    launch = LaunchPlan._launch
    monkeypatch.setattr(LaunchPlan, "_launch", lambda plan, tensors: (seen.append(plan), launch(plan, tensors))[1])
    return seen


def test_one_launch_for_queries_and_keys(launches):
    """Rotation, forward and backward, norm, norm into a cache: one launch, whatever heads the keys have."""
    q, k, (cos, sin) = some(2, 3, 4, 8), some(2, 3, 2, 8), tables(3, 4)
    weight, cache = some(8), torch.zeros(2, 2, 5, 8, device=DEVICE)
    norm, slots = Norm(weight, weight, 1e-6), torch.arange(3, device=DEVICE)[None]
    for call in (
        lambda: backend.rotate([q, k], cos, sin, HALF),
        lambda: backend.rotate([q, k], cos, sin, HALF, [q.clone(), k.clone()]),
        lambda: backend.norm_rotate(q, k, cos, sin, HALF, norm, None),
        lambda: backend.norm_rotate(q, k, cos, sin, HALF, norm, Store(cache, cache.clone(), k, slots)),
    ):
        launches.clear()
        call()
        assert len(launches) == 1
    launches.clear()
    leaves = [x.clone().requires_grad_() for x in (q, k)]
    turned = rw.rotate_qk(*leaves, cos, sin, interleaved=False, backend="triton")
    torch.autograd.grad(turned, leaves, [q, k])
    assert len(launches) == 2


def test_plans_are_kept(launches):
    """A call like an earlier one takes its plan, with whatever numbers; what the plan depends on makes another."""
    x, (cos, sin) = some(2, 3, 4, 8), tables(3, 4)
    rotate = lambda x, cos, sin, turn=HALF: backend.rotate([x], cos, sin, turn)  # noqa: E731
    rotate(x, cos, sin)
    rotate(x + 1, cos * 2, sin)
    assert launches[0] is launches[1]
    padded = x.new_zeros(2, 3, 5, 8)[:, :, :4]
    others = [
        lambda: rotate(padded.copy_(x), cos, sin),
        lambda: rotate(x.to(BF16), cos, sin),
        lambda: rotate(x, cos.double(), sin.double()),
        lambda: rotate(x, cos[:, :3].contiguous(), sin[:, :3].contiguous()),
        lambda: rotate(
            x, cos[:, None].expand(3, 4, 4).contiguous()[None], sin[:, None].expand(3, 4, 4).contiguous()[None]
        ),
        lambda: rotate(x, cos, sin, HALF._replace(inverse=True)),
        lambda: rotate(x, cos, sin, HALF._replace(scale=0.5)),
        lambda: backend.rotate([x], cos, sin, HALF, [x]),
        lambda: backend.rotate([x, x], cos, sin, HALF),
    ]
    for other in others:
        other()
    assert len(set(launches)) == 1 + len(others)


@pytest.mark.parametrize(("dtype", "dim", "layout"), [(BF16, 128, "bshd"), (torch.float64, 4096, "bhsd")], ids=str)
def test_grids_beyond_65535(dtype, dim, layout):
    """All programs lie on the first axis, so a million tokens are one launch; every row is in one tile."""
    from ropewalk.rotation.backends.gpu.plans import norm_plan, rotation_plan

    tokens, turn = 1_000_000, HALF._replace(layout=layout)
    shapes = [(2, tokens, n, dim) if layout == "bshd" else (2, n, tokens, dim) for n in (32, 8)]
    q, k = (torch.empty(shape, dtype=dtype, device="meta") for shape in shapes)
    cos = torch.empty(tokens, dim // 2, device="meta")
    for plan in (
        rotation_plan([q, k], [q, k], cos, turn, False), norm_plan((q, k), (q, k), cos, turn, 1e-6, False, q, q, q)
    ):  # fmt: skip
        named = dict(zip(plan.kernel.arg_names[-len(plan.numbers) :], plan.numbers, strict=True))
        tiles = named["Q_TILE"], named["K_TILE"]
        programs = [tile.blocks * (named["C"].group // tile.tile_tokens) for tile in tiles]
        rows = sum(tile.tile_heads * tile.tile_tokens * n for tile, n in zip(tiles, programs, strict=True))
        assert 65_535 < plan.grid[0] < 2**31
        assert plan.grid[1:] == (1, 1)
        assert plan.grid[0] // sum(programs) * rows == 2 * tokens * (32 + 8)


@pytest.mark.parametrize("far", [0, 1, 2], ids=["batch", "tokens", "heads"])
def test_offsets_beyond_32_bits(far, tmp_path):
    """Four entries 2^30 elements apart, in a file that is nearly all hole: read and written where they are."""
    apart = 2**30 + 32
    size = 3 * apart + 8
    if DEVICE == "cpu":
        memory = torch.from_file(str(tmp_path / "hole"), shared=True, size=size, dtype=BF16)
    else:
        memory = torch.empty(size, dtype=BF16, device=DEVICE)
    shape = [4 if dim == far else 1 for dim in range(3)]
    strides = [apart if dim == far else 32 for dim in range(3)]
    x = memory.as_strided((*shape, 8), (*strides, 1))
    values = some(*shape, 8, dtype=BF16)
    x.copy_(values)
    cos, sin = tables(shape[1], 4)
    right = rw.rotate(values, cos, sin, interleaved=False, backend="reference")
    assert same_bits(rw.rotate(x, cos, sin, interleaved=False, backend="triton"), right)
    rw.rotate(x, cos, sin, interleaved=False, inplace=True, backend="triton")
    assert same_bits(x, right)
    assert DEVICE != "cpu" or not memory[8:64].any()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of infinity times zero in the interpreter
def test_bfloat16_is_rounded_to_the_nearest():
    """Ties to even, overflow to infinity, NaN and numbers below the normal ones: what PyTorch's conversion gives."""
    bits = torch.randint(-(2**31), 2**31, (1024,), generator=torch.Generator().manual_seed(0)).to(torch.int32)
    ties = (bits & -65536) | 0x8000
    numbers = torch.cat([bits, ties, ties + 1, ties - 1]).view(torch.float32)
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3.4e38, -3.4e38, 1e-40, 1 + 2**-8])
    cos = torch.cat([numbers, special])[:, None].to(DEVICE)
    x = torch.zeros(len(cos), 1, 2, dtype=BF16, device=DEVICE)
    x[..., 0] = 1
    got = rw.rotate(x, cos, torch.zeros_like(cos), interleaved=False, layout="thd", backend="triton")[:, 0, :1]
    right = cos.to(BF16)
    assert torch.equal(got.isnan(), right.isnan())
    assert torch.equal(got.nan_to_num(7.0), right.nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(BF16, marks=pytest.mark.thorough)], ids=str)
def test_windows_and_norms(dtype):
    """A few of what `test_memory.py` and `test_qk_norm.py` have: sections beside the turned features, heads apart."""
    call = Call(dtype, False, "fresh", seq=3, heads=3, kv_heads=1, pairs=5, passing=21)
    paired = replace(call, interleaved=True, layout="bhsd", x=Lie(order=1, gaps=(3, 1, 0)))
    for each in (replace(call, first=21), replace(paired, first=9)):
        check_call(each, PLACE)
        check_store(NormCall(each, weights=None), PLACE)
    for each in (call, replace(paired, passing=0)):
        check_norm(NormCall(each, weights=dtype), PLACE)
