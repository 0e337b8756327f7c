"""More than 2^31 elements in one tensor: every offset in 64 bits."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from tests.backends.truth import same_bits

HEADS, DIM, SAMPLE = 32, 128, 16


@pytest.mark.slow
@pytest.mark.parametrize("interleaved", [False, True])
def test_beyond_32_bits(interleaved, kernels, two_threads):
    """4 GiB in bfloat16, in place: the first rows, those around element 2^31, and the last ones are as in small calls.

    Needs 6 GiB. The tensor ends 16 tokens after element 2^31: an offset that wrapped around would turn the first rows.
    """
    if kernels.backend == "triton" and kernels.device == "cpu":
        pytest.skip("hours in Triton's interpreter")
    around = 2**31 // (HEADS * DIM)
    seq = around + SAMPLE
    x = torch.empty(1, seq, HEADS, DIM, dtype=torch.bfloat16, device=kernels.device)
    assert x.numel() > 2**31
    x.view(torch.int16).fill_(0)
    samples = [slice(0, SAMPLE), slice(around // 2, around // 2 + SAMPLE), slice(seq - 2 * SAMPLE, seq)]
    source = torch.Generator().manual_seed(5)
    for rows in samples:
        x[:, rows] = torch.randn(x[:, rows].shape, generator=source).to(x.device, x.dtype)
    before = [x[:, rows].clone() for rows in samples]
    angle = torch.rand(seq, 1, generator=source).to(kernels.device).expand(-1, DIM // 2) * 50
    cos, sin = angle.cos(), angle.sin()
    options = {"interleaved": interleaved, "backend": kernels.backend}
    version = x._version
    assert rw.rotate(x, cos, sin, inplace=True, **options) is x
    assert x._version > version
    for rows, old in zip(samples, before, strict=True):
        assert same_bits(x[:, rows], rw.rotate(old, cos[rows], sin[rows], **options))
    for start in range(0, seq, 2**15):  # all else was zero, and is
        part = x[:, start : start + 2**15].clone()
        for rows in samples:
            part[:, max(0, rows.start - start) : max(0, rows.stop - start)] = 0
        assert not part.any()
