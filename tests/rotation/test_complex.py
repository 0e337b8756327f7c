"""The complex form equals the real one."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batched", [False, True])
def test_equals_the_real_form(dtype, batched):
    """Multiplying by e^(i angle) is turning interleaved pairs, within 1e-6."""
    x = torch.randn(2, 6, 3, 8).to(dtype)
    ids = torch.randint(0, 100_000, (2, 6) if batched else (6,))
    rope = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=True))
    cos, sin = rope.cos_sin(ids, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    real = rw.rotate(x, cos, sin, interleaved=True)
    got = rw.rotation.apply_rotary_complex(x, rw.rotation.freqs_cis(cos, sin))
    assert got.dtype == dtype
    torch.testing.assert_close(got, real, rtol=0, atol=1e-6 if dtype != torch.bfloat16 else 2e-2)


def test_strided_and_empty():
    """Views and empty batches go through."""
    cis = rw.rotation.freqs_cis(torch.rand(6, 2), torch.rand(6, 2))
    x = torch.randn(2, 3, 6, 4).transpose(1, 2)
    torch.testing.assert_close(
        rw.rotation.apply_rotary_complex(x, cis), rw.rotation.apply_rotary_complex(x.contiguous(), cis)
    )
    assert rw.rotation.apply_rotary_complex(torch.empty(0, 6, 3, 4), cis).shape == (0, 6, 3, 4)


VIEWS = {
    "odd offset": lambda buffer: buffer[1:49].view(2, 3, 2, 4),
    "odd strides": lambda buffer: buffer[:90].view(2, 3, 3, 5)[:, :, :2, :4],
    "every other feature": lambda buffer: buffer[:96].view(2, 3, 2, 8)[..., ::2],
    "every other feature from the second": lambda buffer: buffer[:96].view(2, 3, 2, 8)[..., 1::2],
    "features first": lambda buffer: buffer[:48].view(4, 2, 3, 2).permute(1, 2, 3, 0),
    "expanded": lambda buffer: buffer[3:27].view(1, 3, 2, 4).expand(2, 3, 2, 4),
    "no tokens": lambda buffer: buffer[1:41].view(2, 1, 4, 5)[:, 1:, :2, 1:],
    "no tokens, features apart": lambda buffer: buffer.as_strided((2, 0, 2, 4), (1, 1, 1, 3), 1),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_any_memory(view, dtype):
    """Whatever the offset and the strides of the input and of the gradient: as for contiguous ones, to the bit."""
    x, grad = view(torch.randn(99).to(dtype)), view(torch.randn(99).to(dtype))
    cis = rw.rotation.freqs_cis(torch.rand(x.shape[1], 2), torch.rand(x.shape[1], 2))
    found, right = [], []
    for to, xs, grads in ((found, x, grad), (right, x.clone(memory_format=torch.contiguous_format),
                                             grad.clone(memory_format=torch.contiguous_format))):  # fmt: skip
        leaf, factors = xs.detach().requires_grad_(), cis.clone().requires_grad_()
        turned = rw.rotation.apply_rotary_complex(leaf, factors)
        to += [turned.detach(), *torch.autograd.grad(turned, (leaf, factors), grads)]
    for a, b in zip(found, right, strict=True):
        assert torch.equal(a, b)


@pytest.mark.traced
def test_transforms():
    """Under torch.func and in a graph: the same numbers."""
    x, cis = torch.randn(97)[1:].view(2, 3, 4, 4), rw.rotation.freqs_cis(torch.rand(3, 2), torch.rand(3, 2))
    right = rw.rotation.apply_rotary_complex(x, cis)
    mapped = torch.func.vmap(lambda row: rw.rotation.apply_rotary_complex(row[None], cis)[0])(x)
    torch.testing.assert_close(mapped, right, rtol=0, atol=0)
    _, slope = torch.func.jvp(lambda x: rw.rotation.apply_rotary_complex(x, cis), (x,), (x,))
    torch.testing.assert_close(slope, right, rtol=0, atol=1e-6)
    assert torch.autograd.gradgradcheck(
        lambda x: rw.rotation.apply_rotary_complex(x, cis), x[:1, :, :1].double().requires_grad_(), atol=1e-4
    )


@pytest.mark.rejects
def test_bad_input():
    """Wrong shapes and real tables are refused."""
    cis = rw.rotation.freqs_cis(torch.ones(4, 2), torch.zeros(4, 2))
    with pytest.raises(rw.RopeError, match="must be complex"):
        rw.rotation.apply_rotary_complex(torch.zeros(1, 4, 1, 4), torch.ones(4, 2))
    with pytest.raises(rw.RopeError, match="batch of `freqs_cis`"):
        rw.rotation.apply_rotary_complex(torch.zeros(1, 4, 1, 4), cis.expand(5, 4, 2))
    with pytest.raises(rw.RopeError, match="must be floating point"):
        rw.rotation.apply_rotary_complex(torch.zeros(1, 4, 1, 4).long(), cis)
    with pytest.raises(rw.RopeError, match="must have the same shape"):
        rw.rotation.freqs_cis(torch.ones(4, 2).half(), torch.zeros(4, 2).half())
    with pytest.raises(rw.RopeError, match=r"\[seq, pairs\]"):
        rw.rotation.apply_rotary_complex(torch.zeros(1, 5, 1, 4), cis)
