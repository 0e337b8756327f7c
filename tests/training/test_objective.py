"""The fused head and loss against torch's own, and validation by position."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ropewalk.models.decoder import Decoder
from ropewalk.readers.losses import window_losses
from ropewalk.training import objective
from ropewalk.training.data import Batch, TokenStream, validation_batches
from ropewalk.training.objective import head_cross_entropy, loss_by_position, next_token_loss, token_losses
from tests.training.material import small


def model(vocab_size: int = 50) -> Decoder:
    """A small decoder, without dropout."""
    return Decoder(small("unused", dropout=0.0).decoder_config(vocab_size))


def random_batch(windows: int, seq: int, vocab_size: int = 50) -> Batch:
    """Random tokens."""
    ids = torch.randint(0, vocab_size, (windows, seq + 1))
    return Batch(ids[:, :-1], ids[:, 1:], None)


@pytest.mark.parametrize("tokens", [1, 7, 8, 9, 40])
def test_loss_and_gradients_equal_cross_entropy(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of eight tokens, also where the last is not full: float64 cross-entropy within float32 rounding."""
    monkeypatch.setattr(objective, "CHUNK", 8)
    hidden = torch.randn(tokens, 5, requires_grad=True)
    weight = torch.randn(11, 5, requires_grad=True)
    targets = torch.randint(0, 11, (tokens,))
    exact_hidden, exact_weight = (x.detach().double().requires_grad_() for x in (hidden, weight))
    expected = F.cross_entropy(exact_hidden @ exact_weight.t(), targets)
    (3.0 * expected).backward()
    loss = head_cross_entropy(hidden, weight, targets)
    (3.0 * loss).backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(hidden.grad.double(), exact_hidden.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(weight.grad.double(), exact_weight.grad, rtol=1e-5, atol=1e-6)


def test_bfloat16_products_stay_near() -> None:
    """Sums are float32, so only the products round: one part in 256 of a logit."""
    hidden, weight = torch.randn(64, 32).bfloat16(), torch.randn(100, 32)
    targets = torch.randint(0, 100, (64,))
    expected = F.cross_entropy(hidden.double() @ weight.bfloat16().double().t(), targets)
    loss = head_cross_entropy(hidden.requires_grad_(), weight.requires_grad_(), targets)
    assert loss.dtype == torch.float32
    assert abs(loss.item() - expected.item()) < 0.05


def test_next_token_loss_is_the_models_own() -> None:
    """The same number and gradients as logits and cross-entropy, with a tied and with a separate head."""
    batch = random_batch(3, 6)
    for tied in (True, False):
        torch.manual_seed(1)
        config = small("unused", dropout=0.0).decoder_config(50)
        decoder = Decoder(type(config)(**(vars(config) | {"tie_word_embeddings": tied})))
        F.cross_entropy(decoder(batch.inputs).flatten(0, 1), batch.targets.flatten()).backward()
        expected = {name: p.grad.clone() for name, p in decoder.named_parameters()}
        decoder.zero_grad()
        next_token_loss(decoder, batch).backward()
        for name, p in decoder.named_parameters():
            torch.testing.assert_close(p.grad, expected[name], rtol=1e-4, atol=1e-6, msg=name)


def test_losses_go_through_forward() -> None:
    """One call of the model, whose hooks see it: FSDP gathers weights in them (law 15)."""
    decoder, calls = model(), []
    handle = decoder.register_forward_hook(lambda module, args, out: calls.append(tuple(out.shape)))
    batch = random_batch(2, 6)
    next_token_loss(decoder, batch)
    token_losses(decoder, batch)
    window_losses(decoder, batch.inputs[0], chunk=4)
    handle.remove()
    assert calls == [(), (2, 6), (4,), (1,)]


def test_bfloat16_training_keeps_float32_weights_and_gradients() -> None:
    """Autocast rounds products alone."""
    decoder = model()
    loss = next_token_loss(decoder, random_batch(2, 8), precision="bfloat16")
    loss.backward()
    exact = next_token_loss(decoder, random_batch(2, 8))
    assert {p.grad.dtype for p in decoder.parameters() if p.grad is not None} == {torch.float32}
    assert loss.dtype == torch.float32
    assert abs(loss.item() - exact.item()) < 0.2


def test_documents_of_one_window_do_not_see_each_other() -> None:
    """Two packed documents lose what they lose apart, position for position."""
    decoder = model().eval()
    parts = [random_batch(1, 5), random_batch(1, 4)]
    ids = torch.tensor([[0] * 5 + [1] * 4])
    packed = Batch(torch.cat([b.inputs for b in parts], 1), torch.cat([b.targets for b in parts], 1), ids)
    apart = torch.cat([token_losses(decoder, part) for part in parts], 1)
    torch.testing.assert_close(token_losses(decoder, packed), apart, rtol=1e-5, atol=1e-5)


def test_validation_by_position_is_the_mean_of_each_block() -> None:
    """Blocks tile the window; their means are those of the losses token by token; dropout is off and comes back."""
    decoder = Decoder(small("unused", dropout=0.5).decoder_config(50)).train()
    stream = TokenStream(torch.randint(0, 50, (95,)), torch.tensor([0]))
    batches = validation_batches(stream, seq_len=10, limit=9, batch_size=4)
    found = loss_by_position(decoder, batches, blocks=4)
    assert decoder.training
    losses = torch.cat([token_losses(decoder.eval(), batch) for batch in batches])
    assert losses.shape == (9, 10)
    assert [(a, b) for a, b, _ in found] == [(0, 2), (2, 5), (5, 8), (8, 10)]
    for a, b, nats in found:
        assert nats == pytest.approx(losses[:, a:b].mean().item(), rel=1e-5)
    assert len(loss_by_position(decoder, batches, blocks=50)) == 10
