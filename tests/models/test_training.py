"""The training loop, windows of text, and losses by position."""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.models import training
from ropewalk.models.training import (
    Batch,
    TextWindows,
    fit,
    held_out_windows,
    learning_rate,
    loss_by_position,
    next_token_loss,
    split_text,
)
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.scaling import DynamicNTK, Scaling
from tests.models.forms import make_decoder

decoder = partial(make_decoder, torch.float32, encoding="rope", num_hidden_layers=2)


def windows(*lengths: int, length: int, seed: int = 0) -> TextWindows:
    """Windows of documents of the given lengths, whose tokens are their own indices."""
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    return TextWindows([range(a, b) for a, b in pairwise(ends)], length=length, seed=seed)


def test_the_learning_rate_is_linear_then_half_a_cosine() -> None:
    """Update w of a warm-up over w updates is the first at the peak; half-way the cosine is the mean of both ends."""
    assert [learning_rate(step, peak=2.0, warmup=4, steps=20, final=0.1) for step in range(4)] == [0.5, 1.0, 1.5, 2.0]
    rates = [learning_rate(step, peak=1.0, warmup=10, steps=110, final=0.2) for step in range(110)]
    assert rates[59] == pytest.approx(0.6)
    for warmup, steps in ((10, 110), (3, 4), (0, 1)):  # and it stays there
        ends = [learning_rate(step, peak=1.0, warmup=warmup, steps=steps, final=0.2) for step in (steps - 1, 3 * steps)]
        assert ends == pytest.approx([0.2, 0.2])
    assert rates[34] == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    starts = [learning_rate(step, peak=1.0, warmup=10, steps=3, final=0.2) for step in range(3)]
    assert starts == pytest.approx([0.1, 0.2, 0.3])

    def losses(steps: int, warmup: int | None) -> list[float]:
        weight = nn.ParameterList([torch.ones(1)])
        return fit(weight, lambda step: weight[0].square().sum(), steps=steps, lr=0.1, warmup=warmup,
                   after=lambda done, loss: done == 9)  # fmt: skip

    for steps, usual in ((40, 2), (9, 0), (9999, 200)):  # by default a twentieth of the updates, at most 200
        assert losses(steps, None) == losses(steps, usual) != losses(steps, usual + 1)


LLAMA = {"final_lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.95), "clip": 1.0}  # arXiv:2307.09288, section 2.2


@pytest.mark.parametrize("given", [{}, {"final_lr": 0.2, "weight_decay": 0.5, "betas": (0.8, 0.7), "clip": 0.3}])
def test_updates_are_those_of_adamw_by_hand(given: dict[str, Any]) -> None:
    """Rates by the schedule, gradients clipped to the norm, and decay of matrices only; by default as in Llama 2."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    twin = nn.Linear(3, 2).double()
    twin.load_state_dict(model.state_dict())
    inputs = torch.randn(4, 5, 3, dtype=torch.float64)

    def loss(module: nn.Module, step: int) -> Tensor:
        return module(inputs[step]).square().sum()

    losses = fit(model, lambda step: loss(model, step), steps=4, lr=0.1, warmup=2, **given)
    final, decay, betas, clip = {**LLAMA, **given}.values()
    groups = [{"params": [twin.weight], "weight_decay": decay}, {"params": [twin.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=betas)
    for step, rate in enumerate((0.05, 0.1, 0.05 * (1 + final), 0.1 * final)):
        expected = loss(twin, step)
        assert losses[step] == pytest.approx(expected.item(), rel=1e-9)
        expected.backward()
        norm = torch.stack([weight.grad.norm() for weight in twin.parameters()]).norm()
        assert norm > clip
        for weight in twin.parameters():
            weight.grad *= clip / (norm + 1e-6)  # torch's own clipping
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
    for name, weight in model.state_dict().items():
        torch.testing.assert_close(weight, twin.state_dict()[name], rtol=1e-5, atol=1e-9)


def test_frozen_parameters_do_not_change_and_after_ends_the_run() -> None:
    """`after` gets the number of updates and the loss; training ends when it returns True."""
    model = nn.Linear(3, 2)
    model.bias.requires_grad_(False)
    bias, seen = model.bias.clone(), []
    losses = fit(model, lambda step: model(torch.ones(3)).square().sum(), steps=9,
                 after=lambda step, loss: seen.append((step, loss)) or step == 3)  # fmt: skip
    assert seen == [(1, losses[0]), (2, losses[1]), (3, losses[2])]
    assert torch.equal(model.bias, bias)


@pytest.mark.parametrize("name", ["loss", "gradient norm"])
def test_what_is_not_finite_stops_before_the_update(name: str) -> None:
    """A loss, or a gradient of a finite loss: the weights are those of the last update."""
    model, weights = nn.Linear(2, 1), []

    def broken(step: int) -> Tensor:
        weights.append(model.weight.detach().clone())
        size = model(torch.ones(2)).square().sum()
        return size if step < 2 else size * torch.nan if name == "loss" else (size * 0).sqrt()

    with pytest.raises(RopeError, match=rf"(?s){name} is not finite.*update +3.*smaller `lr`"):
        fit(model, broken, steps=5)
    assert torch.equal(model.weight, weights[-1])


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and losses, with dropout; a finished run is returned, not repeated."""
    text, state = windows(200, length=8), tmp_path / "state.pt"

    def run(*, stop: int = 99, state: Path | None = state) -> tuple[list[float], dict[str, Tensor], list[int]]:
        model, steps = decoder(residual_dropout=0.5).train(), []

        def loss(step: int) -> Tensor:
            if step == stop:
                raise KeyboardInterrupt
            steps.append(step)
            batch = text.batch(2 * step, 2)
            return next_token_loss(model, Batch(batch.inputs % 50, batch.targets % 50, batch.document_ids))

        return fit(model, loss, steps=7, state=state), model.state_dict(), steps

    whole, weights, _ = run(state=None)
    for seconds in (100.0, -1.0):
        assert not state.exists()  # until the time has passed
        monkeypatch.setattr(training, "SAVE_SECONDS", seconds)
        with pytest.raises(KeyboardInterrupt):
            run(stop=4)
    losses, resumed, steps = run()
    assert steps == [4, 5, 6]
    assert losses == whole
    assert all(torch.equal(resumed[name], weight) for name, weight in weights.items())
    losses, again, steps = run()
    assert (losses, steps) == (whole, [])
    assert torch.equal(again["norm.weight"], weights["norm.weight"])


@pytest.mark.parametrize(
    ("size", "lr", "match"), [(3, 1e-3, "lr +'0.003, now 0.001'"), (4, 3e-3, "other names or shapes")]
)
def test_the_state_of_another_run_is_refused(tmp_path: Path, size: int, lr: float, match: str) -> None:
    """Other settings, or another model."""
    model, other = nn.Linear(3, 1), nn.Linear(size, 1)
    fit(model, lambda step: model(torch.ones(3)).sum(), steps=2, state=tmp_path / "state")
    with pytest.raises(RopeError, match=match):
        fit(other, lambda step: other(torch.ones(size)).sum(), steps=2, lr=lr, state=tmp_path / "state")


@given(tokens=st.integers(3, 60), length=st.integers(2, 12), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_has_every_token_as_a_target(tokens: int, length: int, seed: int, epoch: int) -> None:
    """For all lengths, ceil(tokens / length) windows cover the text, and targets follow inputs."""
    if tokens < length + 1:
        return
    text = windows(tokens, length=length, seed=seed)
    batch = text.batch(epoch * text.per_epoch, text.per_epoch)
    assert text.per_epoch == -(-tokens // length)
    assert set(batch.targets.flatten().tolist()) == set(range(tokens))
    assert torch.equal(batch.targets, (batch.inputs + 1) % tokens)


def test_windows_depend_only_on_seed_and_number() -> None:
    """In the order of earlier versions, on which `tiny` was trained.

    Windows of one large batch, one by one in any order, and of another seed; epochs have other orders and cuts.
    """
    assert windows(40, length=10).batch(0, 6).inputs[:, 0].tolist() == [23, 3, 13, 33, 35, 5]
    with pytest.raises(RopeError, match="shorter than one window"):
        windows(6, length=6)
    whole = windows(100, length=7, seed=3).batch(0, 40)
    for number in (39, 0, 17, 16, 31):
        assert torch.equal(windows(100, length=7, seed=3).batch(number, 1).inputs[0], whole.inputs[number])
    assert not torch.equal(windows(100, length=7, seed=4).batch(0, 40).inputs, whole.inputs)
    first, second = (windows(1000, length=10).batch(n * 100, 100).inputs[:, 0] for n in range(2))
    assert set((first % 10).tolist()) != set((second % 10).tolist())
    assert first.tolist() != sorted(first.tolist())


def test_document_ids_change_where_a_document_begins() -> None:
    """Two documents, and the end of the circle; a document that wraps onto itself counts as two."""
    for lengths, starts in (((6, 4), (0, 6)), ((9,), (0,))):
        batch = windows(*lengths, length=5).batch(0, 20)
        assert batch.document_ids is not None
        for inputs, ids in zip(batch.inputs.tolist(), batch.document_ids.tolist(), strict=True):
            changes = [i for i in range(1, 5) if ids[i] != ids[i - 1]]
            assert changes == [i for i in range(1, 5) if inputs[i] in starts]
            assert len(set(ids)) == len(changes) + 1
    apart = [windows(100, length=5).batch(n, 1) for n in range(20)]
    assert [one.document_ids is not None for one in apart] == [0 in one.inputs[0, 1:].tolist() for one in apart]


@given(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5), limit=st.integers(1, 9))
def test_held_out_windows_are_apart_and_within_documents(lengths: list[int], limit: int) -> None:
    """No target occurs twice, no window spans two documents, and there are at most `limit`."""
    documents = [range(100 * i, 100 * i + length) for i, length in enumerate(lengths)]
    if max(lengths) < 6:
        with pytest.raises(RopeError, match="no document is as long as one window"):
            held_out_windows(documents, length=5, limit=limit)
        return
    found = held_out_windows(documents, length=5, limit=limit)
    targets = found[:, 1:].flatten().tolist()
    assert len(targets) == len(set(targets)) == 5 * min(limit, sum(max(0, length - 1) // 5 for length in lengths))
    assert bool((found.diff() == 1).all())


def test_split_keeps_the_last_part_and_loses_nothing() -> None:
    """The parts join to the whole; a text of one line is cut inside it."""
    for text in ("word " * 500, "line\n" * 500):
        first, last = split_text(text, 0.1)
        assert first + last == text
        assert 0.08 < len(last) / len(text) <= 0.1
    assert split_text("abc", 0.0) == ("abc", "")


def test_documents_of_one_window_do_not_see_each_other() -> None:
    """The loss of two packed documents is the mean of their losses apart, and float32 for a bfloat16 model."""
    model = decoder().eval()
    ids = torch.randint(0, 50, (1, 11))
    parts = [Batch(ids[:, :5], ids[:, 1:6]), Batch(ids[:, 6:10], ids[:, 7:])]
    packed = Batch(*(torch.cat([part[i] for part in parts], 1) for i in range(2)), torch.tensor([[0] * 5 + [1] * 4]))
    one, other = (next_token_loss(model, part.to("cpu")).item() for part in parts)
    assert next_token_loss(model, packed.to("cpu")).item() == pytest.approx((5 * one + 4 * other) / 9, rel=1e-5)
    assert next_token_loss(model.bfloat16(), packed).dtype == torch.float32


def test_loss_by_position_is_the_mean_over_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in parts of two windows; dropout is off, and the model's mode comes back."""
    monkeypatch.setattr(training, "AT_ONCE", 20)
    model = decoder(residual_dropout=0.5).train()
    ids = held_out_windows([torch.randint(0, 50, (95,)).tolist()], length=9, limit=9)
    found = loss_by_position(model, ids)
    assert model.training
    with torch.no_grad():
        losses = F.cross_entropy(model.eval()(ids[:, :-1]).transpose(1, 2), ids[:, 1:], reduction="none")
    assert losses.shape == (9, 9)
    torch.testing.assert_close(found, losses.double().mean(0))
    torch.testing.assert_close(loss_by_position(model, ids[:, :2]), found[:1])
    with pytest.raises(RopeError, match=r"must be \[windows, seq \+ 1\]"):
        loss_by_position(model, ids[:, :1])


@pytest.mark.parametrize("rule", [None, DynamicNTK(2.0)])
def test_frequencies_by_length_get_the_length_of_the_window(rule: Scaling | None) -> None:
    """A model under dynamic NTK raises without `seq_len`; others ignore it."""
    model = decoder(encoding=None, rope=RopeConfig(8, interleaved=False, scaling=rule, max_position_embeddings=8))
    ids = torch.randint(0, 50, (1, 17))
    expected = F.cross_entropy(model(ids[:, :-1], seq_len=16)[0], ids[0, 1:]).item()
    assert next_token_loss(model, Batch(ids[:, :-1], ids[:, 1:])).item() == pytest.approx(expected, rel=1e-6)
    assert loss_by_position(model, ids).mean().item() == pytest.approx(expected, rel=1e-5)
