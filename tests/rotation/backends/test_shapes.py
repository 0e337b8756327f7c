"""Numbers of heads and features: whole vectors, rests, one pair, none; and what is refused."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np
import pytest
import torch

import ropewalk as rw
from tests import oracle
from tests.rotation.backends import truth
from tests.rotation.backends.calls import FORMS, Call, check_call
from tests.rotation.backends.cases import FURTHEST
from tests.rotation.backends.truth import FORMATS

EMPTY = {
    "no tokens": (2, 0, 3, 8), "no sequences": (0, 5, 3, 8), "no heads": (2, 5, 0, 8), "nothing at all": (0, 0, 0, 8),
}  # fmt: skip


@pytest.mark.parametrize("shape", EMPTY.values(), ids=EMPTY)
def test_nothing_to_turn(shape, place):
    """No tokens, no sequences or no heads: empty results of the right shape, forward and backward."""
    for interleaved in (False, True):
        options = {"interleaved": interleaved, "backend": place.backend}
        x = torch.zeros(shape, device=place.device)
        cos, sin = torch.ones(shape[1], 4, device=place.device), torch.zeros(shape[1], 4, device=place.device)
        assert rw.rotate(x, cos, sin, **options).shape == shape
        apart = torch.ones(shape[1], 8, device=place.device)[:, ::2]  # empty, its strides count as contiguous
        assert rw.rotate(x, apart, apart, **options).shape == shape
        assert rw.rotate(x, cos, sin, out=torch.empty_like(x), **options).shape == shape
        assert rw.rotate(x, cos, sin, inplace=True, **options) is x
        leaf = x.clone().requires_grad_()
        rw.rotate(leaf, cos, sin, **options).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.shape == shape
        weight = torch.ones(8, device=place.device).requires_grad_()
        q, k = rw.fused.qk_norm_rotate(leaf, leaf, weight, weight, cos, sin, **options)
        assert q.shape == k.shape == shape
        (q.sum() + k.sum()).backward()
        assert weight.grad.tolist() == [0.0] * 8


def test_keys_unlike_queries(place):
    """Keys without heads, for one sequence of two, of another dtype, width or window: each turns as it does alone."""
    q, angle = torch.randn(2, 5, 3, 12, device=place.device), torch.rand(5, 4, device=place.device)
    turn = partial(rw.rotate, cos=angle.cos(), sin=angle.sin(), interleaved=True, rotary_dim=8, backend=place.backend)
    both = partial(rw.rotate_qk, **turn.keywords)
    for k, *firsts in ((q[:, :, :0], 4, 4), (q[:1], 0, 0), (q.half(), 0, 0), (q[..., :8], 0, 0), (q, 4, 0)):
        for given in ((q, k), (k, q))[: 1 if place.interpreted else 2]:
            for x, first, y in zip(given, firsts, both(*given, rotary_offset=tuple(firsts)), strict=True):
                assert y.shape == x.shape
                assert torch.equal(y, turn(x, rotary_offset=first))


@pytest.mark.parametrize("interleaved", [False, True])
def test_no_pairs(interleaved, place):
    """rotary_dim=0: nothing turns, everything is passed on."""
    for form in FORMS:
        check_call(Call(torch.float32, interleaved, form, pairs=0, passing=8), place)


DIM, HEADS = 64, 3
POSITIONS = np.unique(np.concatenate([
    [0, 1, 2, 4095, 4096, 131_071, 2**22 - 1, 2**23 + 1, FURTHEST - 1, FURTHEST],
    np.random.default_rng(0).integers(0, FURTHEST, 22),
]))  # fmt: skip
THETAS = (10_000.0, 500_000.0)


@lru_cache
def angles(theta: float) -> np.ndarray:
    """`[positions, 1, pairs]`, to broadcast against `[1, positions, heads, pairs]`."""
    return oracle.angles(POSITIONS, theta, DIM)[:, None]


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", truth.FORMATS, ids=str)
def test_the_promise(dtype, interleaved, place):
    """Unit-normal features at any position, forward and backward: within the kernels' rounding; float64 within 1e-8."""
    shape = (1, len(POSITIONS), HEADS, DIM)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(place.device, dtype)
    positions = torch.from_numpy(POSITIONS).to(place.device)
    for theta in THETAS[interleaved:][:1] if place.interpreted else THETAS:  # one for each pairing
        rope = rw.RotaryEmbedding(rw.RopeConfig(DIM, interleaved=interleaved, theta=theta))
        cos, sin = np.cos(angles(theta)), np.sin(angles(theta))
        leaf = torch.zeros_like(x).requires_grad_()
        there = rope.rotate(leaf, position_ids=positions, backend=place.backend)
        forward, back = (
            rope.rotate(x, position_ids=positions, inverse=inverse, backend=place.backend) for inverse in (False, True)
        )
        for got, inverse in ((forward, False), (back, True), (torch.autograd.grad(there, leaf, x)[0], True)):
            right, lengths = truth.turn(truth.wide(x), cos, sin, interleaved=interleaved, inverse=inverse)
            off = np.full(shape, 1e-8) if dtype == torch.float64 else truth.slack(lengths, dtype)
            truth.Allowed(right, off, dtype).check(got)


TURNED = ((4, 0), (1, 1), (5, 3), (8, 0))  # pairs, and features that are passed on; the last in one token


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_layouts_and_tables(dtype, form, place):
    """Each layout, whole and in part, by tables of all sequences, of each, and of each head; interpreted, one."""
    every = [
        Call(dtype, (number + kind) % 2 == 0, form, layout=layout, batch=1 if pairs == 8 else 2,
             seq=1 if pairs == 8 else 5, pairs=pairs, passing=passing, scale=-0.75, inverse=kind == 1,
             per_row=kind > 0, per_head=kind == 2, kv_heads=0 if kind == 2 else 2)
        for number, layout in enumerate(("bshd", "bhsd", "thd")) for kind in range(3) for pairs, passing in TURNED
    ]  # fmt: skip
    one = (7 * list(FORMATS).index(dtype) + 11 * FORMS.index(form)) % len(every)
    for call in [every[one]] if place.interpreted else every:
        check_call(call, place)
