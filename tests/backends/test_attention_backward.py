"""Gradients of the attention kernel against the definition in float64, in every instruction set; faults are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ropewalk import dispatch as compiled
from ropewalk.backends import cpu
from ropewalk.backends.autograd import attended
from ropewalk.backends.request import AttentionRequest, Backend
from tests.backends.attention_cases import CASES, Case, request_of
from tests.backends.attention_gradients import Meets, Truth, gradients
from tests.backends.places import PLACES, Place
from tests.backends.truth import same_bits

HERE = [place for place in PLACES if place.backend == "cpu"]
pytestmark = pytest.mark.skipif(not HERE, reason="needs the compiled extension")
KERNEL: Backend = cpu
LONG = [  # several tasks for each key head
    Case(queries=150, keys=1300, head_dim=32),
    Case(heads=4, kv_heads=2, queries=550, keys=550, head_dim=16, seen="window", lie="bshd"),
]
DIFFERENTIABLE = [x for x in CASES if not x.turned and x.heads * x.queries * x.keys * x.head_dim < 2_000_000]


@pytest.fixture(params=HERE, ids=str)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each instruction set of this processor."""
    with request.param.held() as held:
        yield held


def found(request: AttentionRequest, grad: Tensor, backend: Backend = KERNEL) -> list[Tensor]:
    """The gradients by the kernel, each region's queries and keys first."""
    leaves: list[Tensor] = []

    def leaf(x: Tensor) -> Tensor:
        leaves.append(x.detach().requires_grad_())
        return leaves[-1]

    regions = tuple(region._replace(q=leaf(region.q), k=leaf(region.k)) for region in request.regions)
    values, sinks = leaf(request.values), None if request.sinks is None else leaf(request.sinks)
    out = attended(backend, request._replace(regions=regions, values=values, sinks=sinks))
    return list(torch.autograd.grad(out, leaves, grad))


@cache
def call(case: Case, dtype: torch.dtype) -> tuple[AttentionRequest, Tensor, list[Truth]]:
    """The call, the gradient of its result, and what its gradients may be."""
    request, _ = request_of(case, dtype)
    q = request.regions[0].q
    grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
    places = torch.arange(request.values.shape[2])
    met = []
    for region in request.regions:
        low, high = (x.expand(case.batch, -1)[..., None] for x in region.bounds)
        met.append(Meets(region.q, region.k, (low <= places) & (places < high)))
    return request, grad, gradients(met, request.values, request.scale, request.softcap, request.sinks, grad)


def check(case: Case, dtype: torch.dtype) -> None:
    """Raises AssertionError where a number is out of bounds."""
    request, grad, truths = call(case, dtype)
    for number, (truth, x) in enumerate(zip(truths, found(request, grad), strict=True)):
        truth.check(x, f"{case}, gradient {number}")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_cases(place: Place, dtype: torch.dtype) -> None:
    """Sizes, masks, memory layouts, several regions, softcap, sinks and scales."""
    for case in [*DIFFERENTIABLE, *LONG]:
        if dtype == torch.float16 and case.spread > 10:
            continue  # its gradients do not fit into 16 bits
        check(case, dtype)


@settings(max_examples=15, deadline=None)
@given(st.data())
def test_any_call(data: st.DataObject) -> None:
    """Whatever the sizes, masks and options are."""
    kv_heads, queries = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 90))
    case = Case(
        heads=kv_heads * data.draw(st.integers(1, 7)),
        kv_heads=kv_heads,
        queries=queries,
        keys=queries + data.draw(st.integers(0, 90)),
        head_dim=data.draw(st.integers(2, 40)),
        batch=data.draw(st.integers(1, 2)),
        seen=data.draw(st.sampled_from(["causal", "window", "all", "ragged", "documents", "nothing", "apart"])),
        lie=data.draw(st.sampled_from(["bhsd", "bshd", "features", "odd", "shared"])),
        softcap=data.draw(st.sampled_from([0.0, 5.0])),
        sinks=data.draw(st.booleans()),
        scales=data.draw(st.booleans()),
        seed=data.draw(st.integers(0, 99)),
    )
    check(case, data.draw(st.sampled_from([torch.float32, torch.bfloat16])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_change_nothing(dtype: torch.dtype) -> None:
    """One thread or several: the same bits."""
    request, _ = request_of(LONG[0], dtype)
    grad, before, runs = torch.randn(request.regions[0].q.shape).to(dtype), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            runs.append(found(request, grad))
    finally:
        torch.set_num_threads(before)
    for others in runs[1:]:
        assert all(same_bits(a, b) for a, b in zip(runs[0], others, strict=True))


def test_only_what_is_asked_for() -> None:
    """Each input alone; without any the kernel runs without autograd; the gradient of a sum is expanded."""
    request, _ = request_of(Case(sinks=True), torch.float32)
    ones = torch.ones(request.regions[0].q.shape)
    everything = found(request, ones)
    region, given = request.regions[0], [request.regions[0].q, request.regions[0].k, request.values, request.sinks]
    for number, x in enumerate(given):
        inputs = [y.detach().requires_grad_(y is x) for y in given]
        one = request._replace(
            regions=(region._replace(q=inputs[0], k=inputs[1]),), values=inputs[2], sinks=inputs[3]
        )  # fmt: skip
        attended(KERNEL, one).sum().backward()
        assert [y.grad is not None for y in inputs] == [y is x for y in given]
        torch.testing.assert_close(inputs[number].grad, everything[number])
        with torch.no_grad():
            assert not attended(KERNEL, one).requires_grad
    assert not attended(KERNEL, request).requires_grad


def test_the_second_derivative() -> None:
    """Gradients of gradients, as float64 has them; a tensor that is queries and keys at once."""
    request, _ = request_of(Case(heads=2, kv_heads=2, queries=9, keys=9, head_dim=8), torch.float32)

    def penalty(q: Tensor, v: Tensor) -> Tensor:
        if q.dtype == torch.float32:
            regions = (request.regions[0]._replace(q=q, k=q),)
            out = attended(KERNEL, request._replace(regions=regions, values=v))
        else:
            hidden = torch.full((9, 9), float("-inf"), dtype=q.dtype).triu(1)
            out = (q @ q.mT * request.scale + hidden).softmax(-1) @ v
        first = torch.autograd.grad(out.square().sum(), (q, v), create_graph=True)
        return first[0].square().sum() + first[1].pow(3).sum()

    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.detach().to(dtype).requires_grad_() for x in (request.regions[0].q, request.values)]
        results.append(torch.autograd.grad(penalty(*leaves), leaves))
    for ours, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))


Change = Callable[..., Any]


def with_arguments(change: Change) -> Change:
    """The kernel with other arguments: (request, region, log_sums, less, grad)."""
    original = cpu.attend_backward
    return lambda *arguments: original(*change(*arguments))


def with_results(change: Change) -> Change:
    original = cpu.attend_backward
    return lambda *arguments: change(*original(*arguments))


FAULTS: dict[str, Change] = {
    "sums off by 3 %": with_arguments(lambda r, x, sums, less, g: (r, x, sums + 0.03, less, g)),
    "nothing taken off": with_arguments(lambda r, x, sums, less, g: (r, x, sums, 0 * less, g)),
    "another scale": with_arguments(lambda r, x, *rest: (r._replace(scale=r.scale * 1.05), x, *rest)),
    "no softcap": with_arguments(lambda r, *rest: (r._replace(softcap=0.0), *rest)),
    "one key more": with_arguments(
        lambda r, x, *rest: (r, x._replace(bounds=x.bounds._replace(high=x.bounds.high + 1)), *rest)
    ),
    "a gradient of half the size": with_arguments(lambda r, x, sums, less, g: (r, x, sums, less, g / 2)),
    "queries' without the last": with_results(lambda q, k, v: (q.index_fill(2, torch.tensor([-1]), 0), k, v)),
    "keys' and values' exchanged": with_results(lambda q, k, v: (q, v, k)),
    "one head's keys for all": with_results(lambda q, k, v: (q, k[:, :1].expand_as(k), v)),
    "values' without the first": with_results(lambda q, k, v: (q, k, v.index_fill(2, torch.tensor([0]), 0))),
    "3 % too much": with_results(lambda q, k, v: (q * 1.03, k, v)),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_faults_are_found(fault: Change, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least one case fails, by its numbers."""
    monkeypatch.setattr(cpu, "attend_backward", fault)
    caught = 0
    for case in (Case(heads=6, kv_heads=2, queries=20, keys=40), Case(softcap=3.0, spread=4.0), Case(seen="apart")):
        try:
            check(replace(case, seed=3), dtype)
        except AssertionError as error:
            caught += "are wrong" in str(error)
    assert caught


X, KEYS, ROWS = torch.zeros(2, 4, 5, 8), torch.zeros(2, 2, 6, 8), torch.zeros(1, 5, dtype=torch.int64)
NUMBERS, TABLE = torch.zeros(2, 4, 5), torch.zeros(6, 4)
GOOD: dict[str, Any] = {
    "of_queries": torch.zeros(1, 2, 5, 4, 8), "of_keys": KEYS.clone(), "of_values": KEYS.clone(), "grad": X, "v": KEYS,
    "scale": 1.0, "softcap": 0.0, "log_sums": NUMBERS, "less": NUMBERS, "chunk": 64,
    "region": (X, KEYS, ROWS, ROWS, None),
}  # fmt: skip
WRONG: dict[str, dict[str, Any]] = {
    "chunks of 65": {"chunk": 65},
    "no chunk": {"chunk": 0},
    "two parts": {"of_queries": torch.zeros(2, 2, 5, 4, 8)},
    "16 bits": {"of_queries": torch.zeros(1, 2, 5, 4, 8).half()},
    "parts apart": {"of_queries": torch.zeros(1, 2, 4, 5, 8).transpose(2, 3)},
    "short keys": {"of_keys": KEYS[:, :, :5]},
    "keys in 16 bits": {"of_keys": KEYS.half()},
    "values of queries": {"of_values": X},
    "few sums": {"log_sums": NUMBERS[:, :3]},
    "sums apart": {"log_sums": torch.zeros(2, 5, 4).mT},
    "sums in float64": {"less": NUMBERS.double()},
    "tables": {"region": (X, KEYS, ROWS, ROWS, (TABLE, TABLE, True, 1.0))},
    "other queries": {"region": (X[:, :3], KEYS, ROWS, ROWS, None)},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    """No call, however wrong, reads or writes outside its tensors."""
    compiled.kernels.attend_backward(1, *GOOD.values())
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        compiled.kernels.attend_backward(1, *{**GOOD, **wrong}.values())
