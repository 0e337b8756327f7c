"""Softcap and sinks in every use of `Attention`, against NumPy, one query and key at a time; and faults found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.layers import attend
from ropewalk.layers.attend import LogitRules
from ropewalk.layers.forward_inputs import ForwardInputs
from ropewalk.layers.masks import Branches
from tests.layers import oracle, test_attention
from tests.layers.test_branches import branched

HIDDEN, HEADS, KV_HEADS, DIM, SEQ = 24, 4, 2, 6, 13
FORMS = [{"softcap": 0.5}, {"sinks": True}, {"softcap": 2.0, "sinks": True}]
forms = pytest.mark.parametrize("form", FORMS, ids=str)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend, "OPEN_BLOCK", 5)


def make(**changes: Any) -> rw.Attention:
    torch.manual_seed(5)
    given = {"num_key_value_heads": KV_HEADS, "head_dim": DIM, "rope": rw.RopeConfig(DIM, interleaved=False), **changes}
    module = rw.Attention(HIDDEN, HEADS, **given).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    return module


def wanted(module: rw.Attention, x: Tensor, sees: Callable[[int, int], bool]) -> np.ndarray:
    """The oracle's output of one row `[seq, hidden]`."""
    weights = {name: value.detach().numpy() for name, value in module.state_dict().items()}
    return oracle.attention(
        weights, x.numpy(), np.arange(len(x)), sees, heads=HEADS, kv_heads=KV_HEADS, rotary_dim=DIM,
        softcap=module.softcap,
    )[0]  # fmt: skip


def causal(query: int, key: int) -> bool:
    return key <= query


def close(found: Tensor, truth: np.ndarray) -> None:
    np.testing.assert_allclose(found.detach().numpy(), truth, rtol=0, atol=1e-12)


@forms
def test_branches(form: dict[str, Any]) -> None:
    """Continuations of a cached row: each line as if it alone had been read."""
    module, x = make(**form), torch.randn(1, SEQ, HIDDEN, dtype=torch.float64)
    parents = (-1, 0, 0, -1, 3)
    found = branched(module, x, Branches(parents))
    for node, line in enumerate(([8], [8, 9], [8, 10], [11], [11, 12])):
        close(found[node], wanted(module, x[0, [*range(8), *line]], causal)[-1])


@forms
def test_gradients(form: dict[str, Any]) -> None:
    """To the input and to the sinks, against finite differences."""
    module = make(**form, sliding_window=3)
    x = torch.randn(1, 6, HIDDEN, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, (x,))
    if module.sinks is not None:
        sinks = module.sinks.detach().clone().requires_grad_()
        assert torch.autograd.gradcheck(
            lambda s: torch.func.functional_call(module, {"sinks": s}, (x.detach(),)), (sinks,)
        )
        frozen = make(**form).requires_grad_(False)
        assert frozen.sinks is not None
        frozen.float().sinks.requires_grad_()
        frozen(x.detach().float()).sum().backward()  # nothing else asks for a gradient
        assert frozen.sinks.grad.abs().min() > 0


def test_a_bias_is_added_after_the_cap() -> None:
    """ALiBi's slopes are not capped; a sink stands beside the biased logits."""
    module = make(rope=None, encoding="alibi", softcap=0.5, sinks=True)
    plain = make(rope=None, softcap=0.5, sinks=True)
    x = torch.randn(1, SEQ, HIDDEN, dtype=torch.float64)
    out, weights = module(x, need_weights=True)
    _, unbiased = plain(x, need_weights=True)
    torch.testing.assert_close(module(x), out)
    slopes = 2.0 ** (-8.0 * torch.arange(1, HEADS + 1, dtype=torch.float64) / HEADS)
    distances = torch.arange(SEQ - 1, -1, -1, dtype=torch.float64)
    factors = weights[0, :, -1] / unbiased[0, :, -1]  # one number for each head times e^(-slope distance)
    expected = torch.exp(-slopes[:, None] * distances)
    torch.testing.assert_close(factors / factors[:, -1:], expected / expected[:, -1:])
    assert (weights.sum(-1) < 1).all()


@pytest.mark.traced
def test_a_compiler_gets_the_mathematics() -> None:
    """The same numbers under torch.compile, without a graph break."""
    module, x = make(softcap=2.0, sinks=True), torch.randn(2, SEQ, HIDDEN, dtype=torch.float64)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), module(x), atol=1e-12, rtol=0)


def test_they_are_gemma_2s_and_gpt_oss_s() -> None:
    """transformers' own functions, on the same queries, keys and values (Gemma 2's softmax is in float32)."""
    gemma = pytest.importorskip("transformers.models.gemma2.modeling_gemma2")
    oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    q, k, v = (torch.randn(1, heads, SEQ, DIM, dtype=torch.float64) for heads in (HEADS, KV_HEADS, KV_HEADS))
    mask = torch.full((SEQ, SEQ), -1e30, dtype=torch.float64).triu(1)[None, None]

    class Layer(torch.nn.Module):
        num_key_value_groups, head_dim, sinks = HEADS // KV_HEADS, DIM, torch.randn(HEADS, dtype=torch.float64)

    layer = Layer().eval()
    seen = ForwardInputs.of(torch.zeros(1, SEQ, 1)).layout.visibility(True, None, whole=True)
    for rules, theirs in (
        (LogitRules(0.5), gemma.eager_attention_forward(layer, q, k, v, mask, scaling=DIM**-0.5, softcap=0.5)[0]),
        (LogitRules(0.0, layer.sinks), oss.eager_attention_forward(layer, q, k, v, mask, scaling=DIM**-0.5)[0]),
    ):
        ours = attend.attend(q, k, v, seen, rules=rules).transpose(1, 2)
        torch.testing.assert_close(ours, theirs, atol=1e-6 if rules.softcap else 1e-12, rtol=0)


@pytest.mark.rejects
@pytest.mark.parametrize("softcap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_softcap_is_positive(softcap: float) -> None:
    """0 would make every weight the same."""
    with pytest.raises(RopeError, match="`softcap` must be"):
        make(softcap=softcap)


def cap_after_the_sinks(self: LogitRules, scores: Tensor) -> Tensor:
    assert self.sinks is not None
    sinks = self.capped(self.sinks)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


FAULTS: dict[str, tuple[str, Any]] = {
    "no cap": ("capped", lambda self, logits: logits),
    "cut, not capped": ("capped", lambda self, logits: logits.clamp(-self.softcap, self.softcap)),
    "a cap of twice the size": ("capped", lambda self, logits: 2 * self.softcap * (logits / 2 / self.softcap).tanh()),
    "no sinks": ("softmax", lambda self, scores: scores.softmax(-1)),
    "a sink of 0": ("softmax", lambda self, scores: F.pad(scores, (1, 0)).softmax(-1)[..., 1:]),
    "capped sinks": ("softmax", cap_after_the_sinks),
    "one sink for all": ("softmax", lambda s, x: original(LogitRules(0.0, s.sinks[:1].expand(HEADS)), x)),
}
original = LogitRules.softmax


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_faults_are_found(fault: tuple[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison with the oracle fails where a rule is wrong on purpose."""
    monkeypatch.setattr(LogitRules, *fault)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_attention.test_equals_the_oracle("both", None, True)
