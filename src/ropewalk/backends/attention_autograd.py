"""Gradients of the attention kernel, by recomputation: of the scores, one number for each query is kept."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ropewalk.backends import reference_attention
from ropewalk.backends.attention_request import AttentionBackend, AttentionKernels, AttentionRequest


class AttentionFunction(torch.autograd.Function):
    """Attention by a backend's kernels; differentiable twice, the second time through the written-out form."""

    @staticmethod
    def forward(ctx: Any, backend: AttentionKernels, request: AttentionRequest, *tensors: Tensor | None) -> Tensor:
        """`tensors`: each region's queries and keys, then values and sinks or None: those of the request."""
        q = request.regions[0].q
        log_sums = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        out = backend.attend(request, log_sums)
        ctx.save_for_backward(out, log_sums, *tensors)
        ctx.backend, ctx.request = backend, _with_tensors(request, [None] * len(tensors))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Of queries, keys, values and sinks; of these alone that ask for one."""
        out, log_sums, *tensors = ctx.saved_tensors
        needed, backend = ctx.needs_input_grad[2:], ctx.backend
        request = _with_tensors(ctx.request, tensors)
        if torch.is_grad_enabled() or backend.reasons_not_to_attend(grad, grad, grad):
            with torch.enable_grad():
                # aliases, so that a tensor given twice gets each place's gradient alone
                aliases = [None if x is None else x.view_as(x) for x in tensors]
                again = reference_attention.attend(_with_tensors(request, aliases))
            wanted = [x for x, need in zip(aliases, needed, strict=True) if need and x is not None]
            found = iter(torch.autograd.grad(again, wanted, grad, create_graph=torch.is_grad_enabled()))
            return None, None, *(next(found) if need else None for need in needed)
        less = (out.float() * grad.float()).sum(-1).contiguous()
        grads: list[Tensor | None] = []
        to_values: Tensor | None = None
        for region in request.regions:
            to_q, to_k, to_v = backend.attend_backward(request, region, log_sums, less, grad)
            grads += [to_q, to_k]
            to_values = to_v if to_values is None else to_values + to_v
        to_sinks = None
        if request.sinks is not None and needed[-1]:
            shares = torch.exp(request.sinks.float()[:, None] - log_sums)  # of each softmax's weight
            to_sinks = -(shares * less).sum((0, 2)).to(request.sinks.dtype)
        grads += [to_values, to_sinks]
        return None, None, *(x if need else None for x, need in zip(grads, needed, strict=True))


def attended(backend: AttentionBackend, request: AttentionRequest) -> Tensor:
    """`backend.attend`, with gradients where they are asked for; then keys have been turned before."""
    tensors = [x for region in request.regions for x in region[:2]]
    inputs: list[Tensor | None] = [*tensors, request.values, request.sinks]
    if not backend.kernels or not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in inputs):
        return backend.attend(request)
    assert all(region.turn is None for region in request.regions), "the kernel's own turning of keys has no backward"
    return cast(Tensor, AttentionFunction.apply(backend, request, *inputs))  # type: ignore[no-untyped-call]


def _with_tensors(request: AttentionRequest, tensors: list[Any]) -> AttentionRequest:
    *of_regions, values, sinks = tensors
    pairs = zip(request.regions, of_regions[::2], of_regions[1::2], strict=True)
    regions = tuple(region._replace(q=q, k=k) for region, q, k in pairs)
    return request._replace(regions=regions, values=values, sinks=sinks)
