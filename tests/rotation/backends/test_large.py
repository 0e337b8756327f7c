"""Large tensors and several threads: the streaming stores, huge pages and teams give the bits of the plain path."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from functools import lru_cache

import pytest
import torch

import ropewalk as rw
from tests.rotation.backends.truth import same_bits

ROWS, HEADS = 260, 64  # no multiple of a block of tokens
STREAMED = 16 << 20  # bytes from which results are written past the caches (module.cpp)
SHARED = 128 << 10  # bytes from which a second thread helps, and the GIL is released
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@lru_cache
def large(dtype: torch.dtype, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A tensor just above `STREAMED`, and its tables."""
    dim = STREAMED // (256 * HEADS * dtype.itemsize)
    x = torch.randn(1, ROWS, HEADS, dim, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert x.nbytes > STREAMED
    angle = torch.rand(ROWS, dim // 2, generator=torch.Generator().manual_seed(1)) * 100
    return x.to(device), angle.cos().to(device), angle.sin().to(device)


def by_rows(x, cos, sin, **options):
    """The same in calls so small that none is shared or streamed."""
    step = max(1, SHARED // (2 * x[:, 0].nbytes))
    return torch.cat([rw.rotate(x[:, i : i + step], cos[i : i + step], sin[i : i + step], **options)
                      for i in range(0, ROWS, step)], dim=1)  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "interleaved"),
    [pytest.param(dtype, paired, marks=[pytest.mark.thorough] * (paired == (number % 2 == 0)))
     for number, dtype in enumerate(DTYPES) for paired in (False, True)],
)  # fmt: skip
def test_large_equals_small(dtype, interleaved, kernels, two_threads):
    """Fresh, into aligned and odd memory, in place, partial, two threads: bit for bit what small calls give."""
    x, cos, sin = large(dtype, kernels.device)
    options = {"interleaved": interleaved, "backend": kernels.backend}
    right = by_rows(x, cos, sin, **options)
    assert same_bits(rw.rotate(x, cos, sin, **options), right)
    for first in (0, 1):  # elements beyond a whole line of the cache
        around = torch.full((x.numel() + 64,), float("nan"), dtype=dtype, device=kernels.device)
        first += -around.data_ptr() % 64 // dtype.itemsize
        given = around[first : first + x.numel()].view(x.shape)
        assert same_bits(rw.rotate(x, cos, sin, out=given, **options), right)
        given.fill_(float("nan"))
        assert around.isnan().all()  # nothing was written around the result
        del around, given
    part = {"rotary_dim": x.shape[-1] // 2, **options}
    half = cos[:, : x.shape[-1] // 4].contiguous(), sin[:, : x.shape[-1] // 4].contiguous()
    assert same_bits(rw.rotate(x, *half, **part), by_rows(x, *half, **part))
    assert same_bits(rw.rotate(x.clone(), cos, sin, inplace=True, **options), right)


def test_large_in_every_layout(kernels, two_threads):
    """Heads before tokens, packed tokens, and queries with fewer keys, whose sizes stream for one and not the other."""
    x, cos, sin = large(torch.bfloat16, kernels.device)
    options = {"interleaved": False, "backend": kernels.backend}
    right = by_rows(x, cos, sin, **options)
    heads_first = x.transpose(1, 2).contiguous()
    assert same_bits(rw.rotate(heads_first, cos, sin, layout="bhsd", **options).transpose(1, 2), right)
    assert same_bits(rw.rotate(x[0], cos, sin, layout="thd", **options), right[0])
    q, k = rw.rotate_qk(x, x[:, :, :3], cos, sin, **options)
    assert same_bits(q, right)
    assert same_bits(k, right[:, :, :3])


def test_two_python_threads(kernels, two_threads):
    """Two threads that rotate other tensors at the same time, without the GIL, do not disturb each other."""
    jobs = []
    for seed in range(2):
        x = torch.randn(1, 64, 16, 128, generator=torch.Generator().manual_seed(seed)).to(kernels.device)
        assert x.nbytes > 2 * SHARED
        angle = torch.rand(64, 64, device=kernels.device) * 9
        jobs.append((x, angle.cos(), angle.sin(), {"interleaved": bool(seed), "backend": kernels.backend}))
    right = [rw.rotate(x, cos, sin, **options) for x, cos, sin, options in jobs]
    wrong = [0, 0]
    start = threading.Barrier(2)

    def work(i: int) -> None:
        x, cos, sin, options = jobs[i]
        start.wait()
        for _ in range(40):
            wrong[i] += not torch.equal(rw.rotate(x, cos, sin, **options), right[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0, 0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_after_fork(kernels, two_threads):
    """A forked child has no part of its parent's team: it makes threads of its own, and ends."""
    if kernels.device != "cpu":
        pytest.skip("CUDA cannot be used in a forked child")
    x = torch.randn(1, 64, 16, 128)
    angle = torch.rand(64, 64) * 9
    right = rw.rotate(x, angle.cos(), angle.sin(), interleaved=True, backend=kernels.backend)
    cos, sin, out = angle.cos(), angle.sin(), torch.empty_like(x)  # PyTorch's own filling would wait for its team
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks where there are threads
        child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # waiting for ever ends in death, not in pytest's handler
        signal.alarm(20)
        got = rw.rotate(x, cos, sin, interleaved=True, backend=kernels.backend, out=out)
        os._exit(int(got.view(-1).tolist() != right.view(-1).tolist()))
    assert os.waitpid(child, 0)[1] == 0


DIM, SAMPLE = 128, 16


@pytest.mark.slow
@pytest.mark.parametrize("interleaved", [False, True])
def test_beyond_32_bits(interleaved, kernels, two_threads):
    """4 GiB in bfloat16, in place: the first rows, those around element 2^31, and the last ones are as in small calls.

    Needs 6 GiB. The tensor ends 16 tokens after element 2^31: an offset that wrapped around would turn the first rows.
    """
    if kernels.backend == "triton" and kernels.device == "cpu":
        pytest.skip("hours in Triton's interpreter")
    around = 2**31 // (32 * DIM)
    seq = around + SAMPLE
    x = torch.empty(1, seq, 32, DIM, dtype=torch.bfloat16, device=kernels.device)
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
