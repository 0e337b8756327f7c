"""Flex attention on a GPU against the float64 truth, and its gradients against those of the definition in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ropewalk.rotation.backends import flex, reference
from ropewalk.rotation.backends.request import AttentionRequest
from tests.rotation.backends.attention_truth import CASES, Case, check, request_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DTYPES = [torch.bfloat16, torch.float32, torch.float16]


def on_gpu(request: AttentionRequest) -> AttentionRequest:
    """The same request with every tensor on the GPU and the same strides."""
    return tree_map_only(Tensor, lambda x: x.to("cuda"), request)


def attend(request: AttentionRequest) -> Tensor:
    """The GPU's result, as a tensor of the CPU."""
    return flex.attend(on_gpu(request)).cpu()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cases(dtype: torch.dtype) -> None:
    """Sizes, masks, memory layouts, turned keys, several regions, softcap and sinks."""
    for case in CASES:
        check(case, dtype, attend)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    """Of queries, keys, values and sinks, of every case with rotated keys given."""
    for case in CASES:
        if not case.turned:
            check_gradients(case, dtype)


def gradients(request: AttentionRequest, attend: Callable[[AttentionRequest], Tensor], grad: Tensor) -> list[Tensor]:
    """Of each region's queries and keys, then of values and sinks."""
    leaves: list[Tensor] = []

    def leaf(x: Tensor) -> Tensor:
        leaves.append(x.detach().to(torch.float64 if grad.dtype == torch.float64 else x.dtype).requires_grad_())
        return leaves[-1]

    regions = tuple(region._replace(q=leaf(region.q), k=leaf(region.k)) for region in request.regions)
    values, sinks = leaf(request.values), None if request.sinks is None else leaf(request.sinks)
    out = attend(request._replace(regions=regions, values=values, sinks=sinks))
    return [x.cpu() for x in torch.autograd.grad(out, leaves, grad)]


def check_gradients(case: Case, dtype: torch.dtype, change: Callable[[Tensor], Tensor] = lambda x: x) -> None:
    """Raise AssertionError if a gradient differs from the definition's in float64; `change` may spoil them."""
    request, _ = request_of(case, dtype)
    grad = torch.randn(request.regions[0].q.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
    exact = gradients(request, reference.attend, grad.double())
    found = gradients(on_gpu(request), flex.attend, grad.cuda())
    for number, (right, x) in enumerate(zip(exact, found, strict=True)):
        off = float((change(x).double() - right).norm())
        bound = (2e-2 if dtype == torch.bfloat16 else 1e-3) * float(right.norm()) + 1e-6
        assert off <= bound, f"{case}, gradient {number} is off by {off}"


def test_wrong_gradients_are_found() -> None:
    """A gradient that is 3 % too large is out of bounds."""
    with pytest.raises(AssertionError, match="is off by"):
        check_gradients(Case(), torch.float32, lambda x: 1.03 * x)
