"""The fused pass of `Attention` (norm, rotation, write into the cache) equals its modules one after the other."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from ropewalk.layers import attention as attention_module
from ropewalk.layers.cache import KVCache
from ropewalk.rotation.backends import choose

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 3e-2}


def make(dtype: torch.dtype, *, qk_norm: bool, interleaved: bool = False) -> rw.Attention:
    """Three heads of 10 features, six of which turn; one key head; weights of the norms that are not 1."""
    torch.manual_seed(1)
    rope = rw.RopeConfig(10, interleaved=interleaved, rotary_dim=6, scaling=None)
    attention = rw.Attention(30, 3, num_key_value_heads=1, rope=rope, qk_norm=qk_norm)
    for norm in (attention.q_norm, attention.k_norm):
        if norm is not None:
            torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
    return attention.to(dtype)


def apart(attention: rw.Attention) -> rw.Attention:
    """A hook that listens to a norm makes the modules run one by one."""
    assert attention.q_norm is not None
    attention.q_norm.register_forward_hook(lambda *_: None)
    return attention


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [False, True])
def test_fused_norm_equals_the_modules(dtype, interleaved):
    """Output and every gradient; the hooked module is asked to really run its norms."""
    x = torch.randn(2, 7, 30).to(dtype)
    found = []
    for attention in (make(dtype, qk_norm=True, interleaved=interleaved),
                      apart(make(dtype, qk_norm=True, interleaved=interleaved))):  # fmt: skip
        given = x.clone().requires_grad_()
        out = attention(given)
        out.float().square().sum().backward()
        found.append([out.detach(), given.grad, *(p.grad for p in attention.parameters())])
    for fused, separate in zip(*found, strict=True):
        torch.testing.assert_close(fused, separate, rtol=10 * TOLERANCE[dtype], atol=10 * TOLERANCE[dtype])


def test_a_hook_on_a_norm_is_called():
    """Whoever listens to a norm module hears it."""
    attention, heard = make(torch.float32, qk_norm=True), []
    attention.k_norm.register_forward_hook(lambda module, given, out: heard.append(out.shape))
    attention(torch.randn(1, 4, 30))
    assert heard == [(1, 4, 1, 10)]


def test_another_norm_is_honoured():
    """A norm that is not ours is called, not replaced."""
    attention = make(torch.float32, qk_norm=True)
    x = torch.randn(1, 4, 30)
    before = attention(x)
    attention.q_norm = torch.nn.Identity()
    assert not torch.allclose(attention(x), before)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ragged", [False, True])
def test_the_kernel_writes_what_the_cache_would(qk_norm, dtype, ragged, monkeypatch):
    """Prefill and two decoding steps, rows alike or left-padded: same outputs, same buffers."""
    mask = torch.ones(2, 6, dtype=torch.bool)
    if ragged:
        mask[1, :4] = False
    steps = torch.randn(2, 6, 30).to(dtype), torch.randn(2, 1, 30).to(dtype), torch.randn(2, 1, 30).to(dtype)

    def decode(by_kernel: bool) -> list[torch.Tensor]:
        with monkeypatch.context() as patch:
            if not by_kernel:
                patch.setattr(KVCache, "store", lambda *_: None)
            attention = make(dtype, qk_norm=qk_norm)
            cache = KVCache(num_layers=1, batch=2, num_key_value_heads=1, head_dim=10, dtype=dtype)
            outs = [attention(x, cache=cache, attention_mask=mask if x.shape[1] == 6 else None) for x in steps]
            held = [cache._keys[0][row, :, : cache.lengths[row]] for row in range(2)]
            held += [cache._values[0][row, :, : cache.lengths[row]] for row in range(2)]
        outs[0] = outs[0][mask]
        return [*outs, *held]

    for fused, separate in zip(decode(True), decode(False), strict=True):
        torch.testing.assert_close(fused, separate, rtol=0, atol=TOLERANCE[dtype])


def test_the_kernel_is_asked():
    """The cache's write really goes through the fused pass where the extension is there."""
    calls = []
    original = attention_module.norm_rotated

    def counting(*arguments, **options):
        calls.append(arguments[-1])
        return original(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_module, "norm_rotated", counting)
        attention = make(torch.float32, qk_norm=False)
        attention(torch.randn(1, 3, 30), cache=KVCache(num_layers=1, batch=1, num_key_value_heads=1, head_dim=10))
    kernels = choose(torch.zeros(1)).kernels
    assert len(calls) == int(kernels)
