"""Which backend takes a call: the first of an ordered list that has no reason not to; and what it says if it has."""

from __future__ import annotations

import contextlib
import sys
from types import SimpleNamespace

import pytest
import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import ropewalk as rw
from ropewalk import compiled
from ropewalk.rotation import backends
from ropewalk.rotation.backends import choose, choose_attention, cpu, reference, triton
from tests.rotation.backends.places import PLACES
from tests.rotation.backends.truth import same_bits

needs_cpu = pytest.mark.skipif(not any(place.backend == "cpu" for place in PLACES), reason="no compiled extension")


def some() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    angle = torch.rand(5, 4)
    return torch.randn(2, 5, 3, 8), angle.cos(), angle.sin()


@needs_cpu
def test_the_compiled_kernels_serve_cpu_tensors():
    """Plain CPU tensors, with gradients or without, go to the extension; others of its device do not."""
    x = torch.zeros(2)
    for plain in (x, x.requires_grad_(), torch.nn.Parameter(x)):
        assert choose({"x": plain}) is cpu
    assert choose({"x": torch.zeros(2, device="meta")}) is reference


def test_the_first_that_can(monkeypatch):
    """In the order of the list; a name picks one, or shows its reasons; all is explained."""
    reasons = {"first": ["too early", "too far"], "second": [], "third": [], "last": ["too late"]}
    fakes = tuple(
        SimpleNamespace(name=name, kernels=True, reasons_not_to=lambda x, why=why: why) for name, why in reasons.items()
    )
    monkeypatch.setattr(backends, "BACKENDS", fakes)
    x = torch.zeros(2, 3)
    assert choose({"x": x}).name == "second"
    assert choose({"x": x}, "third").name == "third"
    assert rw.explain_backends(x).splitlines() == [
        "float32[2, 3]", "first: too early; too far", "second: runs", "third: could, but comes later in the list",
        "last: too late",
    ]  # fmt: skip
    with pytest.raises(rw.RopeError) as caught:
        choose({"x": x}, "first")
    assert str(caught.value).splitlines() == [
        "rotate: backend 'first' cannot run here.",
        "  x        float32[2, 3]",
        "  because  'too early; too far'",
        "Leave `backend` out for an automatic choice.",
    ]
    with pytest.raises(rw.RopeError, match=r"no backend 'fifth'.\n  backends  \['first', 'second', 'third', 'last'\]"):
        choose({"x": x}, "fifth")


class Sub(torch.Tensor):
    """A tensor subclass, as DTensor is one."""


class Watching(TorchDispatchMode):
    """A dispatch mode that does nothing."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def odd(which: str):
    """x, cos and sin in a state that kernels cannot see through."""
    x, cos, sin = some()
    with contextlib.ExitStack() as stack:
        if which == "subclass":
            x = x.as_subclass(Sub)
        elif which == "table of a subclass":
            cos = cos.as_subclass(Sub)
        elif which == "mode":
            stack.enter_context(Watching())
        elif which == "negated":
            x = torch.complex(x, x).conj().imag
        elif which == "negated table":
            sin = torch.complex(sin, sin).conj().imag
        elif which == "forward mode":
            stack.enter_context(forward_ad.dual_level())
        yield x, cos, sin


ODD = {
    "subclass": "Sub is a tensor subclass", "table of a subclass": "Sub is a tensor subclass",
    "mode": "a dispatch mode is active", "negated": "lazily negated", "negated table": "lazily negated",
    "forward mode": "forward-mode differentiation is active",
}  # fmt: skip


@needs_cpu
@pytest.mark.parametrize(("which", "reason"), ODD.items(), ids=ODD)
def test_the_mathematics_serves_where_kernels_cannot(which, reason, monkeypatch):
    """No kernel is touched, the numbers are right; naming the kernel shows the reason."""
    for name in ("rotate", "norm_rotate"):
        monkeypatch.setattr(cpu, name, lambda *_: pytest.fail("a kernel was called"))
    weight = torch.ones(8)
    with odd(which) as (x, cos, sin):
        plain = [torch.Tensor(t.resolve_neg()) for t in (x, cos, sin)]
        turned = rw.rotate(x, cos, sin, interleaved=True)
        torch.testing.assert_close(torch.Tensor(turned), rw.rotate(*plain, interleaved=True, backend="reference"))
        for call in (
            lambda: rw.rotate(x, cos, sin, interleaved=True, backend="cpu"),
            lambda: rw.rotate(x, cos, sin, interleaved=True, backend="cpu", inplace=True),
            lambda: rw.rotate_qk(torch.zeros(2, 5, 3, 8), x, cos, sin, interleaved=True, backend="cpu"),
            lambda: rw.fused.qk_norm_rotate(x, x, weight, weight, cos, sin, interleaved=True, backend="cpu"),
        ):
            with pytest.raises(rw.RopeError, match=f"(?s)backend 'cpu' cannot run here.*{reason}"):
                call()


@needs_cpu
def test_a_negated_result():
    """A kernel does not see that `out` is lazily negated: its numbers are those of a new tensor."""
    x, cos, sin = some()
    out = torch.complex(x, x).conj().imag
    rw.rotate(x, cos, sin, interleaved=True, out=out)
    assert torch.equal(out.resolve_neg(), rw.rotate(x, cos, sin, interleaved=True))


@needs_cpu
def test_transforms_of_functions():
    """Inside torch.func the mathematics serves: vmap and grad see through it."""
    x, cos, sin = some()
    right = rw.rotate(x, cos, sin, interleaved=True, backend="cpu")

    def turn(x, **options):
        return rw.rotate(x[None], cos, sin, interleaved=True, **options)[0]

    torch.testing.assert_close(torch.func.vmap(turn)(x), right)
    torch.testing.assert_close(torch.func.grad(lambda x: (turn(x) ** 2).sum() / 2)(x[0]), x[0])
    with pytest.raises(rw.RopeError, match=r"function transform \(torch.func\) is active"):
        torch.func.vmap(lambda x: turn(x, backend="cpu"))(x)


def test_without_the_extension(monkeypatch):
    """If it was not built, import gives the reason and the mathematics serves."""
    monkeypatch.setitem(sys.modules, "ropewalk._kernels", None)  # import of it raises ImportError
    native, why_not = compiled._load()
    assert native is None
    assert "the compiled extension is missing" in why_not
    assert "_kernels" in why_not
    monkeypatch.setattr(compiled, "kernels", native)
    monkeypatch.setattr(compiled, "why_not", why_not)
    monkeypatch.setattr(cpu, "_native", native)
    monkeypatch.setattr(triton, "_is_interpreted", lambda: False)
    x, angle, weight = torch.randn(2, 5, 3, 8), torch.arange(20.0).view(5, 4), torch.ones(8)
    cos, sin = angle.cos(), angle.sin()
    assert choose({"x": x}) is reference
    lines = rw.explain_backends(x).splitlines()
    assert "cpu: the compiled extension is missing" in lines[1]
    assert "reference: runs" in lines
    q, _ = rw.rotate_qk(x.clone(), x[:, :, :1].clone(), cos, sin, interleaved=True, inplace=True)
    assert same_bits(q, rw.rotate(x, cos, sin, interleaved=True, backend="reference"))
    leaf = x.clone().requires_grad_()
    rw.fused.qk_norm_rotate(leaf, leaf, weight, weight, cos, sin, interleaved=True)[0].sum().backward()
    rope = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=True))
    torch.testing.assert_close(rope.rotate(x, position_ids=torch.arange(5)).norm(dim=-1), x.norm(dim=-1))
    with pytest.raises(rw.RopeError, match="backend 'cpu' cannot run here") as refused:
        rw.rotate(x, cos, sin, interleaved=True, backend="cpu")
    assert refused.value.facts["because"].startswith("the compiled extension is missing")


@needs_cpu
@pytest.mark.parametrize("name", ["q", "k", "cos", "sin"])
def test_a_refusal_names_its_tensor(name):
    """The one of the tensors that the named backend cannot take, or that cannot be written."""
    x, cos, sin = some()
    tensors = {"q": x, "k": x.clone(), "cos": cos, "sin": sin}
    negated = torch.complex(-tensors[name], -tensors[name]).conj().imag
    with pytest.raises(rw.RopeError, match="lazily negated") as caught:
        rw.rotate_qk(**{**tensors, name: negated}, interleaved=False, backend="cpu")
    assert set(caught.value.facts) == {name, "because"}
    if name in "qk":
        with pytest.raises(rw.RopeError, match="a leaf") as caught:
            rw.rotate_qk(**{**tensors, name: tensors[name].requires_grad_()}, interleaved=False, inplace=True)
        assert set(caught.value.facts) == {name}


@pytest.mark.parametrize(("backend", "batch"), [("reference", 1), ("reference", 2), (None, 1)])
def test_results_of_one_token_are_apart(backend, batch):
    """Without gradients the reference turns q and k in one expression: in memory and versions of their own."""
    cos, sin = torch.ones(1, 4), torch.zeros(1, 4)
    q, k = torch.randn(batch, 1, 6, 8), torch.randn(batch, 1, 2, 8)
    turned, other = rw.rotate_qk(q, k, cos, sin, interleaved=False, backend=backend)
    version = other._version
    turned.zero_()
    assert torch.equal(other, k)
    assert other._version == version
    assert turned.is_contiguous()
    assert other.is_contiguous()


@needs_cpu
def test_torch_attends_whole_texts_with_amx(monkeypatch):
    """In bfloat16, if it can serve the call; queries after a cache, and float32, go to the kernel."""
    monkeypatch.setattr(cpu, "half_instructions", lambda dtype, device: "AMX")
    q, k = torch.zeros(1, 2, 8, 16, dtype=torch.bfloat16), torch.zeros(1, 2, 16, 16, dtype=torch.bfloat16)
    assert not choose_attention(q, q, q, torch_serves=True).kernels
    for queries, keys, serves in ((q, q, False), (q, k, True), (q.float(), q.float(), True)):
        assert choose_attention(queries, keys, keys, torch_serves=serves).name == "cpu"
