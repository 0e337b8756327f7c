"""`qk_norm_rotate` on every backend: the norm, the turn and the cache's rows in one pass, and its gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import ropewalk as rw
from tests.rotation.backends.calls import Call, Lie
from tests.rotation.backends.norms import NormCall, check_gradients, check_norm, check_store, norm_calls
from tests.rotation.backends.truth import FORMATS, same_bits

ANY = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
CHECKS = {"fresh": check_norm, "store": check_store, "gradients": check_gradients}


@given(norm=norm_calls())
@ANY
def test_any_norm(norm, kernels):
    """Whatever the shape, strides and dtypes: right, and the inputs stay."""
    if norm.weights is not None:
        check_norm(norm, kernels)


@given(norm=norm_calls())
@ANY
def test_any_store(norm, kernels):
    """The same into a cache, with a norm or none: its slots and nothing beside them."""
    check_store(norm, kernels)


@given(norm=norm_calls())
@ANY
def test_any_gradient(norm, kernels):
    """The same backward, by gradients that lie anyhow."""
    if norm.weights is not None:
        check_gradients(norm, kernels)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_models(dtype, interleaved, check, place):
    """As models have heads: 16 of queries, 4 of keys, 128 or 64 features, in part; weights in the model's dtype."""
    whole = Call(dtype, interleaved, "fresh", batch=2, seq=3, heads=16, kv_heads=4, pairs=64)
    for call in (whole, replace(whole, pairs=8, passing=48), replace(whole, layout="bhsd", pairs=32)):
        check(NormCall(call, weights=dtype), place)


def test_without_a_norm(place):
    """Where Attention has no norm the keys turn into the cache; each sequence at its own slots."""
    for layout in ("thd",) if place.interpreted else ("bshd", "bhsd", "thd"):
        call = Call(torch.bfloat16, False, "fresh", layout=layout, seq=5, heads=4, kv_heads=2, pairs=19, passing=1)
        check_store(NormCall(call, weights=None, own_slots=True, cache=Lie(order=1, gaps=(3, 5, 2))), place)


def test_no_token_is_kept(place):
    """All slots negative: the queries turn, the cache stays."""
    check_store(NormCall(Call(torch.float32, True, "fresh", kv_heads=2), skipped=1), place)


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_two_gradients(used, place):
    """Where only queries or only keys are used the other gets no gradient, or zero, and nothing fails."""
    x, weight = torch.randn(1, 3, 2, 8, device=place.device), torch.ones(8, device=place.device)
    angle = torch.rand(3, 4, device=place.device)
    grads = []
    for backend in (place.backend, "reference"):
        leaves = [t.clone().requires_grad_() for t in (x, x, weight, weight)]
        turned = rw.fused.qk_norm_rotate(*leaves, angle.cos(), angle.sin(), interleaved=True, backend=backend)
        turned[used].square().sum().backward()
        grads.append([torch.zeros_like(t) if t.grad is None else t.grad for t in leaves])
    torch.testing.assert_close(grads[0], grads[1])
    assert not grads[0][1 - used].any()


def test_threads_give_the_same_bits(kernels, two_threads):
    """The weights' gradients are sums over all tokens: in one order, whatever the number of threads."""
    x = torch.randn(2, 300, 8, 64, device=kernels.device)
    angle = torch.rand(300, 32, device=kernels.device)
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        leaves = [t.clone().requires_grad_() for t in (x, x[:, :, :2], *torch.ones(2, 64, device=kernels.device))]
        turned = rw.fused.qk_norm_rotate(*leaves, angle.cos(), angle.sin(), interleaved=False, backend=kernels.backend)
        found.append(torch.autograd.grad(turned, leaves, [y.detach() for y in turned]))
    for one, two in zip(*found, strict=True):
        assert same_bits(one, two)
