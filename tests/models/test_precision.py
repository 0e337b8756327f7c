"""float64 only where a device has it."""

from __future__ import annotations

import pytest
import torch

from ropewalk.models import generate as generation
from ropewalk.models.precision import to_float64
from ropewalk.readers import likelihood
from tests.models.pretend_mps import PretendMPS
from tests.models.test_generate import PROMPTS, make


def test_the_pretended_device_refuses_float64() -> None:
    """As MPS does; what goes to the CPU first is cast."""
    x = PretendMPS(torch.ones(2))
    assert x.device.type == "mps"
    with pytest.raises(TypeError, match="float64"):
        x.double()
    assert to_float64(x).dtype == torch.float64
    assert to_float64(x).device.type == "cpu"
    assert to_float64(torch.ones(2)).dtype == torch.float64


def test_sampling_draws_the_same_tokens_without_float64() -> None:
    """Logits on a device without float64 are drawn from on the CPU: the same tokens for the same seed."""
    logits = torch.randn(len(PROMPTS), 50)
    runs = [generation._Generation.prepare(make(), PROMPTS, 1, 0.8, 20, 0.9, (), 3, None) for _ in range(2)]
    wanted = generation._sample(runs[0], range(len(PROMPTS)), logits)
    assert generation._sample(runs[1], range(len(PROMPTS)), PretendMPS(logits)) == wanted


def test_log_probabilities_are_summed_without_float64() -> None:
    """Sums over a continuation are float64 on the CPU, wherever the logits are."""
    logits, targets, rows = torch.randn(6, 50), torch.randint(0, 50, (6,)), torch.tensor([0, 0, 1, 1, 1, 2])
    sums = []
    for inputs in ((logits, targets, rows), (PretendMPS(logits), PretendMPS(targets), PretendMPS(rows))):
        totals, greedy = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.bool)
        likelihood._add(*inputs, totals, greedy)
        sums.append((totals, greedy))
    assert torch.equal(sums[0][0], sums[1][0])
    assert torch.equal(sums[0][1], sums[1][1])
