"""`rotate` and `rotate_qk` against the float64 oracle, in every variant."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
import ropewalk.rotation.rotate as rotate_module
from ropewalk.rope import dispatch as compiled
from ropewalk.rotation import checks
from tests import oracle

UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


def tables(angle: np.ndarray, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(np.cos(angle), dtype=dtype), torch.tensor(np.sin(angle), dtype=dtype)


def tolerance(x: torch.Tensor, scale: float = 1.0) -> float:
    """One rounding of the result, plus table and product roundings in the compute dtype."""
    compute = UNIT[torch.float64] if x.dtype == torch.float64 else UNIT[torch.float32]
    largest = 2 * scale * float(x.abs().max()) if x.numel() else 0.0
    return largest * (UNIT[x.dtype] + 4 * compute)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("rotary_dim", [12, 8, 2])
def test_equals_the_oracle(dtype, interleaved, layout, inverse, rotary_dim):
    """Every dtype, pairing, layout, direction and rotary fraction agrees with the paper's matrix."""
    shape = {"bshd": (2, 5, 3, 12), "bhsd": (2, 3, 5, 12), "thd": (5, 3, 12)}[layout]
    x = torch.randn(shape).to(dtype)
    angle = np.random.default_rng(0).uniform(-50, 50, (5, rotary_dim // 2))
    cos, sin = tables(angle, torch.float64 if dtype == torch.float64 else torch.float32)
    got = rw.rotate(
        x, cos, sin, interleaved=interleaved, rotary_dim=rotary_dim, layout=layout, inverse=inverse, scale=1.25
    )
    rows = {"bshd": angle[None, :, None], "bhsd": angle[None, None], "thd": angle[:, None]}[layout]
    expected = oracle.rotate(x.double().numpy(), rows, interleaved=interleaved, inverse=inverse, scale=1.25)
    assert got.dtype == dtype
    assert got.shape == x.shape
    np.testing.assert_allclose(got.double().numpy(), expected, rtol=0, atol=tolerance(x, 1.25))
    assert torch.equal(got[..., rotary_dim:], x[..., rotary_dim:])


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("rows", ["seq", "batch", "one", "heads", "every"])
def test_tables_per_batch_and_per_head(layout, rows):
    """Tables may differ by row of the batch, by head, or both; each shape means the same in each layout."""
    batch, seq, heads, pairs = 2, 5, 3, 4
    shape = {
        "seq": (seq, pairs), "batch": (batch, seq, pairs), "one": (1, seq, pairs),
        "heads": (1, seq, heads, pairs), "every": (batch, seq, heads, pairs),
    }[rows]  # fmt: skip
    angle = np.random.default_rng(1).uniform(-3, 3, shape)
    x = torch.randn(batch, seq, heads, 2 * pairs)
    given_x = x if layout == "bshd" else x.transpose(1, 2)
    got = rw.rotate(given_x, *tables(angle), interleaved=True, layout=layout)
    got = got if layout == "bshd" else got.transpose(1, 2)
    full = angle[None, :, None] if rows == "seq" else angle[:, :, None] if angle.ndim == 3 else angle
    np.testing.assert_allclose(got.numpy(), oracle.rotate(x.numpy(), full, interleaved=True), atol=tolerance(x), rtol=0)


def test_packed_tables_per_head():
    """In the packed layout a table row may hold one angle set per head."""
    angle = np.random.default_rng(2).uniform(-3, 3, (7, 3, 4))
    x = torch.randn(7, 3, 8)
    got = rw.rotate(x, *tables(angle), interleaved=False, layout="thd")
    np.testing.assert_allclose(
        got.numpy(), oracle.rotate(x.numpy(), angle, interleaved=False), atol=tolerance(x), rtol=0
    )


def views() -> list[tuple[str, torch.Tensor]]:
    base = torch.randn(2, 9, 6, 20)
    return [
        ("transposed", base.transpose(1, 2)[:, :, :6].transpose(1, 2)[:, :6]),
        ("every second", base[:, 1::2, ::2, 4:12]),
        ("feature stride", base[..., ::2]),
        ("expanded", base[:, :1, :, :8].expand(2, 4, 6, 8)),
        ("head of one", base[:, :, :1, :8]),
    ]


@pytest.mark.parametrize(("name", "x"), views(), ids=[name for name, _ in views()])
@pytest.mark.parametrize("interleaved", [True, False])
def test_any_strides(name, x, interleaved):
    """A view rotates as its contiguous copy does, and in place only where it can be written."""
    cos, sin = rw.RotaryEmbedding(rw.RopeConfig(x.shape[-1], interleaved=interleaved)).cos_sin(torch.arange(x.shape[1]))
    expected = rw.rotate(x.contiguous(), cos, sin, interleaved=interleaved)
    assert torch.equal(rw.rotate(x, cos, sin, interleaved=interleaved), expected)
    target = x.clone() if name == "expanded" else x
    untouched = target.untyped_storage().nbytes()
    assert rw.rotate(target, cos, sin, interleaved=interleaved, inplace=True) is target
    assert torch.equal(target, expected)
    assert target.untyped_storage().nbytes() == untouched


@pytest.mark.parametrize("shape", [(0, 4, 2, 8), (2, 0, 2, 8), (2, 4, 0, 8)])
@pytest.mark.parametrize("interleaved", [True, False])
def test_zero_size(shape, interleaved):
    """Nothing to rotate is not an error."""
    for cos in (torch.ones(shape[1], 4), torch.ones(shape[1], 8)[:, ::2]):
        assert rw.rotate(torch.empty(shape), cos, cos, interleaved=interleaved).shape == shape


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


def test_inverse_keeps_the_scale():
    """inverse=True is the transpose: it undoes the angle, and only the reciprocal scale undoes the scale (law 11)."""
    x, angle = torch.randn(1, 4, 2, 6, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
    cos, sin = angle.cos(), angle.sin()
    once = rw.rotate(x, cos, sin, interleaved=True, scale=1.5)
    torch.testing.assert_close(rw.rotate(once, cos, sin, interleaved=True, scale=1.5, inverse=True), 2.25 * x)
    torch.testing.assert_close(rw.rotate(once, cos, sin, interleaved=True, scale=1 / 1.5, inverse=True), x)


@pytest.mark.parametrize(
    ("interleaved", "layout", "rotary_dim", "inverse"),
    [
        pytest.param(*given, marks=[pytest.mark.repeats_shapes] * (given[0] == given[3]))
        for given in itertools.product([True, False], ["bshd", "bhsd"], [4, 2], [True, False])
    ],
)
def test_gradients(interleaved, layout, rotary_dim, inverse):
    """First and second derivatives in x, cos and sin are right."""
    tokens, heads = 2, 3
    shape = (2, tokens, heads, 4) if layout == "bshd" else (2, heads, tokens, 4)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    cos = torch.randn(tokens, rotary_dim // 2, dtype=torch.float64, requires_grad=True)
    sin = torch.randn(tokens, rotary_dim // 2, dtype=torch.float64, requires_grad=True)

    def turn(x, cos, sin):
        return rw.rotate(
            x, cos, sin, interleaved=interleaved, layout=layout, rotary_dim=rotary_dim, inverse=inverse, scale=1.5
        )

    assert torch.autograd.gradcheck(turn, (x, cos, sin))
    assert torch.autograd.gradgradcheck(turn, (x, cos, sin))


def test_backward_is_the_opposite_turn():
    """The gradient is the incoming one turned back, with the scale kept; in bfloat16 too."""
    x = torch.randn(1, 5, 2, 8).bfloat16().requires_grad_()
    angle = torch.rand(5, 4) * 6
    incoming = torch.randn(1, 5, 2, 8).bfloat16()
    rw.rotate(x, angle.cos(), angle.sin(), interleaved=False, scale=1.5).backward(incoming)
    expected = rw.rotate(incoming, angle.cos(), angle.sin(), interleaved=False, scale=1.5, inverse=True)
    torch.testing.assert_close(x.grad, expected)


def test_in_place_under_autograd():
    """In place on a non-leaf gives the gradients of the copy, in x and in the tables, and bumps the version counter."""
    leaf, angle = torch.randn(1, 4, 2, 6, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
    grads = []
    for inplace in (False, True):
        x, a = leaf.clone().requires_grad_(), angle.clone().requires_grad_()
        y = x * 2
        version = y._version
        z = rw.rotate(y, a.cos(), a.sin(), interleaved=True, inplace=inplace)
        assert (z is y) == inplace
        assert (y._version > version) == inplace
        (z**3).sum().backward()
        grads.append((x.grad, a.grad))
    torch.testing.assert_close(grads[0], grads[1])


def test_in_place_refuses_a_leaf():
    """A leaf that requires grad is refused, for q and for k, before anything is written."""
    q, k = torch.randn(1, 4, 2, 6), torch.randn(1, 4, 2, 6, requires_grad=True)
    cos, sin = torch.zeros(4, 3), torch.ones(4, 3)
    before = q.clone()
    with pytest.raises(rw.RopeError, match="leaf that requires grad"):
        rw.rotate_qk(q, k, cos, sin, interleaved=True, inplace=True)
    assert torch.equal(q, before)
    with torch.no_grad():
        rw.rotate(k, cos, sin, interleaved=True, inplace=True)


def test_out_and_untouched_input():
    """`out` receives the result and is returned; the input stays as it was unless in-place is asked for."""
    x = torch.randn(2, 4, 3, 6)
    before, out = x.clone(), torch.full((2, 4, 3, 6), float("nan"))
    cos, sin = torch.rand(4, 3).cos(), torch.rand(4, 3).sin()
    plain = rw.rotate(x, cos, sin, interleaved=True)
    assert rw.rotate(x, cos, sin, interleaved=True, out=out) is out
    assert torch.equal(out, plain)
    assert torch.equal(x, before)
    shifted = torch.randn(2, 5, 3, 6)
    overlapping = rw.rotate(shifted[:, :4].clone(), cos, sin, interleaved=True)
    assert torch.equal(rw.rotate(shifted[:, :4], cos, sin, interleaved=True, out=shifted[:, 1:]), overlapping)


def test_qk_equals_two_calls():
    """`rotate_qk` is `rotate` on each, also with fewer key heads."""
    q, k = torch.randn(2, 5, 8, 6), torch.randn(2, 5, 2, 6)
    cos, sin = torch.rand(5, 3).cos(), torch.rand(5, 3).sin()
    got = rw.rotate_qk(q, k, cos, sin, interleaved=False, scale=1.1)
    for x, y in zip((q, k), got, strict=True):
        assert torch.equal(y, rw.rotate(x, cos, sin, interleaved=False, scale=1.1))


X, C = torch.zeros(2, 5, 8, 64), torch.zeros(5, 32)
BAD = [
    (r'(?s)8 rows.*If `x` is .batch, heads, seq, head_dim., pass layout="bhsd"',
     lambda: rw.rotate(X, torch.zeros(8, 32), torch.zeros(8, 32), interleaved=True)),
    (r"(?s)64 pairs.*cos\[\.\.\., :32\]", lambda: rw.rotate(X, *torch.zeros(2, 5, 64), interleaved=True)),
    ("must be a tensor", lambda: rw.rotate([1.0], C, C, interleaved=True)),
    ("neither sparse", lambda: rw.rotate(X.to_sparse(), C, C, interleaved=True)),
    ("5 tokens but `cos` has 4 rows", lambda: rw.rotate(X, C[:4], C[:4], interleaved=True)),
    ("3 tokens but `cos` has 5 rows", lambda: rw.rotate(X[:, :, :3], C, C, interleaved=True, layout="bhsd")),
    ("16 pairs, which is not half", lambda: rw.rotate(X, C[:, :16], C[:, :16], interleaved=True)),
    ("16 pairs, which is not half", lambda: rw.rotate(X, C[:, :16], C[:, :16], interleaved=True, rotary_dim=64)),
    ("more than the head has", lambda: rw.rotate(X[..., :32], C, C, interleaved=True, rotary_dim=64)),
    ("must both be float32 or both float64", lambda: rw.rotate(X, C.bfloat16(), C.bfloat16(), interleaved=True)),
    ("must both be float32 or both float64", lambda: rw.rotate(X, C.double(), C, interleaved=True)),
    ("same shape", lambda: rw.rotate(X, C, C[:, :16], interleaved=True)),
    ("`interleaved` must be True or False", lambda: rw.rotate(X, C, C, interleaved="half")),
    ("unknown layout", lambda: rw.rotate(X, C, C, interleaved=True, layout="sbhd")),
    ("wrong number of dimensions", lambda: rw.rotate(X[0], C, C, interleaved=True)),
    ("wrong number of dimensions", lambda: rw.rotate(X, C[0], C[0], interleaved=True)),
    ("batch or heads of `cos`", lambda: rw.rotate(X, C.expand(3, 5, 32), C.expand(3, 5, 32), interleaved=True)),
    ("are mutually exclusive", lambda: rw.rotate(X, C, C, interleaved=True, inplace=True, out=X)),
    ("`out` must have the shape", lambda: rw.rotate(X, C, C, interleaved=True, out=X[:1])),
    ("expanded tensor", lambda: rw.rotate(X[:1].expand(2, 5, 8, 64), C, C, interleaved=True, inplace=True)),
    ("not support gradients", lambda: rw.rotate(X, C.clone().requires_grad_(), C, interleaved=True, out=X.clone())),
    ("no backend 'cuda'", lambda: rw.rotate(X, C, C, interleaved=True, backend="cuda")),
]  # fmt: skip


@pytest.mark.rejects
@pytest.mark.parametrize(("message", "call"), BAD)
def test_bad_input(message, call):
    """What does not fit is a RopeError that says so."""
    with pytest.raises(rw.RopeError, match=message):
        call()


@pytest.mark.rejects
def test_integers_are_refused():
    """Only floating-point features rotate."""
    with pytest.raises(rw.RopeError, match="must be float64, float32, bfloat16 or float16"):
        rw.rotate(X.long(), C, C, interleaved=True)


@pytest.mark.parametrize("twice", [lambda x: torch.cat([x, x], -1), lambda x: x.repeat_interleave(2, -1)])
@pytest.mark.parametrize("name", ["rotate", "rotate_qk", "qk_norm_rotate", "rotate_store"])
def test_tables_with_each_angle_twice_are_refused(name, twice, monkeypatch):
    """transformers' tables of a partial rotation can fit the whole head, and rotate the wrong features in silence."""
    monkeypatch.setattr(checks, "_SINGLE", set())
    cos, sin = (
        twice(table) for table in rw.RotaryEmbedding(rw.RopeConfig(16, interleaved=False)).cos_sin(torch.arange(5))
    )
    x, weight, buffers = torch.randn(2, 5, 1, 32), torch.ones(32), torch.zeros(2, 2, 1, 8, 32)
    store = rw.fused.Store(*buffers, x, torch.arange(5)[None])

    def call(cos, sin):
        arguments = {
            "rotate": (x, cos, sin), "rotate_qk": (x, x, cos, sin), "rotate_store": (x, x, cos, sin, store),
            "qk_norm_rotate": (x, x, weight, weight, cos, sin),
        }[name]  # fmt: skip
        return getattr(rw if name.startswith("rotate") and name != "rotate_store" else rw.fused, name)(
            *arguments, interleaved=False
        )

    with pytest.raises(rw.RopeError, match=r"(?s)each angle twice.*cos\[\.\.\., :8\].*cos\[\.\.\., ::2\]"):
        call(cos, sin)
    call(*torch.ones(2, 5, 16))  # equal angles say nothing
    assert not checks._SINGLE
    single = rw.RotaryEmbedding(rw.RopeConfig(32, interleaved=False)).cos_sin(torch.arange(5))
    call(*single)
    assert list(checks._SINGLE) == [16]


def test_a_patch_on_the_diagonal_is_no_doubled_table(monkeypatch):
    """An axial table of one patch whose row and column are equal contains each angle twice, and is right."""
    monkeypatch.setattr(checks, "_SINGLE", set())
    axial = rw.RopeConfig(32, interleaved=False, axes=(0,) * 8 + (1,) * 8, axes_restart=True)
    rope, x = rw.RotaryEmbedding(axial), torch.randn(1, 3, 2, 32)
    for ids in (torch.full((1, 2), 7), torch.tensor([[0, 0], [0, 1], [1, 0]])):
        tables = rope.cos_sin(ids)
        rw.rotate(x[:, : len(ids)], *tables, interleaved=False)
    rope.rotate(x, torch.tensor([[1, 1], [2, 2], [3, 3]]))  # its own tables are not in doubt


def test_the_design_message():
    """The message holds the rule, the facts and the cure, as the design shows them."""
    with pytest.raises(rw.RopeError) as caught:
        rw.rotate(X, C[:4], C[:4], interleaved=True)
    assert str(caught.value).splitlines() == [
        "rotate: `x` has 5 tokens but `cos` has 4 rows.",
        "  x       float32[2, 5, 8, 64]",
        "  cos     float32[4, 32]",
        "  layout  'bshd'",
        "Build both from the same positions: rope.cos_sin(position_ids).",
    ]


def test_explain_backends():
    """The list says which backend runs, and why each other would not."""
    lines = rw.explain_backends(X).splitlines()
    assert lines[0] == "float32[2, 5, 8, 64]"
    assert lines[-1].startswith("reference: ")
    assert sum(line.endswith(": runs") for line in lines) == 1
    on_meta = rw.explain_backends(X.to("meta"))
    assert "triton: `x` is on meta, not on a GPU" in on_meta or "triton: Triton is not installed" in on_meta
    assert ("cpu: `x` is on meta, not on the CPU" in on_meta) is (compiled.kernels is not None)


def test_arguments_are_checked_once(monkeypatch):
    """A public call checks its tables and chooses its backend once, also for queries and keys without tables."""
    calls = []
    for module, name in ((checks, "check_tables"), (rotate_module, "choose")):
        plain = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *given, plain=plain, name=name: calls.append(name) or plain(*given))
    q, k, ids = torch.randn(1, 3, 4, 8), torch.randn(1, 3, 2, 8), torch.arange(3)
    rope = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=False))
    tables = rope.cos_sin(ids)
    for call in (
        lambda: rw.rotate(q, *tables, interleaved=False),
        lambda: rw.rotate(q.clone(), *tables, interleaved=False, inplace=True),
        lambda: rw.rotate_qk(q, k, *tables, interleaved=False),
        lambda: rw.rotate_qk(q.clone(), k.clone(), *tables, interleaved=False, inplace=True),
        lambda: rope(q, k, position_ids=ids),
        lambda: rope(q, k, position_ids=ids, tables=False),
        lambda: rope.rotate(q, position_ids=ids, tables=False),
    ):
        call()
        assert calls == ["check_tables", "choose"]
        calls.clear()
