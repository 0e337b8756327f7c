"""SwiGLU, the norm of a sum and losses by vocabulary: kernels against a float64 truth, and against wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ropewalk import compiled
from ropewalk.attention.norm import RMSNorm, sum_and_norm
from ropewalk.backends import choose_rowwise, cpu_rowwise, reference_rowwise
from tests.backends.arena import Arena
from tests.backends.places import PLACES, Place
from tests.backends.truth import Allowed, rms_norm, same_bits, wide

DTYPES = [torch.bfloat16, torch.float16]
HERE = [place for place in PLACES if place.backend == "cpu"]
pytestmark = pytest.mark.skipif(not HERE, reason="needs the compiled extension")
SHAPES = [(1, 1), (3, 31), (2, 5, 32), (7, 33), (2, 64), (5, 257), (3, 4097), (0, 4)]
UNIT = 2.0**-24
Changed = Callable[..., Any]


@pytest.fixture(params=HERE, ids=str)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each instruction set of this processor."""
    with request.param.held() as held:
        yield held


def holding(shape: tuple[int, ...], dtype: torch.dtype, spread: float = 1.0) -> Arena:
    """Random numbers with guard bytes around them."""
    return Arena(shape, dtype).holding((torch.randn(shape) * spread).to(dtype))


def check_swiglu(kernel: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """gate / (1 + exp(-gate)) * up; the exponent of the exponential is rounded to float32 before."""
    gate, up = holding(shape, dtype, 6.0), holding(shape, dtype)
    out = kernel.swiglu(gate.x, up.x)
    assert (out.shape, out.dtype) == (shape, dtype)
    g, u = wide(gate.x), wide(up.x)
    true = g / (1 + np.exp(-g)) * u
    Allowed(true, (2 * np.abs(g) + 8) * UNIT * np.abs(true) + 1e-38, dtype).check(out, f"swiglu {shape}")
    assert gate.is_untouched()
    assert up.is_untouched()


def check_sum_norm(kernel: Any, shape: tuple[int, ...], dtype: torch.dtype, adds: bool) -> None:
    """The sum is float32's own; the norm of it is off by a few roundings."""
    x, weight = holding(shape, torch.float32), holding(shape[-1:], dtype)
    added = holding(shape, dtype) if adds else None
    total, out = kernel.sum_norm(x.x, None if added is None else added.x, weight.x, 1e-5)
    wanted = x.x if added is None else x.x + added.x.float()
    assert same_bits(total, wanted)
    assert (out.shape, out.dtype) == (shape, dtype)
    true, _ = rms_norm(wide(wanted), wide(weight.x), 1e-5)
    Allowed(true, (shape[-1] ** 0.5 + 8) * UNIT * np.abs(true), dtype).check(out, f"sum_norm {shape}")
    for given in (x, weight, *(() if added is None else (added,))):
        assert given.is_untouched()


def check_losses(kernel: Any, shape: tuple[int, int], dtype: torch.dtype) -> None:
    """-log softmax of the targets, the vocabulary in three parts."""
    rows, vocab = shape
    logits, targets = (torch.randn(shape) * 5).to(dtype), torch.randint(vocab, (rows,))
    state, cuts = kernel.new_log_sums(rows), sorted({0, vocab // 3, vocab // 2, vocab})
    for first, past in pairwise(cuts):
        part = Arena((rows, past - first), dtype).holding(logits[:, first:past])
        kernel.log_sum(part.x, targets, first, state)
        assert part.is_untouched()
    losses = state[0] - state[2] + state[1].log()
    true = wide(logits)
    high = true.max(-1, initial=-np.inf)
    assert np.array_equal(wide(state[0]), high)
    true = high + np.log(np.exp(true - high[:, None]).sum(-1)) - true[np.arange(rows), targets]
    np.testing.assert_allclose(wide(losses), true, rtol=0, atol=(vocab**0.5 + 40) * UNIT * 4)


def check(kernel: Any, dtype: torch.dtype) -> None:
    """Every shape, with and without a sum."""
    for shape in SHAPES:
        check_swiglu(kernel, shape, dtype)
        for adds in (True, False):
            check_sum_norm(kernel, shape, dtype, adds)
    for sizes in ((4, 700), (3, 64), (2, 3), (1, 5000)):
        check_losses(kernel, sizes, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_cases(place: Place, dtype: torch.dtype) -> None:
    """Any sizes agree with the truth within the roundings of the arithmetic."""
    check(cpu_rowwise, dtype)


def test_the_definition() -> None:
    """torch's own expressions meet the bounds of float32, where they serve."""
    check(reference_rowwise, torch.float32)


def wrong(name: str, change: Changed) -> SimpleNamespace:
    """The kernels, one of them followed by a change of its results."""
    kept = {each: getattr(cpu_rowwise, each) for each in ("swiglu", "sum_norm", "new_log_sums", "log_sum")}

    def changed(*given: Any) -> Any:
        return change(kept[name](*given), *given)

    return SimpleNamespace(**{**kept, name: changed})


FAULTS = {
    "gate and up exchanged": wrong("swiglu", lambda out, gate, up: cpu_rowwise.swiglu(up, gate)),
    "few bits": wrong("swiglu", lambda out, gate, up: out * 1.01),
    "unwritten": wrong("swiglu", lambda out, gate, up: out.index_fill(-1, torch.tensor([out.shape[-1] - 1]), math.nan)),
    "a changed input": wrong("swiglu", lambda out, gate, up: (out, gate.add_(1.0))[0]),
    "no epsilon": wrong("sum_norm", lambda out, x, added, weight, eps: cpu_rowwise.sum_norm(x, added, weight, 0.1)),
    "the norm of x alone": wrong(
        "sum_norm", lambda out, x, added, weight, eps: (out[0], cpu_rowwise.sum_norm(x, None, weight, eps)[1])
    ),
    "a sum in a half type": wrong("sum_norm", lambda out, *given: (out[0].half().float(), out[1])),
    "the last part alone": wrong("log_sum", lambda out, logits, targets, first, state: state[1].fill_(1.0)),
    "targets one later": wrong(
        "log_sum", lambda out, logits, targets, first, state: cpu_rowwise.log_sum(logits, targets, first + 1, state)
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_faults_are_found(fault: SimpleNamespace) -> None:
    """A kernel that is wrong on purpose fails."""
    with pytest.raises(AssertionError):
        check(fault, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_and_rows_give_the_same_bits(place: Place, dtype: torch.dtype, two_threads: None) -> None:
    """One thread or two, a row alone or beside others."""
    gate, up = torch.randn(900, 323).to(dtype), torch.randn(900, 323).to(dtype)
    x, weight = torch.randn(900, 323), torch.randn(323).to(dtype)
    whole = cpu_rowwise.swiglu(gate, up), *cpu_rowwise.sum_norm(x, up, weight, 1e-6)
    torch.set_num_threads(1)
    for row in (slice(0, 1), slice(450, 470), slice(899, 900)):
        alone = cpu_rowwise.swiglu(gate[row], up[row]), *cpu_rowwise.sum_norm(x[row], up[row], weight, 1e-6)
        for one, other in zip(alone, whole, strict=True):
            assert same_bits(one, other[row])


def test_what_is_not_finite(place: Place) -> None:
    """As torch: NaN stays in its row, a gate of -infinity has no value, and logits may be -infinity."""
    edge = torch.tensor([[math.nan, math.inf, -math.inf, -200.0, 200.0, 0.0]]).bfloat16()
    one = torch.ones_like(edge)
    torch.testing.assert_close(cpu_rowwise.swiglu(edge, one), reference_rowwise.swiglu(edge, one), equal_nan=True)
    x = torch.randn(3, 40)
    x[1, 39] = math.nan
    assert cpu_rowwise.sum_norm(x, None, torch.ones(40).half(), 1e-6)[1].isfinite().all(1).tolist() == [
        True,
        False,
        True,
    ]
    logits = torch.randn(3, 70)
    logits[0, :69], logits[1, 5], logits[2, 69] = -math.inf, math.nan, math.nan
    state = cpu_rowwise.new_log_sums(3)
    for first in (0, 35):
        cpu_rowwise.log_sum(logits[:, first : first + 35].half(), torch.tensor([69, 0, 0]), first, state)
    losses = state[0] - state[2] + state[1].log()
    assert losses[0] == 0
    assert losses[1:].isnan().all()


def test_what_goes_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain eager half tensors without gradients go to the kernels; all else, and a norm that is more, to torch."""
    x, half, norm = torch.randn(2, 8), torch.randn(2, 8).bfloat16(), RMSNorm(8).bfloat16()
    with torch.no_grad():
        assert choose_rowwise(half, norm.weight, x) is cpu_rowwise
        negated = torch.randn(2, 4, dtype=torch.complex64).conj().imag
        for given in ((x,), (x.double(),), (half.to("meta"),), (half, half.half()), (half, negated)):
            assert choose_rowwise(*given) is reference_rowwise
        with torch.autocast("cpu"):
            assert choose_rowwise(half) is reference_rowwise
    assert choose_rowwise(half, norm.weight) is reference_rowwise  # a gradient is asked for
    assert choose_rowwise(half, x.clone().requires_grad_()) is reference_rowwise
    calls: list[int] = []
    monkeypatch.setattr(cpu_rowwise, "sum_norm", lambda x, added, weight, eps: calls.append(1) or (x, x))
    with torch.no_grad():
        sum_and_norm(x, half, norm, torch.bfloat16)
        assert calls == [1]
        hooked, patched = RMSNorm(8).bfloat16(), RMSNorm(8).bfloat16()
        hooked.register_forward_hook(lambda module, given, out: out + 1)
        patched.forward = lambda x: x + 1

        class Other(RMSNorm):
            def forward(self, x: Tensor) -> Tensor:
                return super().forward(x) + 1

        for module in (hooked, patched, Other(8).bfloat16(), nn.LayerNorm(8)):
            wanted = module(x + half).bfloat16()
            torch.testing.assert_close(sum_and_norm(x, half, module, torch.bfloat16)[1], wanted)
        for given in ((x, x, RMSNorm(8), torch.float32), (x.double(), None, norm.double(), torch.float64)):
            assert sum_and_norm(*given)[1].dtype == given[3]
    assert calls == [1]


ROW, WIDE = torch.zeros(2, 8).half(), torch.zeros(2, 9).half()
FULL, TOKENS, STATE = torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64), torch.zeros(3, 2)
LIES = {
    "another shape": ("swiglu", (ROW, WIDE, ROW)),
    "another dtype": ("swiglu", (ROW, ROW.double(), ROW)),
    "float32": ("swiglu", (FULL, FULL, FULL)),
    "gaps": ("swiglu", (WIDE[:, :8], WIDE[:, :8], ROW)),
    "one short": ("swiglu", (ROW, ROW, ROW[:1])),
    "a short weight": ("sum_norm", (FULL, None, ROW[0, :7], 1e-6, None, ROW)),
    "no place for the sum": ("sum_norm", (FULL, ROW, ROW[0], 1e-6, None, ROW)),
    "half x": ("sum_norm", (ROW, None, ROW[0], 1e-6, None, ROW)),
    "few targets": ("log_sum", (ROW, TOKENS[:1], 0, STATE)),
    "targets of another dtype": ("log_sum", (ROW, ROW[:, 0], 0, STATE)),
    "a small state": ("log_sum", (ROW, TOKENS, 0, STATE[:2])),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_the_extension_checks_what_it_is_given(lie: tuple[str, tuple[Any, ...]]) -> None:
    """Sizes, dtypes and memory are refused in C++ too."""
    name, given = lie
    with pytest.raises(ValueError, match="`"):
        getattr(compiled.kernels, name)(1, *given)
