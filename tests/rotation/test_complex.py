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
    got = rw.apply_rotary_complex(x, rw.freqs_cis(cos, sin))
    assert got.dtype == dtype
    torch.testing.assert_close(got, real, rtol=0, atol=1e-6 if dtype != torch.bfloat16 else 2e-2)


def test_strided_and_empty():
    """Views and empty batches go through."""
    cis = rw.freqs_cis(torch.rand(6, 2), torch.rand(6, 2))
    x = torch.randn(2, 3, 6, 4).transpose(1, 2)
    torch.testing.assert_close(rw.apply_rotary_complex(x, cis), rw.apply_rotary_complex(x.contiguous(), cis))
    assert rw.apply_rotary_complex(torch.empty(0, 6, 3, 4), cis).shape == (0, 6, 3, 4)


@pytest.mark.rejects
def test_bad_input():
    """Wrong shapes and real tables are refused."""
    cis = rw.freqs_cis(torch.ones(4, 2), torch.zeros(4, 2))
    with pytest.raises(rw.RopeError, match="must be complex"):
        rw.apply_rotary_complex(torch.zeros(1, 4, 1, 4), torch.ones(4, 2))
    with pytest.raises(rw.RopeError, match="batch of `freqs_cis`"):
        rw.apply_rotary_complex(torch.zeros(1, 4, 1, 4), cis.expand(5, 4, 2))
    with pytest.raises(rw.RopeError, match="must be floating point"):
        rw.apply_rotary_complex(torch.zeros(1, 4, 1, 4).long(), cis)
    with pytest.raises(rw.RopeError, match="must have one shape"):
        rw.freqs_cis(torch.ones(4, 2).half(), torch.zeros(4, 2).half())
    with pytest.raises(rw.RopeError, match=r"\[seq, pairs\]"):
        rw.apply_rotary_complex(torch.zeros(1, 5, 1, 4), cis)
