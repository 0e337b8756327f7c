"""The gate: every backend passes it, and what is sabotaged does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.backends import BACKENDS
from ropewalk.bench import gate
from ropewalk.bench.cases import CASES, DTYPES, FURTHEST, HEAD_DIMS, Case

CASE = Case(seq=9, heads=3, head_dim=16, dtype=torch.float32, interleaved=False)


# In Triton's interpreter all cases take a minute. Every eighth: each dtype, layout, memory and kind of table, and the
# furthest position; the tests of backends/ have half of all in every form.
TRITON = [
    pytest.param("triton", 8, marks=pytest.mark.thorough, id="triton, every eighth"),
    pytest.param("triton", 1, marks=pytest.mark.slow, id="triton"),
]
OTHERS = [pytest.param(module.name, 1, id=module.name) for module in BACKENDS if module.name != "triton"]


@pytest.mark.parametrize(("backend", "step"), [pytest.param(None, 1, id="chosen"), *OTHERS, *TRITON])
def test_every_case_is_within_its_bound(backend: str | None, step: int) -> None:
    """New, in place, into a given output, inverse and backward; float32 and 16 bits up to position 10,000,000."""
    if backend is not None:
        reasons = next(module for module in BACKENDS if module.name == backend).reasons_not_to(torch.zeros(1, 1, 1, 2))
        if reasons:
            pytest.skip(f"{backend}: {'; '.join(reasons)}")
    worst = gate.check_rotate(CASES[::step], backend=backend)
    assert set(worst) == {"float64", "float32", "bfloat16", "float16"}
    assert all(0 < share <= 1 for share in worst.values())


def test_cases_cover_the_variants() -> None:
    """No name twice; every head_dim, dtype and head count, the furthest position, each layout, memory and table."""
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.head_dim for case in CASES} >= set(HEAD_DIMS)
    assert {case.dtype for case in CASES} == set(DTYPES)
    assert {case.heads for case in CASES} >= {1, 3, 17, 32}
    assert max(int(case.positions().max()) for case in CASES) == FURTHEST
    seen = {(case.layout, case.tables, case.memory) for case in CASES}
    assert {layout for layout, _, _ in seen} == {"bshd", "bhsd", "thd"}
    assert {tables for _, tables, _ in seen} == {"shared", "batch", "heads"}
    assert {memory for _, _, memory in seen} == {"contiguous", "padded", "transposed", "expanded"}


def half(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


def wrong_sign(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rw.rotate(x, cos, -sin, interleaved=False)


def wrong_pairing(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rw.rotate(x, cos, sin, interleaved=True)


def next_row(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rw.rotate(x, cos.roll(1, 0), sin.roll(1, 0), interleaved=False)


def sixteen_bit_tables(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rw.rotate(x, cos.bfloat16().float(), sin.bfloat16().float(), interleaved=False)


def sixteen_bit_arithmetic(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    c, s = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    a, b = half(x)
    return torch.cat((a * c - b * s, b * c + a * s), -1)


def float32_angles(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """What most implementations do: the angle as a float32 product."""
    positions = torch.arange(FURTHEST - x.shape[1] + 1, FURTHEST + 1, dtype=torch.float32)
    inv_freq = 1.0 / 1e4 ** (torch.arange(0, x.shape[-1], 2).float() / x.shape[-1])
    angle = positions[:, None] * inv_freq
    return rw.rotate(x, angle.cos(), angle.sin(), interleaved=False)


def one_nan(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = rw.rotate(x, cos, sin, interleaved=False)
    turned[0, -1, 0, 3] = torch.nan
    return turned


def one_infinite(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = rw.rotate(x, cos, sin, interleaved=False)
    turned[0, 0, 1, 0] = torch.inf
    return turned


def rounded_twice(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = half(x.float())
    c, s = cos[:, None], sin[:, None]
    first, second = (a * c).to(x.dtype).float(), (b * c).to(x.dtype).float()
    return torch.cat((first - b * s, second + a * s), -1).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("sabotage", [wrong_sign, wrong_pairing, next_row, sixteen_bit_tables, float32_angles,
                                      one_nan, one_infinite])  # fmt: skip
def test_sabotage_is_found(sabotage: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Each way to be wrong is refused, with the case and the place; the right rotation passes."""
    case = replace(CASE, dtype=dtype, seq=40, offset=FURTHEST - 39)
    inputs, tables = case.tensors(), case.cos_sin()
    gate.check(case, inputs, [rw.rotate(inputs[0], *tables, interleaved=False)])
    with pytest.raises(rw.RopeError, match="does not agree with the float64 oracle") as refused:
        gate.check(case, inputs, [sabotage(inputs[0], *tables)])
    assert refused.value.facts["case"] == case.name
    assert "feature" in refused.value.facts["at"]


@pytest.mark.parametrize("sabotage", [sixteen_bit_arithmetic, rounded_twice])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_sixteen_bits_are_rounded_once(sabotage: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """Rounding products as well as the result is found; other packages, which do that, are allowed it."""
    case = replace(CASE, dtype=dtype)
    inputs, tables = case.tensors(), case.cos_sin()
    turned = [sabotage(inputs[0], *tables)]
    with pytest.raises(rw.RopeError, match="oracle"):
        gate.check(case, inputs, turned)
    assert gate.check(case, inputs, turned, eps=4.0) < 1


def test_features_that_do_not_turn_are_untouched() -> None:
    """Beyond rotary_dim the bound is zero."""
    case = replace(CASE, rotary_dim=6, dtype=torch.bfloat16)
    inputs, tables = case.tensors(), case.cos_sin()
    turned = rw.rotate(inputs[0], *tables, interleaved=False, rotary_dim=6)
    gate.check(case, inputs, [turned])
    turned[..., -1] *= 1 + 2**-7
    with pytest.raises(rw.RopeError, match="oracle"):
        gate.check(case, inputs, [turned])


def test_shape_and_dtype_are_kept() -> None:
    """A result that is another dtype or shape is refused before its numbers are read."""
    inputs, tables = CASE.tensors(), CASE.cos_sin()
    turned = rw.rotate(inputs[0], *tables, interleaved=False)
    for other in (turned.double(), turned[:, :-1]):
        with pytest.raises(rw.RopeError, match="another shape or dtype"):
            gate.check(CASE, inputs, [other])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_a_unit_in_the_last_place(dtype: torch.dtype) -> None:
    """Half the way to the next number of the dtype, at powers of two, in between, and below the smallest normal."""
    tiny = torch.finfo(dtype).smallest_normal
    values = torch.tensor([1.0, 1.5, 255.0, 256.0, -3.0, tiny, tiny / 2, 0.0]).to(dtype)
    above = torch.nextafter(values.abs(), torch.full_like(values, torch.inf))
    expected = (above.double() - values.abs().double()) / 2
    np.testing.assert_array_equal(gate.half_unit(values.double().numpy(), dtype), expected.numpy())


def test_the_bounds_are_those_that_are_promised() -> None:
    """float32: 1e-6. 16-bit: half a unit in the last place, and 2e-7 of the pair's length. 0 where nothing turns."""
    result, lengths = np.array([1.0, 2.5, 1.0]), np.array([3.0, 3.0, 0.0])
    for dtype, rounding in ((torch.bfloat16, [2**-8, 2**-7, 0.0]), (torch.float16, [2**-11, 2**-10, 0.0])):
        found = gate.bounds(result, lengths, dtype)
        assert found[0].tolist() == rounding
        assert found[1].tolist() == pytest.approx([6e-7, 6e-7, 0.0])
    assert [part.tolist() for part in gate.bounds(result, lengths, torch.float32)] == [[0.0] * 3, [1e-6, 1e-6, 0.0]]


def test_long_cases_are_sampled_to_their_ends() -> None:
    """The last token of a long case is among those checked."""
    case = replace(CASE, seq=1000)
    inputs, tables = case.tensors(), case.cos_sin()
    turned = rw.rotate(inputs[0], *tables, interleaved=False)
    gate.check(case, inputs, [turned])
    turned[0, -1, 2, 5] += 0.01
    with pytest.raises(rw.RopeError) as refused:
        gate.check(case, inputs, [turned])
    assert refused.value.facts["at"] == "token 999, head 2, feature 5"
