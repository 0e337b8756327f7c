"""LongCE's weights and their loss against one forward for each token, in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from ropewalk.extend.decoder_tuning import TunableDecoder
from ropewalk.models.decoder import Decoder
from ropewalk.training.data import Batch
from ropewalk.training.longce import longce_weights
from ropewalk.training.objective import next_token_loss
from tests.training.material import small

WINDOW, SHORT = 14, 3  # the last stretch of tokens is shorter than the others


def model() -> Decoder:
    """A small decoder in float64 whose weights are large enough that its context matters."""
    torch.manual_seed(2)
    decoder = Decoder(small("unused", dropout=0.3).decoder_config(20))
    with torch.no_grad():
        for weight in decoder.parameters():
            if weight.ndim == 2:
                weight.normal_(std=0.5)
    return decoder.double()


def batch() -> Batch:
    """Two windows of random tokens whose positions skip."""
    ids = torch.randint(0, 20, (2, WINDOW + 1), generator=torch.Generator().manual_seed(4))
    positions = torch.arange(WINDOW).repeat(2, 1) + torch.tensor([[5], [0]]) * (torch.arange(WINDOW) >= 6)
    return Batch(ids[:, :-1], ids[:, 1:], None, positions, 40)


def loss_of(decoder: Decoder, part: Batch, row: int, begin: int, token: int) -> torch.Tensor:
    """Nats of a target, given the inputs from `begin` up to it alone."""
    assert part.position_ids is not None
    seen = slice(begin, token + 1)
    logits = decoder(part.inputs[row : row + 1, seen], position_ids=part.position_ids[row : row + 1, seen])
    return -torch.log_softmax(logits[0, -1].double(), -1)[part.targets[row, token]]


def expected(decoder: Decoder, part: Batch) -> list[list[float]]:
    """min(exp(short - whole), 5) token by token: stretches of 3 tokens, each read with the 3 before its first one."""
    begins = [0] * 6 + [3] * 3 + [6] * 3 + [8] * 2
    with torch.no_grad():
        return [
            [
                min(math.exp(loss_of(decoder, part, row, begin, token) - loss_of(decoder, part, row, 0, token)), 5.0)
                for token, begin in enumerate(begins)
            ]
            for row in range(2)
        ]


def test_weights_token_by_token() -> None:
    """Also the bound is met; dropout is off, and the model trains on afterwards."""
    decoder = model().train()
    weights = longce_weights(decoder, batch())
    assert decoder.training
    assert weights.dtype == torch.float32
    assert not weights.requires_grad
    by_hand = torch.tensor(expected(decoder.eval(), batch()))
    torch.testing.assert_close(weights, by_hand, rtol=1e-4, atol=1e-4)
    assert weights.max() == 5.0
    assert weights[:, 2 * SHORT :].min() < 0.5  # a context may mislead
    assert (weights[:, : 2 * SHORT] == 1).all()


def test_other_positions_have_other_weights() -> None:
    """The short context stands where it stood: positions matter."""
    decoder, part = model().eval(), batch()
    other = replace(part, position_ids=None)
    assert (longce_weights(decoder, part) - longce_weights(decoder, other)).abs().max() > 1e-2


def test_the_weighted_loss_and_its_gradients() -> None:
    """The mean of weight times loss, over all tokens; gradients by autograd through plain logits. The reader's loss is
    the same, and differs from the unweighted one."""
    decoder, part = model().float().eval(), batch()
    found = TunableDecoder(decoder).next_token_loss(
        part.inputs, part.targets, None, precision="float32", position_ids=part.position_ids, seq_len=part.seq_len,
        token_weights="longce",
    )  # fmt: skip
    found.backward()
    gradients = {name: weight.grad.clone() for name, weight in decoder.named_parameters() if weight.grad is not None}
    decoder.zero_grad()
    weights = torch.tensor(expected(decoder, part))
    logs = torch.log_softmax(decoder(part.inputs, position_ids=part.position_ids).double(), -1)
    loss = (weights * -logs.gather(2, part.targets[..., None])[..., 0]).mean()
    loss.backward()
    assert found.item() == pytest.approx(loss.item(), rel=1e-4)
    assert abs(found.item() - next_token_loss(decoder, part).item()) > 1e-2
    for name, weight in decoder.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(gradients[name], weight.grad, rtol=2e-3, atol=1e-5)


def test_a_window_without_a_long_context() -> None:
    """Too short to be cut: every weight is 1, and the loss is the plain one to the bit."""
    decoder = model().float().eval()
    ids = torch.randint(0, 20, (1, 3))
    one = Batch(ids[:, :2], ids[:, 1:], None)
    assert (longce_weights(decoder, one) == 1).all()
