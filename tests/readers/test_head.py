"""Losses from hidden states: float32 to within rounding of their differences, whatever the weights are kept in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ropewalk.readers import live_model as head
from ropewalk.readers.live_model import half_losses, wide_product

VOCAB, HIDDEN, TOKENS = 700, 64, 300


def material(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, a head and targets with logits around 20, as language models have, and losses of a few nats."""
    weight = (torch.randn(VOCAB, HIDDEN) + 1.0).to(dtype)
    targets = torch.randint(VOCAB, (TOKENS,))
    towards = weight[targets].float() - 1.0
    return (torch.randn(TOKENS, HIDDEN) * 0.1 + towards * 0.08 + 0.3).to(dtype), weight, targets


def exact_losses(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Minus the log of the softmax, in float64."""
    likely = (hidden.double() @ weight.double().t()).log_softmax(-1)
    return -likely[torch.arange(len(targets)), targets]


@pytest.mark.parametrize(("dtype", "error"), [(torch.bfloat16, 3e-3), (torch.float16, 4e-4)])
def test_losses_are_exact_whatever_the_weights(dtype: torch.dtype, error: float) -> None:
    """In a half type a logit of 20 is off by up to 0.06; a loss is not, because its own differences are small."""
    hidden, weight, targets = material(dtype)
    exact = exact_losses(hidden, weight, targets)
    found = half_losses(hidden, weight, targets)
    assert found.dtype == torch.float32
    assert (found - exact).abs().square().mean().sqrt() < error
    if dtype == torch.bfloat16:
        assert float((hidden.double() @ weight.double().t()).amax(-1).mean()) > 15
        rounded = F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none")
        assert (rounded - exact).abs().square().mean().sqrt() > 3 * error


def test_slices_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of logits that are widened at a time."""
    hidden, weight, targets = material(torch.bfloat16)
    whole = half_losses(hidden, weight, targets)
    for cached in (1, VOCAB * 7, VOCAB * TOKENS):
        monkeypatch.setattr(head, "CACHED", cached)
        assert torch.equal(half_losses(hidden, weight, targets), whole)


def test_a_wide_product_widens_few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Float64's logits of bfloat16 values, whatever the number of rows."""
    hidden, weight, _ = material(torch.bfloat16)
    monkeypatch.setattr(head, "WIDENED_ROWS", 99)
    torch.testing.assert_close(
        wide_product(hidden, weight).double(), hidden.double() @ weight.double().T, atol=1e-4, rtol=0
    )
