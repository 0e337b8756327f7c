"""Triton's attention kernels against the float64 truth; without a GPU interpreted. Faults are found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ropewalk import backends
from ropewalk.attention.attention import Attention
from ropewalk.attention.extensions import DualChunk, Extension, ReRoPE, SelfExtend
from ropewalk.backends import choose_attention, cpu, explain_attention, reference, triton
from ropewalk.backends.autograd import attended
from ropewalk.backends.request import AttentionRequest, Backend, Bounds
from ropewalk.rope.config import RopeConfig
from tests.backends.attention_cases import CASES, Case, check, request_of
from tests.backends.attention_gradients import Meets, gradients
from tests.backends.places import PLACES
from tests.backends.truth import same_bits

pytestmark = pytest.mark.skipif(
    not any(place.backend == "triton" and place.device == "cpu" for place in PLACES),
    reason="no interpreter of Triton here",
)
SOME = [
    Case(), Case(seen="window", queries=70, keys=70), Case(seen="nothing"),
    Case(seen="ragged", batch=3, queries=5, keys=40), Case(seen="documents", queries=30, keys=30),
    Case(seen="apart", queries=20, keys=100), Case(heads=6, kv_heads=2, queries=10, keys=30),
    Case(heads=5, queries=9, keys=50, head_dim=6), Case(heads=2, kv_heads=2, queries=9, keys=77, head_dim=100),
    Case(queries=1, keys=1),
    *(Case(lie=lie, batch=2, queries=5, keys=40, head_dim=7) for lie in ("features", "odd", "shared", "bshd")),
    *(Case(turned=how, queries=5, keys=70, batch=2, head_dim=10) for how in ("half", "interleaved", "part")),
    Case(turned="half", seen="apart", queries=5, keys=70, scales=True), Case(softcap=3.0, spread=4.0), Case(sinks=True),
    Case(sinks=True, seen="nothing", softcap=20.0, queries=5), Case(spread=60.0, queries=5, keys=130),
]  # fmt: skip
TRAINED = [case for case in SOME if not case.turned and case.batch * case.heads * case.queries * case.keys < 5_000]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cases(dtype: torch.dtype) -> None:
    """Sizes, masks, memory layouts, turned keys, several regions, softcap, sinks and scales."""
    for case in SOME if dtype == torch.float32 else SOME[::3]:
        check(case, dtype, triton.attend)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_case(dtype: torch.dtype) -> None:
    """All that the compiled kernel answers."""
    for case in CASES:
        if case.head_dim <= triton.MOST_FEATURES[dtype]:
            check(case, dtype, triton.attend)


def test_keys_are_split_where_queries_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Softmaxes over parts of the keys are joined; some parts hold no key of a query; sinks count once."""
    monkeypatch.setattr(triton, "SPLIT", 16)
    for case in (
        Case(queries=1, keys=70, heads=6, kv_heads=2, turned="half"),
        Case(queries=3, keys=70, seen="window", sinks=True),
        Case(queries=5, keys=70, seen="nothing", batch=2),
        Case(queries=5, keys=70, seen="nothing", sinks=True, softcap=5.0),
    ):
        request, _ = request_of(case, torch.float32)
        assert triton._splits(request) > 2
        check(case, torch.float32, triton.attend)
        sums = torch.empty(request.regions[0].q.shape[:3])
        triton.attend(request, sums)
        monkeypatch.setattr(triton, "SPLIT", 1 << 20)
        whole = torch.empty_like(sums)
        triton.attend(request, whole)
        torch.testing.assert_close(sums, whole)
        monkeypatch.setattr(triton, "SPLIT", 16)


class Faulty:
    """The kernels, with another forward or backward."""

    def __init__(self, *, attend: Callable[..., Tensor] | None = None, attend_backward: object = None) -> None:
        self.name, self.kernels, self.before_torch, self.most_regions = "faulty", True, False, 4
        self.reasons_not_to_attend = triton.reasons_not_to_attend
        self.attend = attend or triton.attend
        self.attend_backward = attend_backward or triton.attend_backward


def check_gradients(case: Case, dtype: torch.dtype, backend: Backend) -> None:
    """Raises AssertionError where a gradient is out of bounds."""
    request, _ = request_of(case, dtype)
    grad = torch.randn(request.regions[0].q.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
    places, met, leaves = torch.arange(request.values.shape[2]), [], []
    for region in request.regions:
        low, high = (x.expand(case.batch, -1)[..., None] for x in region.bounds)
        met.append(Meets(region.q, region.k, (low <= places) & (places < high)))
    truths = gradients(met, request.values, request.scale, request.softcap, request.sinks, grad)

    def leaf(x: Tensor) -> Tensor:
        leaves.append(x.detach().requires_grad_())
        return leaves[-1]

    regions = tuple(region._replace(q=leaf(region.q), k=leaf(region.k)) for region in request.regions)
    values, sinks = leaf(request.values), None if request.sinks is None else leaf(request.sinks)
    out = attended(backend, request._replace(regions=regions, values=values, sinks=sinks))
    for number, (truth, x) in enumerate(zip(truths, torch.autograd.grad(out, leaves, grad), strict=True)):
        truth.check(x, f"{case}, gradient {number}")


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_gradients(dtype: torch.dtype) -> None:
    """Of queries, keys, values and sinks; the same bits every time."""
    for case in TRAINED[::2] if dtype == torch.float32 else TRAINED[1::4]:
        check_gradients(case, dtype, triton)
    request, _ = request_of(Case(), dtype)
    sums = torch.empty(request.regions[0].q.shape[:3])
    out = triton.attend(request, sums)
    call = request, request.regions[0], sums, (out * out).float().sum(-1), out
    once, again = triton.attend_backward(*call), triton.attend_backward(*call)
    assert all(same_bits(a, b) for a, b in zip(once, again, strict=True))


def with_bounds(change: Callable[[Bounds], Bounds]) -> Callable[[AttentionRequest], Tensor]:
    def attend(request: AttentionRequest) -> Tensor:
        regions = tuple(x._replace(bounds=change(x.bounds)) for x in request.regions)
        return triton.attend(request._replace(regions=regions))

    return attend


FAULTS: dict[str, Callable[[AttentionRequest], Tensor]] = {
    "one key more": with_bounds(lambda b: Bounds(b.low, b.high + 1)),
    "the first key is missing": with_bounds(lambda b: Bounds(b.low.clamp(min=1), b.high)),
    "a scale off by 1 %": lambda r: triton.attend(r._replace(scale=r.scale * 1.01)),
    "no softcap": lambda r: triton.attend(r._replace(softcap=0.0)),
    "no sinks": lambda r: triton.attend(r._replace(sinks=None)),
    "the first region alone": lambda r: triton.attend(r._replace(regions=r.regions[:1])),
    "keys as they are": lambda r: triton.attend(r._replace(regions=tuple(x._replace(turn=None) for x in r.regions))),
    "one head for all": lambda r: triton.attend(r)[:, :1].expand_as(r.regions[0].q),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_faults_are_found(fault: Callable[[AttentionRequest], Tensor]) -> None:
    """At least one case fails, by its numbers."""
    found = 0
    for case in (Case(queries=5), SOME[5], SOME[-6], SOME[-4], SOME[-3]):
        try:
            check(case, torch.float32, fault)
        except AssertionError as error:
            found += "wrong; at" in str(error)
    assert found


BACKWARD_FAULTS = {
    "sums off by 3 %": lambda r, x, sums, less, g: triton.attend_backward(r, x, sums + 0.03, less, g),
    "nothing taken off": lambda r, x, sums, less, g: triton.attend_backward(r, x, sums, 0 * less, g),
    "keys' and values' exchanged": lambda *a: (lambda q, k, v: (q, v, k))(*triton.attend_backward(*a)),
    "queries' without the last": lambda *a: (lambda q, k, v: (q.index_fill(2, torch.tensor([-1]), 0), k, v))(
        *triton.attend_backward(*a)
    ),
}


@pytest.mark.parametrize("fault", BACKWARD_FAULTS.values(), ids=BACKWARD_FAULTS)
def test_faults_of_gradients_are_found(fault: Callable[..., object]) -> None:
    """The case fails, by its numbers."""
    with pytest.raises(AssertionError, match="are wrong"):
        check_gradients(
            replace(Case(heads=6, kv_heads=2, queries=10, keys=20)), torch.float32, Faulty(attend_backward=fault)
        )


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> list[AttentionRequest]:
    """Backends as a GPU's tensors find them; the requests that reach Triton."""
    seen: list[AttentionRequest] = []
    attend = triton.attend
    monkeypatch.setattr(backends, "ATTENTION", (triton, reference))
    monkeypatch.setattr(triton, "attend", lambda request, sums=None: (seen.append(request), attend(request, sums))[1])
    return seen


LAYERS: dict[str, tuple[dict[str, object], Extension | None]] = {
    "ReRoPE": ({}, ReRoPE(window=6)), "leaky ReRoPE": ({}, ReRoPE(window=6, leak=0.25, log_n=8)),
    "Self-Extend": ({}, SelfExtend(group=3, window=6)), "dual chunk": ({}, DualChunk(chunk=7, trained_length=10)),
    "softcap": ({"softcap": 2.0}, None),
    "sinks": ({"sinks": True}, None), "window": ({"sliding_window": 5}, None),
}  # fmt: skip


@pytest.mark.parametrize(("options", "extension"), LAYERS.values(), ids=LAYERS)
def test_layers(options: dict[str, object], extension: Extension | None, on_a_gpu: list[AttentionRequest]) -> None:
    """What a layer gives through the kernels, forward and backward, is what float64 gives written out."""
    torch.manual_seed(1)
    rope = RopeConfig(head_dim=8, interleaved=False)
    layer = Attention(16, 4, num_key_value_heads=2, head_dim=8, rope=rope, extension=extension, **options)
    exact = Attention(16, 4, num_key_value_heads=2, head_dim=8, rope=rope, extension=extension, **options).double()
    if layer.sinks is not None:
        torch.nn.init.normal_(layer.sinks)
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(1, 22, 16)
    out = layer(x)
    assert on_a_gpu
    on_a_gpu.clear()
    right = exact(x.double())
    assert not on_a_gpu
    torch.testing.assert_close(out.double(), right, atol=1e-5, rtol=1e-5)
    grad = torch.randn_like(out)
    out.backward(grad)
    right.backward(grad.double())
    for (name, mine), theirs in zip(layer.named_parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, atol=2e-5, rtol=1e-4, msg=name)


def test_order_alone_is_left_to_torch(on_a_gpu: list[AttentionRequest]) -> None:
    """Plain causal attention goes to torch's fused kernels there, whole or token by token."""
    layer = Attention(16, 4, num_key_value_heads=2, rope=RopeConfig(head_dim=4, interleaved=False))
    layer(torch.randn(2, 9, 16))
    assert not on_a_gpu


def test_what_it_does_not_take() -> None:
    """float64, dtypes that differ and wide heads, with the reason; on the CPU the compiled kernel comes first."""
    q = torch.zeros(1, 2, 4, 8)
    assert "triton: could, but comes later in the list" in explain_attention(q, q, q) or cpu._native is None
    assert choose_attention(q, q, q, "triton") is triton
    for reason, x in {
        "not one of float32": (q.double(), q.double(), q.double()),
        "are not one": (q.half(), q, q),
        "more than 128 features": (torch.zeros(1, 1, 2, 129),) * 3,
        "on meta": (q.to("meta"),) * 3,
    }.items():
        assert any(reason in why for why in triton.reasons_not_to_attend(*x)), reason
    assert triton.reasons_not_to_attend(*(torch.zeros(1, 1, 2, 256).bfloat16(),) * 3) == []
    empty = torch.zeros(1, 2, 0, 8)
    bounds = Bounds(*torch.zeros(2, 1, 0, dtype=torch.int64))
    request = request_of(Case(), torch.float32)[0]
    region = request.regions[0]._replace(q=empty, k=torch.zeros(1, 1, 5, 8), bounds=bounds)
    assert triton.attend(request._replace(regions=(region,), values=region.k)).shape == empty.shape


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(("bfloat16, 128", "float32, 64"), marks=pytest.mark.thorough, id="the largest tiles"),
        pytest.param(("bfloat16, 64",), marks=pytest.mark.slow, id="smaller ones"),
    ],
)
def test_compiled_ahead(tmp_path: Path, cases: tuple[str, ...]) -> None:
    """Compiled for an H100 as well as interpreted; tiles fit into the shared memory of smaller GPUs, little spills."""
    pytest.importorskip("triton.backends.nvidia.compiler")
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "tests.backends.compile_attention", *cases]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 3 * len(cases)
    for name, kernel in found.items():
        assert kernel["shared"] <= 99 << 10, name
        assert kernel["spilled"] <= (64 if "bfloat16" in name else 1024), name
