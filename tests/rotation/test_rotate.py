"""`rotate`, `rotate_qk` and the complex form: properties, refusals, messages. The numbers are tested in backends/."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw


@given(
    st.integers(1, 3), st.integers(1, 6), st.integers(1, 4), st.integers(1, 9), st.booleans(), st.booleans(),
    st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_norm_inverse_and_composition(batch, seq, heads, pairs, interleaved, inplace, seed):
    """Norms stay; turning back restores; turning by a then b is turning by a + b."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, seq, heads, 2 * pairs, generator=generator, dtype=torch.float64)
    a = torch.rand(seq, pairs, generator=generator, dtype=torch.float64) * 12 - 6
    b = torch.rand(batch, seq, pairs, generator=generator, dtype=torch.float64) * 12 - 6

    def turn(y, angle, **options):
        return rw.rotate(y, angle.cos(), angle.sin(), interleaved=interleaved, **options)

    turned = turn(x, a)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(turn(turned, a, inverse=True, inplace=inplace), x, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(turn(turn(x, a), b), turn(x, a + b), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["reference", None])
def test_in_place_under_autograd(backend):
    """In place on a non-leaf gives the gradients of the copy, in x and in the tables, and bumps the version counter."""
    leaf, angle = torch.randn(1, 4, 2, 6, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
    grads = []
    for inplace in (False, True):
        x, a = leaf.clone().requires_grad_(), angle.clone().requires_grad_()
        y = x * 2
        version = y._version
        z = rw.rotate(y, a.cos(), a.sin(), interleaved=True, inplace=inplace, backend=backend)
        assert (z is y) == inplace
        assert (y._version > version) == inplace
        (z**3).sum().backward()
        grads.append((x.grad, a.grad))
    torch.testing.assert_close(grads[0], grads[1])


X, C, META = torch.zeros(2, 5, 8, 64), torch.zeros(5, 32), torch.zeros(5, 32, device="meta")
TENSORS = [
    (r'(?s)8 rows.*If `x` is .batch, heads, seq, head_dim., pass layout="bhsd"', X, *torch.zeros(2, 8, 32)),
    (r"(?s)64 pairs.*cos\[\.\.\., :32\]", X, *torch.zeros(2, 5, 64)),
    (r"(?s)41 pairs.*For partial rotation", X[..., :41], *torch.zeros(2, 5, 41)),
    ("16 pairs, which is not half", X, C[:, :16], C[:, :16]),
    ("20 pairs, which is not half of", X[..., :41], C[:, :20], C[:, :20]),
    ("must be a tensor", [1.0], C, C),
    ("neither sparse", X.to_sparse(), C, C),
    ("must be float64, float32, bfloat16 or float16", X.long(), C, C),
    ("5 tokens but `cos` has 4 rows", X, C[:4], C[:4]),
    ("must both be float32 or both float64", X, C.bfloat16(), C.bfloat16()),
    ("must both be float32 or both float64", X, C.double(), C),
    ("`cos` must be of type Tensor", X, C.numpy(), C),
    ("`sin` must be of type Tensor", X, C, C.numpy()),
    ("same shape", X, C, C[:, :16]),
    *(("the device of `x`", *given) for given in ((X, META, META), (X, C, META), (X.to("meta"), C, C))),
    *(("wrong number of dimensions", *given) for given in ((X[0], C, C), (X, C[0], C[0]))),
    *(("batch or heads of `cos`", X, *torch.zeros(2, *rows)) for rows in ((3, 5, 32), (1, 5, 3, 32), (3, 5, 1, 32))),
]  # fmt: skip
OPTIONS = [
    ("`interleaved` must be True or False", {"interleaved": "half"}),
    ("`rotary_dim` must be a whole number", {"rotary_dim": "64"}),
    ("`scale` must be a finite number", {"scale": "1"}),
    *((f"`{name}` must be of type bool", {name: 0}) for name in ("inverse", "inplace")),
    *(("unknown layout", {"layout": layout}) for layout in ("sbhd", ["bshd"])),
    ("are mutually exclusive", {"inplace": True, "out": X}),
    *(("`out` must have the shape", {"out": out}) for out in (X[:1], X.half(), X.to("meta"))),
    ("no backend 'cuda'", {"backend": "cuda"}),
]
BAD = [
    *((message, partial(rw.rotate, *given, interleaved=True)) for message, *given in TENSORS),
    *((message, partial(rw.rotate, X, C, C, **{"interleaved": True, **options})) for message, options in OPTIONS),
    ("3 tokens but `cos` has 5 rows", lambda: rw.rotate(X[:, :, :3], C, C, interleaved=True, layout="bhsd")),
    ("16 pairs, which is not half", lambda: rw.rotate(X, C[:, :16], C[:, :16], interleaved=True, rotary_dim=64)),
    ("20 pairs", lambda: rw.rotate(X[..., :41], C[:, :20], C[:, :20], interleaved=True, rotary_dim=41, inplace=True)),
    ("more than the head has", lambda: rw.rotate(X[..., :32], C, C, interleaved=True, rotary_dim=64)),
    ("expanded tensor", lambda: rw.rotate(X[:1].expand(2, 5, 8, 64), C, C, interleaved=True, inplace=True)),
    ("not support gradients", lambda: rw.rotate(X, C.clone().requires_grad_(), C, interleaved=True, out=X.clone())),
    *(("`rotary_offset` must be a feature",
       lambda turn=turn, offset=offset: turn(C, C, interleaved=True, rotary_dim=64, rotary_offset=offset))
      for offset in (5, -4, "4", (0, 0, 0)) for turn in (partial(rw.rotate, X), partial(rw.rotate_qk, X, X))),
]  # fmt: skip


@pytest.mark.rejects
@pytest.mark.parametrize(("message", "call"), BAD)
def test_bad_input(message, call):
    """What does not fit is a RopeError that says so."""
    with pytest.raises(rw.RopeError, match=message):
        call()


@pytest.mark.parametrize("twice", [lambda x: torch.cat([x, x], -1), lambda x: x.repeat_interleave(2, -1)])
def test_tables_are_accepted_by_their_shapes(twice):
    """transformers' tables of a partial rotation are refused if `rotary_dim` says so, whatever was called before.

    A table of positions (m, m), which contains each angle twice, is right.
    """
    once = rw.RotaryEmbedding(rw.RopeConfig(16, interleaved=False)).cos_sin(torch.arange(5))
    doubled, x = [twice(table) for table in once], torch.randn(2, 5, 1, 32)
    for _ in range(2):
        with pytest.raises(rw.RopeError, match=r"(?s)each angle twice.*cos\[\.\.\., :8\].*cos\[\.\.\., ::2\]"):
            rw.rotate(x, *doubled, interleaved=False, rotary_dim=16)
        rw.rotate(x, *once, interleaved=False, rotary_dim=16)
        rw.rotate(x, *doubled, interleaved=False)


# --- the complex form


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


VIEWS = {
    "odd offset": lambda buffer: buffer[1:49].view(2, 3, 2, 4),
    "odd heads": lambda buffer: buffer.as_strided((2, 3, 2, 4), (36, 18, 9, 1)),
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
def test_bad_input_of_complex():
    """Wrong shapes and real tables are refused; one batch of tables serves every row."""
    cis = rw.rotation.freqs_cis(torch.ones(4, 2), torch.zeros(4, 2))
    assert torch.equal(rw.rotation.apply_rotary_complex(torch.ones(3, 4, 1, 4), cis[None]), torch.ones(3, 4, 1, 4))
    with pytest.raises(rw.RopeError, match="`x` must be floats, and `freqs_cis` complex"):
        rw.rotation.apply_rotary_complex(torch.zeros(1, 4, 1, 4), torch.ones(4, 2))
    with pytest.raises(rw.RopeError, match="`x` must be floats, and `freqs_cis` complex"):
        rw.rotation.apply_rotary_complex(torch.zeros(1, 4, 1, 4), cis.expand(5, 4, 2))
    with pytest.raises(rw.RopeError, match="`x` must be floats, and `freqs_cis` complex"):
        rw.rotation.apply_rotary_complex(torch.zeros(1, 4, 1, 4).long(), cis)
    with pytest.raises(rw.RopeError, match="must have the same shape"):
        rw.rotation.freqs_cis(torch.ones(4, 2).half(), torch.zeros(4, 2).half())
    with pytest.raises(rw.RopeError, match=r"\[seq, pairs\]"):
        rw.rotation.apply_rotary_complex(torch.zeros(1, 5, 1, 4), cis)
