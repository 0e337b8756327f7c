"""Products of half types in float32 tiles: against a float64 truth, and only where the CPU multiplies them slowly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from ropewalk.layers.norm import multiplied
from ropewalk.rotation.backends import choose_linear, reference, widened
from tests.checkpoints.test_stored_dtype import no_half_products
from tests.rotation.backends.truth import Allowed, wide

HALVES = (torch.bfloat16, torch.float16)


@pytest.fixture(autouse=True)
def _slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU without instructions for half types, and tiles of few rows."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True})
    monkeypatch.setattr(widened, "TILE", 200)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("outputs", [1, 6, 7, 20, 0])
def test_a_product_is_rounded_once(dtype: torch.dtype, biased: bool, outputs: int) -> None:
    """x W^T + b for whole tiles, a part of one, one row, none; rows of `x` in two dimensions."""
    features = 33  # 6 rows of a weight in a tile
    x = torch.randn(3, 5, features).to(dtype)
    weight, bias = torch.randn(outputs, features).to(dtype), torch.randn(outputs).to(dtype) if biased else None
    assert choose_linear(x, [weight], [bias]).name == "widened"
    with no_half_products():
        [out] = widened.multiply(x, [weight], [bias])
    assert (out.dtype, out.shape) == (dtype, (3, 5, outputs))
    a, b = wide(x), wide(weight)
    extra = np.zeros(outputs) if bias is None else wide(bias)
    sizes = np.abs(a) @ np.abs(b).T + np.abs(extra)
    Allowed(a @ b.T + extra, (features + 4) * 2.0**-24 * sizes + 1e-40, dtype).check(out, "widened")


def test_a_weight_that_is_not_contiguous_and_a_view_of_x() -> None:
    """Strides of any kind, as those of a slice of fused weights."""
    x, weight = torch.randn(40, 9, 2).bfloat16()[..., 0], torch.randn(9, 14).bfloat16().t()
    [out] = widened.multiply(x, [weight], [None])
    torch.testing.assert_close(out, (x.float() @ weight.float().t()).bfloat16(), atol=0, rtol=2**-7)


def test_others_multiply_where_it_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    """float32, gradients, autocast, a compiler, and a CPU with fast products."""
    x, weight = torch.randn(20, 8).bfloat16(), torch.randn(4, 8).bfloat16()
    asked = widened.reasons_not_to_multiply
    assert asked(x, [weight], [None]) == []
    assert "not slow" in asked(x.float(), [weight.float()], [None])[0]
    assert "float32" in asked(x, [weight.float()], [None])[0]
    assert asked(x, [weight.requires_grad_()], [None]) == ["a gradient is needed"]
    with torch.no_grad():
        assert asked(x, [weight], [None]) == []
    with torch.autocast("cpu"):
        assert "autocast" in asked(x, [weight.detach()], [None])[0]
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True, "cpu_name": "AMD"})
    assert choose_linear(x, [weight.detach()], [None]).name == reference.name


def test_transforms_get_torchs_product() -> None:
    """Tangents, gradients and batches of torch.func, and a dispatch mode; tiles would lose the tangent silently."""
    x, tangent, weight = (
        torch.randn(3, 20, 8).bfloat16(),
        torch.randn(3, 20, 8).bfloat16(),
        torch.randn(4, 8).bfloat16(),
    )

    def product(x: torch.Tensor) -> torch.Tensor:
        return multiplied(x, weight)

    with torch.no_grad():
        assert choose_linear(x, [weight], [None]).name == "widened"
        torch.testing.assert_close(torch.func.jvp(product, (x,), (tangent,))[1], tangent @ weight.t())
        torch.testing.assert_close(torch.func.vmap(product)(x), x @ weight.t())
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(product(forward_ad.make_dual(x, tangent))).tangent
        torch.testing.assert_close(found, tangent @ weight.t())
        with FlopCounterMode(display=False):
            assert "dispatch mode" in widened.reasons_not_to_multiply(x, [weight], [None])[0]
