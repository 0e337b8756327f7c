"""Gradients of every backend, and what autograd must be told of writes into memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import ropewalk as rw
from tests.rotation.backends.truth import FORMATS, same_bits

SEQ, HEADS, KV_HEADS, DIM, TURNED = 3, 3, 1, 8, 6


def double(*shape: int, device: str, grad: bool = True) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, device=device).requires_grad_(grad)


def some(device: str, dtype: torch.dtype = torch.float32, seq: int = SEQ) -> tuple[torch.Tensor, ...]:
    """x, cos and sin: `[2, seq, heads, dim]`, all of whose features turn."""
    angle = torch.rand(seq, DIM // 2, device=device) * 6
    return torch.randn(2, seq, HEADS, DIM, device=device).to(dtype), angle.cos(), angle.sin()


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
@pytest.mark.parametrize("interleaved", [False, True])
def test_derivatives_of_rotations(interleaved, layout, place):
    """First and second, of queries, keys and both tables, in each layout; the tables by batch and head too."""
    if layout == "thd":
        shapes, rows = ((SEQ, HEADS, DIM), (SEQ, KV_HEADS, DIM)), ((SEQ, TURNED // 2), (SEQ, 1, TURNED // 2))
    else:
        shapes = [(2, SEQ, n, DIM) if layout == "bshd" else (2, n, SEQ, DIM) for n in (HEADS, KV_HEADS)]
        rows = ((SEQ, TURNED // 2), (2, SEQ, TURNED // 2), (1, SEQ, 1, TURNED // 2))
    q, k = (double(*shape, device=place.device) for shape in shapes)

    def turn(q, k, cos, sin):
        both = rw.rotate_qk(q, k, cos, sin, interleaved=interleaved, layout=layout, rotary_dim=TURNED, scale=1.5,
                            inverse=layout == "bhsd", backend=place.backend)  # fmt: skip
        return torch.cat([part.flatten() for part in both])  # gradcheck differentiates each result alone

    for shape in rows if place.backend != "triton" else rows[-1:]:
        cos, sin = double(*shape, device=place.device), double(*shape, device=place.device)
        assert torch.autograd.gradcheck(turn, (q, k, cos, sin), fast_mode=True)
        assert torch.autograd.gradgradcheck(turn, (q, k, cos, sin), fast_mode=True)
    for one in range(2):  # of the tables, and nothing else
        alone = [table.detach().requires_grad_(number == one) for number, table in enumerate((cos, sin))]
        assert torch.autograd.gradcheck(turn, (q.detach(), k.detach(), *alone), fast_mode=True)
    shape = (SEQ, HEADS, TURNED // 2) if layout == "thd" else (1, SEQ, HEADS, TURNED // 2)
    by_head = [double(*shape, device=place.device) for _ in range(2)]
    options = {"interleaved": interleaved, "layout": layout, "rotary_dim": TURNED, "backend": place.backend}
    turn_there = partial(rw.rotate, **options, rotary_offset=1)
    assert torch.autograd.gradcheck(turn_there, (q, *by_head), fast_mode=True)
    assert torch.autograd.gradgradcheck(turn_there, (q, *by_head), fast_mode=True)


@pytest.mark.parametrize("interleaved", [False, True])
def test_derivatives_of_norms(interleaved, place):
    """First and second, of queries, keys and both weights."""
    q, k = double(1, SEQ, HEADS, DIM, device=place.device), double(1, SEQ, KV_HEADS, DIM, device=place.device)
    weights = double(DIM, device=place.device), double(DIM, device=place.device)
    tables = [double(SEQ, TURNED // 2, device=place.device, grad=False) for _ in range(2)]

    def turn(*inputs):
        return rw.fused.qk_norm_rotate(*inputs, *tables, eps=1e-3, interleaved=interleaved, rotary_dim=TURNED,
                                 scale=0.8, backend=place.backend)  # fmt: skip

    assert torch.autograd.gradcheck(turn, (q, k, *weights), fast_mode=True)
    assert torch.autograd.gradgradcheck(turn, (q, k, *weights), fast_mode=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_backward_is_the_inverse_to_the_bit(dtype, interleaved, place):
    """The gradient is the incoming one turned back by the same kernel, expanded or not; both ways, and in place."""
    x, cos, sin = some(place.device, dtype, 5)
    options = {"interleaved": interleaved, "scale": 1.5, "backend": place.backend}
    incoming = torch.randn(x.shape, device=place.device).to(dtype)
    for gradient in (incoming, incoming[:1, :, :1].expand(x.shape), incoming.movedim(1, 3).contiguous().movedim(3, 1)):
        for inverse in (False, True):
            back = rw.rotate(gradient, cos, sin, inverse=not inverse, **options)
            for inplace in (False, True):
                leaf = x.clone().requires_grad_()
                turned = rw.rotate(leaf * 1, cos, sin, inverse=inverse, inplace=inplace, **options)
                assert same_bits(torch.autograd.grad(turned, leaf, gradient)[0], back)


def test_one_of_two_gradients(place):
    """Where only queries or only keys are used, or need a gradient, the other has none."""
    q, cos, sin = some(place.device)
    for used in (0, 1):
        leaves = [q.clone().requires_grad_(), q[:, :, :KV_HEADS].clone().requires_grad_()]
        turned = rw.rotate_qk(*leaves, cos, sin, interleaved=True, backend=place.backend)
        turned[used].sum().backward()
        back = rw.rotate(torch.ones_like(leaves[used]), cos, sin, interleaved=True, inverse=True, backend=place.backend)
        assert same_bits(leaves[used].grad, back)
        other = leaves[1 - used].grad
        assert other is None or not other.any()
        leaves = [x.detach().requires_grad_(i == used) for i, x in enumerate(leaves)]
        turned = rw.rotate_qk(*leaves, cos, sin, interleaved=True, backend=place.backend)
        (turned[0].sum() + turned[1].sum()).backward()
        assert same_bits(leaves[used].grad, back)


def test_leaves_are_refused(place):
    """In place, what requires grad and is a leaf, or a view of one, is refused before anything is written."""
    x, cos, sin = some(place.device)
    leaf = x.clone().requires_grad_()
    options = {"interleaved": True, "inplace": True, "backend": place.backend}
    free = x.clone()
    for call in (
        lambda: rw.rotate(leaf, cos, sin, **options),
        lambda: rw.rotate(leaf[:, :, 1:], cos, sin, **options),
        lambda: rw.rotate_qk(leaf, free, cos, sin, **options),
        lambda: rw.rotate_qk(free, leaf, cos, sin, **options),
    ):
        with pytest.raises(rw.RopeError, match="leaf that requires grad"):
            call()
        assert same_bits(leaf, x)
        assert same_bits(free, x)
    with torch.no_grad():
        rw.rotate(leaf, cos, sin, **options)
    assert leaf.is_leaf
    assert same_bits(leaf, rw.rotate(x, cos, sin, interleaved=True, backend=place.backend))


def test_out_is_refused_where_gradients_flow(place):
    """`out` takes no gradients: not of x, not of the tables, nor its own."""
    x, cos, sin = some(place.device)
    for i in range(4):
        given = [t.clone().requires_grad_(i == j) for j, t in enumerate((x, cos, sin, x))]
        with pytest.raises(rw.RopeError, match="`out` does not support gradients"):
            rw.rotate(*given[:3], out=given[3], interleaved=True, backend=place.backend)
        assert same_bits(given[3], x)


def store_for(place, x: torch.Tensor) -> rw.fused.Store:
    """Buffers for keys and values of `x`, which go to slots 1 and on."""
    batch, seq, heads, dim = x.shape
    buffers = torch.zeros(2, batch, heads, seq + 2, dim, device=place.device, dtype=x.dtype)
    slots = torch.arange(1, seq + 1, device=place.device)[None]
    return rw.fused.Store(buffers[0].clone(), buffers[1].clone(), x.clone(), slots)


def test_versions(place):
    """Whatever is written has a new version: in place, the views' base, `out`, a cache; and nothing else has."""
    x, cos, sin = some(place.device)
    weight = torch.ones(DIM, device=place.device)
    options = {"interleaved": True, "backend": place.backend}
    base, out, k, store = x.clone(), torch.empty_like(x), x.clone(), store_for(place, x)
    view = base[:, 1:, 1:]
    written = {
        "in place": ([k], lambda: rw.rotate(k, cos, sin, inplace=True, **options)),
        "both": ([k, out], lambda: rw.rotate_qk(k, out, cos, sin, inplace=True, **options)),
        "view": ([base, view], lambda: rw.rotate(view, cos[1:], sin[1:], inplace=True, **options)),
        "out": ([out], lambda: rw.rotate(x, cos, sin, out=out, **options)),
        "store": ([store.keys, store.values],
                  lambda: rw.fused.qk_norm_rotate(x, k, weight, weight, cos, sin, store=store, **options)),
        "none": ([], lambda: rw.rotate_qk(x, k, cos, sin, **options)),
        "norm": ([], lambda: rw.fused.qk_norm_rotate(x, k, weight, weight, cos, sin, **options)),
    }  # fmt: skip
    everything = [x, cos, sin, weight, base, view, out, k, *(t for t in store if t is not None)]
    for what, (changed, call) in written.items():
        before = [t._version for t in everything]
        call()
        for t, version in zip(everything, before, strict=True):
            assert (t._version > version) == any(t is c for c in changed), what


@pytest.mark.parametrize("which", ["cos", "sin"])
def test_tables_that_a_kernel_saved_and_others_wrote_over(which, place):
    """Tables that change between forward and backward: an error."""
    x, cos, sin = some(place.device)
    turned = rw.rotate(x.requires_grad_(), cos, sin, interleaved=True, backend=place.backend)
    {"cos": cos, "sin": sin}[which].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        turned.sum().backward()


def test_inference_tensors(place):
    """Under inference_mode tensors have no versions: rotation in place and into `out` works."""
    with torch.inference_mode():
        x, cos, sin = some(place.device)
        options = {"interleaved": True, "backend": place.backend}
        right = rw.rotate(x, cos, sin, **options)
        assert same_bits(rw.rotate(x, cos, sin, out=torch.empty_like(x), **options), right)
        assert same_bits(rw.rotate(x, cos, sin, inplace=True, **options), right)
