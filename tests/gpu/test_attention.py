"""Flex attention on a GPU against the float64 truth, forward and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ropewalk.rotation.backends import flex
from ropewalk.rotation.backends.request import AttentionRegion, AttentionRequest, Bounds, KeyTurn
from tests.rotation.backends.attention_cases import CASES, Case, check, request_of
from tests.rotation.backends.attention_gradients import Meets, gradients

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DTYPES = [torch.bfloat16, torch.float32, torch.float16]


def on_gpu(request: AttentionRequest) -> AttentionRequest:
    """The same request with every tensor on the GPU and the same strides."""

    def move(x: Tensor) -> Tensor:
        return x.to("cuda")

    regions = []
    for region in request.regions:
        turn = region.turn
        if turn is not None:
            turn = KeyTurn(move(turn.cos), move(turn.sin), turn.interleaved, turn.factor)
        regions.append(AttentionRegion(move(region.q), move(region.k), Bounds(*map(move, region.bounds)), turn))
    sinks = None if request.sinks is None else move(request.sinks)
    return AttentionRequest(tuple(regions), move(request.values), request.scale, request.softcap, sinks)


def attend(request: AttentionRequest) -> Tensor:
    """The GPU's result, as a tensor of the CPU."""
    return flex.attend(on_gpu(request)).cpu()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cases(case: Case, dtype: torch.dtype) -> None:
    """Sizes, masks, memory layouts, turned keys, several regions, softcap and sinks."""
    check(case, dtype, attend)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    """Of queries, keys, values and sinks, of every case with rotated keys given."""
    for case in CASES:
        if not case.turned:
            check_gradients(case, dtype)


def check_gradients(case: Case, dtype: torch.dtype, change: Callable[[Tensor], Tensor] = lambda x: x) -> None:
    """Raise AssertionError where a gradient is out of bounds; `change` may spoil them."""
    request, _ = request_of(case, dtype)
    grad = torch.randn(request.regions[0].q.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
    places, met, leaves = torch.arange(request.values.shape[2]), [], []
    for region in request.regions:
        low, high = (x.expand(case.batch, -1)[..., None] for x in region.bounds)
        met.append(Meets(region.q, region.k, (low <= places) & (places < high)))
    truths = gradients(met, request.values, request.scale, request.softcap, request.sinks, grad)
    moved = on_gpu(request)

    def leaf(x: Tensor) -> Tensor:
        leaves.append(x.detach().requires_grad_())
        return leaves[-1]

    regions = tuple(region._replace(q=leaf(region.q), k=leaf(region.k)) for region in moved.regions)
    values, sinks = leaf(moved.values), None if moved.sinks is None else leaf(moved.sinks)
    out = flex.attend(moved._replace(regions=regions, values=values, sinks=sinks))
    found = torch.autograd.grad(out, leaves, grad.cuda())
    for number, (truth, x) in enumerate(zip(truths, found, strict=True)):
        truth.check(change(x.cpu()), f"{case}, gradient {number}")


def test_wrong_gradients_are_found() -> None:
    """A gradient that is 3 % too large is out of bounds."""
    with pytest.raises(AssertionError, match="are wrong"):
        check_gradients(Case(), torch.float32, lambda x: 1.03 * x)
