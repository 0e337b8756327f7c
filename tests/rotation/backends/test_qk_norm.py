"""`qk_norm_rotate` and `rotate_store` on every backend: norm, rotation and a cache's rows in one pass; gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import ropewalk as rw
from ropewalk.rotation.backends.request import Store
from tests.rotation.backends.calls import Call, Lie
from tests.rotation.backends.norms import CHECKS, NormCall, check_norm, check_store, norm_calls
from tests.rotation.backends.truth import FORMATS

ANY = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


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


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_models(dtype, interleaved, check, place):
    """As models have heads: 16 of queries, 4 of keys, 128 or 64 features, in part; weights in the model's dtype."""
    whole = Call(dtype, interleaved, "fresh", batch=2, seq=3, heads=16, kv_heads=4, pairs=64)
    for call in (whole, replace(whole, pairs=8, passing=48), replace(whole, layout="bhsd", pairs=32)):
        check(NormCall(call, weights=dtype), place)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_those_of_the_definition(dtype, kernels):
    """Of queries, keys and weights, to the rounding of the dtype; test_autograd.py has them in float64."""
    x, weight = torch.randn(2, 5, 3, 8, device=kernels.device).to(dtype), torch.rand(8, device=kernels.device) + 0.5
    angle, grads = torch.rand(5, 3, device=kernels.device), []
    for backend, kind in ((kernels.backend, dtype), ("reference", torch.float64)):
        leaves = [t.to(kind, copy=True).requires_grad_() for t in (x, x[:, :, :1], weight, weight)]
        turned = rw.fused.qk_norm_rotate(
            *leaves, angle.cos(), angle.sin(), interleaved=True, rotary_dim=6, backend=backend
        )
        grads.append([g.double() for g in torch.autograd.grad(sum(y.square().sum() for y in turned), leaves)])
    close = 1e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(grads[0], grads[1], rtol=close, atol=20 * close)


def test_no_token_is_kept(place):
    """All slots negative: the queries turn, the cache stays."""
    check_store(NormCall(Call(torch.float32, True, "fresh", kv_heads=2), skipped=1), place)


BF16 = torch.bfloat16
CALL = Call(torch.float32, False, "fresh", kv_heads=2, pairs=5, passing=3, scale=1.25, per_row=True)
NORM = NormCall(CALL, weights=None, eps=1e-2, own_slots=True, cache=Lie(gaps=(2, 1, 3)))


@pytest.mark.parametrize("changes", [
    {"dtype": torch.float16}, {"interleaved": True, "first": 3}, {"interleaved": True, "first": 2, "dtype": BF16},
    {"layout": "bhsd", "x": Lie(step=2)},
], ids=str)  # fmt: skip
def test_windows(changes, place):
    """Every number within its rounding, every other byte as it was."""
    check_store(replace(NORM, call=replace(CALL, **changes)), place)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keys": torch.zeros(1, 2, 6, 8, dtype=BF16), "values": torch.zeros(1, 2, 6, 8, dtype=BF16)}, "do not fit"),
        ({"values": torch.zeros(1, 2, 6, 8, dtype=BF16)}, "the cache's buffers do not fit"),
        ({"slots": torch.tensor([[0, 6]])}, "below the capacity"),
    ],
)
def test_refused(changes, message):
    """What does not fit, before anything is written; as well as queries of another kind and gradients."""
    x, table = torch.ones(1, 2, 2, 8), torch.ones(2, 4)
    caches = torch.zeros(2, 1, 2, 6, 8)
    store = Store(caches[0], caches[1], x, torch.tensor([[0, 1]]))
    with pytest.raises(rw.RopeError, match=message):
        rw.fused.rotate_store(x, x, table, table, store._replace(**changes), interleaved=False)
    assert not caches.any()
    with pytest.raises(rw.RopeError, match="must have one dtype, batch"):
        rw.fused.rotate_store(x.half(), x, table, table, store, interleaved=False)
    with pytest.raises(rw.RopeError, match="loses gradients"):
        rw.fused.rotate_store(x.clone().requires_grad_(), x, table, table, store, interleaved=False)
    with pytest.raises(rw.RopeError, match="weights one float"):
        rw.fused.qk_norm_rotate(x, x, *([torch.ones(7)] * 2), table, table, interleaved=False)


@pytest.mark.parametrize("backend", ["reference", None])
@pytest.mark.parametrize("source", ["k", "fresh", "both"])
def test_inputs_that_are_views_of_the_buffers(backend, source):
    """Rows that lie one place before their slots are read before the slots are written."""
    generator = torch.Generator().manual_seed(7)
    caches = torch.randn(2, 1, 2, 9, 8, generator=generator)
    q, table = torch.randn(1, 2, 5, 8, generator=generator), torch.rand(5, 4, generator=generator)
    k, fresh = torch.randn(2, 1, 2, 5, 8, generator=generator)

    def stored(caches, *, apart):
        shifted = [k if source == "fresh" else caches[0, :, :, :5], fresh if source == "k" else caches[1, :, :, :5]]
        mine, values = [x.clone() if apart else x for x in shifted]
        store = Store(caches[0], caches[1], values, torch.arange(1, 6)[None])
        turned, _ = rw.fused.rotate_store(
            q, mine, table, 1 - table, store, interleaved=False, layout="bhsd", backend=backend
        )
        return turned, caches

    for found, expected in zip(stored(caches.clone(), apart=False), stored(caches.clone(), apart=True), strict=True):
        assert torch.equal(found, expected)


def test_one_buffer_for_keys_and_values_is_refused():
    """The same one and one that overlaps; keys and values that alternate in one buffer are apart."""
    x, table = torch.ones(1, 2, 2, 8), torch.ones(2, 4)
    slots, buffer = torch.tensor([[0, 1]]), torch.zeros(1, 2, 2, 4, 8)
    rw.fused.rotate_store(x, x, table, table, Store(buffer[:, 0], buffer[:, 1], 2 * x, slots), interleaved=False)
    assert buffer.sum() == 32 * 3
    whole = torch.zeros(192)
    for keys, values in ((buffer[:, 0], buffer[:, 0]), (whole[:64].view(1, 2, 4, 8), whole[32:96].view(1, 2, 4, 8))):
        with pytest.raises(rw.RopeError, match="share memory"):
            rw.fused.rotate_store(x, x, table, table, Store(keys, values, x, slots), interleaved=False)
