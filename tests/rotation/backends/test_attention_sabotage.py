"""Attention kernels that are wrong on purpose: the cases find each fault, in float32 and in bfloat16."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ropewalk.rope import dispatch as compiled
from ropewalk.rotation.backends import cpu
from ropewalk.rotation.backends.request import AttentionRegion, AttentionRequest, Bounds
from tests.rotation.backends.attention_cases import CASES, Attend, check

pytestmark = pytest.mark.skipif(compiled.kernels is None, reason="needs the compiled extension")


def changed(change: Callable[[AttentionRequest], AttentionRequest]) -> Attend:
    return lambda request: cpu.attend(change(request))


def with_bounds(change: Callable[[Bounds], Bounds]) -> Attend:
    return changed(lambda r: r._replace(regions=tuple(x._replace(bounds=change(x.bounds)) for x in r.regions)))


def with_regions(change: Callable[[AttentionRegion], AttentionRegion]) -> Attend:
    return changed(lambda r: r._replace(regions=tuple(map(change, r.regions))))


def heads_in_turn(request: AttentionRequest) -> Tensor:
    """Query head h by key head h modulo their number."""
    kv_heads = request.values.shape[1]
    heads = request.regions[0].q.shape[1]
    order = torch.arange(heads).view(-1, kv_heads).T.flatten() if heads % kv_heads == 0 else torch.arange(heads)
    regions = tuple(region._replace(q=region.q[:, order]) for region in request.regions)
    return cpu.attend(request._replace(regions=regions))[:, order.argsort()]


def coarse(request: AttentionRequest) -> Tensor:
    """A result that went through fewer bits than its dtype has."""
    out = cpu.attend(request)
    return out.bfloat16().to(out.dtype) if out.dtype == torch.float32 else (out.float() * 1.02).to(out.dtype)


def unwritten(request: AttentionRequest) -> Tensor:
    out = cpu.attend(request)
    out[-1, -1, -1, -1] = float("nan")
    return out


def spoiled(request: AttentionRequest) -> Tensor:
    out = cpu.attend(request)
    request.values[0, 0, 0, 0] += 1.0
    return out


def of_turn(**change: object) -> Attend:
    return with_regions(lambda x: x if x.turn is None else x._replace(turn=x.turn._replace(**change)))


FAULTS: dict[str, Attend] = {
    "one key more": with_bounds(lambda b: Bounds(b.low, b.high + 1)),
    "one key fewer": with_bounds(lambda b: Bounds(b.low, b.high - 1)),
    "the first key is missing": with_bounds(lambda b: Bounds(b.low.clamp(min=1), b.high)),
    "bounds of the first row for all": with_bounds(lambda b: Bounds(b.low[:1], b.high[:1])),
    "a scale off by 1 %": changed(lambda r: r._replace(scale=r.scale * 1.01)),
    "no softcap": changed(lambda r: r._replace(softcap=0.0)),
    "no sinks": changed(lambda r: r._replace(sinks=None)),
    "the first region alone": changed(lambda r: r._replace(regions=r.regions[:1])),
    "keys as they are": with_regions(lambda x: x._replace(turn=None)),
    "keys of the other pairing": with_regions(
        lambda x: x if x.turn is None else x._replace(turn=x.turn._replace(interleaved=not x.turn.interleaved))
    ),
    "keys without the factor": of_turn(factor=1.0),
    "tables of the key before": with_regions(
        lambda x: x if x.turn is None else x._replace(turn=x.turn._replace(cos=x.turn.cos.roll(1, -2)))
    ),
    "heads in turn": heads_in_turn,
    "few bits": coarse,
    "unwritten": unwritten,
    "a changed input": spoiled,
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_faults_are_found(fault: Attend, dtype: torch.dtype) -> None:
    """At least one case fails, by its numbers."""
    found = 0
    for case in CASES:
        if case.queries * case.heads * case.head_dim > 20_000:
            continue
        try:
            check(case, dtype, fault)
        except AssertionError as error:
            found += "wrong; at" in str(error) or "was changed" in str(error)
    assert found
