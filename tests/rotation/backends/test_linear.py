"""The linear kernel against a float64 truth in every instruction set, and against kernels that are wrong on purpose."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from ropewalk import compiled
from ropewalk.models.norm import multiplied, projected
from ropewalk.rotation.backends import cpu
from tests.rotation.backends.arena import Arena
from tests.rotation.backends.places import PLACES, Place
from tests.rotation.backends.truth import Allowed, same_bits, wide

Multiply = Callable[[Tensor, Sequence[Tensor], Sequence[Tensor | None]], list[Tensor]]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HERE = [place for place in PLACES if place.backend == "cpu"]
pytestmark = pytest.mark.skipif(not HERE, reason="needs the compiled extension")
# rows, features, outputs of each matrix, whether with a bias
SIZES = [
    ((1,), 576, (576, 192, 192), False), ((1, 1), 64, (5,), True), ((1,), 1, (1,), True), ((1,), 15, (3, 2), False),
    ((2, 1), 17, (4,), True), ((3,), 129, (7, 1, 2, 30), True), ((4,), 200, (33,), False), ((2, 4), 71, (9, 3), True),
    ((5,), 16, (2,), False), ((8,), 333, (70, 1), True), ((7,), 100, (0, 3), True),
]  # fmt: skip


@pytest.fixture(params=HERE, ids=str)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each instruction set of this processor."""
    with request.param.held() as held:
        yield held


def allowed(x: Tensor, weight: Tensor, bias: Tensor | None) -> Allowed:
    """x W^T + b in float64; each of the sums' roundings is at most 2^-24 of the sum of sizes."""
    a, b = wide(x), wide(weight)
    extra = np.zeros(len(b)) if bias is None else wide(bias)
    sizes = np.abs(a) @ np.abs(b).T + np.abs(extra)
    return Allowed(a @ b.T + extra, (x.shape[-1] + 4) * 2.0**-24 * sizes + 1e-40, x.dtype)


def check(multiply: Multiply, dtype: torch.dtype, size: tuple[tuple[int, ...], int, tuple[int, ...], bool]) -> None:
    """One call on weights with gaps between their rows and guard bytes around."""
    leading, features, outputs, biased = size
    source = torch.Generator().manual_seed(features)
    x = Arena((*leading, features), dtype).holding(torch.randn(*leading, features, generator=source).to(dtype))
    weights = [
        Arena((n, features), dtype, gaps=(3, 0, 0)).holding(torch.randn(n, features, generator=source).to(dtype))
        for n in outputs
    ]
    biases = [torch.randn(n, generator=source).to(dtype) if biased else None for n in outputs]
    outs = multiply(x.x, [weight.x for weight in weights], biases)
    for out, weight, bias in zip(outs, weights, biases, strict=True):
        assert out.shape == (*leading, weight.x.shape[0])
        assert out.dtype == dtype
        allowed(x.x, weight.x, bias).check(out, f"{size} {dtype}")
        assert weight.is_untouched()
    assert x.is_untouched(), "the input was changed"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cases(place: Place, dtype: torch.dtype) -> None:
    """Any rows, features, outputs and biases agree with the truth within the roundings of their sums."""
    for size in SIZES:
        check(cpu.multiply, dtype, size)


def torchs_product(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
    return [nn.functional.linear(x, weight, bias) for weight, bias in zip(weights, biases, strict=True)]


def test_the_definition() -> None:
    """torch's own product meets the same bounds in float32."""
    for size in SIZES:
        check(torchs_product, torch.float32, size)


def faulty(change: Callable[[Tensor, Tensor, Tensor], object]) -> Multiply:
    """The kernel, and a change of each result, given x and the weight."""

    def multiply(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> list[Tensor]:
        outs = cpu.multiply(x, weights, biases)
        for out, weight in zip(outs, weights, strict=True):
            change(out, x, weight)
        return outs

    return multiply


FAULTS: dict[str, Multiply] = {
    "no bias": lambda x, weights, biases: cpu.multiply(x, weights, [None] * len(weights)),
    "the last feature is missing": faulty(lambda out, x, weight: out.sub_(x[..., -1:] * weight[:, -1])),
    "rows in another order": faulty(lambda out, x, weight: out.copy_(out.flip(0))),
    "outputs one later": faulty(lambda out, x, weight: out.copy_(out.roll(1, -1))),
    "few bits": faulty(lambda out, x, weight: out.mul_(1.01)),
    "unwritten": faulty(lambda out, x, weight: out[..., -1:].fill_(math.nan)),
    "a changed input": faulty(lambda out, x, weight: x[0].add_(1.0)),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_faults_are_found(fault: Multiply, dtype: torch.dtype) -> None:
    """At least one case fails."""
    found = 0
    for size in SIZES:
        try:
            check(fault, dtype, size)
        except AssertionError:
            found += 1
    assert found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_and_rows_give_the_same_bits(place: Place, dtype: torch.dtype, two_threads: None) -> None:
    """One thread or two, one matrix or several, a row alone or beside others."""
    x, weights = torch.randn(7, 323).to(dtype), [torch.randn(n, 323).to(dtype) for n in (900, 40)]
    whole = cpu.multiply(x, weights, [None, None])
    torch.set_num_threads(1)
    for row in range(len(x)):
        for out, weight in zip(whole, weights, strict=True):
            assert same_bits(out[row], cpu.multiply(x[row], [weight], [None])[0])


def test_what_is_not_finite(place: Place) -> None:
    """An infinite or missing weight reaches its own output alone; a missing feature its own row."""
    x, weight = torch.randn(5, 70), torch.randn(6, 70)
    for wrong in (math.nan, math.inf):
        spoiled = weight.clone()
        spoiled[2, 69] = wrong
        assert cpu.multiply(x, [spoiled], [None])[0].isfinite().all(0).tolist() == [True] * 2 + [False] + [True] * 3
        there = x.clone()
        there[1, 3] = wrong
        assert cpu.multiply(there, [weight], [None])[0].isfinite().all(1).tolist() == [True, False] + [True] * 3


def test_what_goes_where() -> None:
    """Few rows of eager tensors without gradients go to the kernel, all else to torch."""
    x, weight = torch.zeros(2, 3, 8), torch.zeros(5, 8)
    few = x[:, :1]
    assert cpu.reasons_not_to_multiply(few, [weight], [None]) == []
    leaf = torch.nn.Parameter(weight)
    for against, call in {
        "there are 9 rows": (torch.zeros(9, 8), weight, None),
        "there are 0 rows": (torch.zeros(0, 8), weight, None),
        "a gradient is needed": (few, leaf, None),
        "torch.float64 is none of": (few.double(), weight.double(), None),
        "float32 on cpu with torch.bfloat16": (few.bfloat16(), weight, None),
        "on meta": (few, weight.to("meta"), None),
        "contiguous features": (few, torch.zeros(8, 5).T, None),
        "does not have 8 contiguous features": (few, torch.zeros(5, 7), None),
    }.items():
        x, other, bias = call
        assert against in "; ".join(cpu.reasons_not_to_multiply(x, [other], [bias])), against
    with torch.no_grad():
        assert cpu.reasons_not_to_multiply(few, [leaf], [leaf[:, 0]]) == []
        assert "more than 4 matrices" in cpu.reasons_not_to_multiply(few, [weight] * 5, [None] * 5)[0]
    with torch.autocast("cpu"):
        assert "autocast" in cpu.reasons_not_to_multiply(few, [weight], [None])[0]


@torch.no_grad()
def test_the_kernel_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """By plain layers, in one call, and by a head."""
    x, plain, calls = torch.randn(1, 8), nn.Linear(8, 3), list[int]()
    monkeypatch.setattr(cpu, "multiply", lambda x, weights, biases: calls.append(len(weights)) or weights)
    projected(x, plain, plain)
    multiplied(x, plain.weight)
    assert calls == [2, 1]


@torch.no_grad()
def test_transforms_get_torchs_product() -> None:
    """Tangents and batches of torch.func, and forward mode; the kernel would lose the tangent silently."""
    x, tangent, weight = torch.randn(3, 2, 8), torch.randn(3, 2, 8), torch.randn(4, 8)
    torch.testing.assert_close(
        torch.func.jvp(lambda x: multiplied(x, weight), (x,), (tangent,))[1], tangent @ weight.t()
    )
    torch.testing.assert_close(torch.func.vmap(lambda x: multiplied(x, weight))(x), x @ weight.t())
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(multiplied(forward_ad.make_dual(x, tangent), weight)).tangent
    torch.testing.assert_close(found, tangent @ weight.t())


FEW, WIDE, OUT = torch.zeros(2, 8), torch.zeros(5, 8), torch.zeros(2, 5)
LIES = {
    "other features": (WIDE[:, :7], None, OUT), "features apart": (torch.zeros(8, 5).T, None, OUT),
    "another dtype": (WIDE.double(), None, OUT), "one dimension": (WIDE[0], None, torch.zeros(2, 1)),
    "a short result": (WIDE, None, torch.zeros(2, 4)), "fewer rows": (WIDE, None, torch.zeros(1, 5)),
    "a result with gaps": (WIDE, None, torch.zeros(2, 6)[:, :5]), "a short bias": (WIDE, torch.zeros(4), OUT),
    "a wide bias": (WIDE, torch.zeros(5).double(), OUT), "no memory": (WIDE.to("meta"), None, OUT),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_calls_that_do_not_fit(lie: tuple[Tensor, Tensor | None, Tensor]) -> None:
    """The extension refuses what would read or write outside its tensors."""
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        compiled.kernels.linear(1, FEW, (lie,))
    with pytest.raises(ValueError, match="one matrix too many"):
        compiled.kernels.linear(1, FEW, ((WIDE, None, torch.zeros(2, 5)),) * 5)
