"""Large results lie in huge pages, and are tensors like any other."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from ropewalk import compiled

pytestmark = pytest.mark.skipif(compiled.kernels is None, reason="no compiled extension")
ROWS = 4 << 20 >> 9  # rows of 512 bytes that just fill the size from which huge pages are asked for


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_as_empty_like(dtype):
    """Shape, dtype, device and strides of empty_like; NaN where torch fills fresh memory."""
    x = torch.zeros(2, 3, 8, 8 * ROWS, dtype=dtype)
    for like in (x, x.transpose(1, 2), x.permute(3, 0, 2, 1), x[:1].expand(2, -1, -1, -1)):
        new, expected = compiled.new_like(like), torch.empty_like(like)
        assert (new.shape, new.stride(), new.dtype, new.device) == (
            expected.shape, expected.stride(), expected.dtype, expected.device
        )  # fmt: skip
        assert new.isnan().all()
        assert not new.requires_grad


def test_results_are_tensors_like_any_other(tmp_path):
    """They are saved, copied, shared, resized, viewed and trained through."""
    x = torch.randn(1, ROWS, 1, 128)
    angle = torch.rand(ROWS, 64)
    y = rw.rotate(x, angle.cos(), angle.sin(), interleaved=False)
    torch.save(y, tmp_path / "y.pt")
    assert torch.equal(torch.load(tmp_path / "y.pt"), y)
    assert torch.equal(y.clone().share_memory_(), y)
    leaf = x.clone().requires_grad_()
    rw.rotate(leaf, angle.cos(), angle.sin(), interleaved=False).square().sum().backward()
    torch.testing.assert_close(leaf.grad, 2 * x, atol=1e-5, rtol=1e-5)
    with torch.inference_mode():
        z = rw.rotate(x, angle.cos(), angle.sin(), interleaved=False)
    assert torch.equal(z, y)


def test_results_can_be_resized():
    """In place, as FSDP frees storages and `out=` arguments grow; also gradients, norms and tables."""
    x, weight = torch.randn(1, ROWS, 1, 128, requires_grad=True), torch.ones(128)
    rope = rw.RotaryEmbedding(rw.RopeConfig(128, interleaved=False))
    cos, sin = rope.cos_sin(torch.arange(2 * ROWS))
    assert cos.nbytes >= 4 << 20
    cos, sin = cos[:ROWS], sin[:ROWS]
    turned = rw.rotate(x, cos, sin, interleaved=False)
    (grad,) = torch.autograd.grad(turned.sum(), x)
    normed = rw.qk_norm_rotate(x.detach(), x.detach(), weight, weight, cos, sin, interleaved=False)
    for result in (turned.detach(), grad, *normed, cos):
        head = result.flatten()[:4].clone()
        result.resize_(1, 2 * ROWS, 1, 128)
        assert torch.equal(result.flatten()[:4], head)
        result.untyped_storage().resize_(0)
