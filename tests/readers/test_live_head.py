"""Losses of a live model's half-precision head, with and without something between it and the logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk.backends import choose_rowwise
from ropewalk.readers.live import model as live_model
from ropewalk.readers.live.model import LiveModel
from tests.readers.random_models import random_model

TYPES = (torch.bfloat16, torch.float16)


def read(model: Any) -> tuple[LiveModel, Tensor, Tensor]:
    """The two halves, and hidden states `[40, hidden]` with their targets."""
    ids = torch.randint(3, 256, (41,), generator=torch.Generator().manual_seed(4))
    live = LiveModel(model)
    with torch.no_grad():
        return live, live.hidden(ids[None, :-1], None, 0)[0], ids[1:]


def truth(hidden: Tensor, weight: Tensor, targets: Tensor, after: Any = lambda logits: logits) -> Tensor:
    """float64 nats of each target."""
    log_probs = after(hidden.double() @ weight.double().T).log_softmax(-1)
    return -log_probs.gather(-1, targets[:, None])[:, 0]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every call of the losses that read the head once."""
    rows: list[int] = []
    whole = live_model.target_losses

    def count(hidden: Tensor, *given: Tensor) -> Tensor:
        rows.append(len(hidden))
        return whole(hidden, *given)

    monkeypatch.setattr(live_model, "target_losses", count)
    return rows


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", ["gemma3_text", "phi3", "mixtral"])
@torch.no_grad()
def test_a_head_alone_is_read_once(family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its losses are float64's of the rounded states and weights, as closely as the decoder's."""
    rows = counted(monkeypatch)
    model = random_model(family).to(dtype)
    live, hidden, targets = read(model)
    found = live.target_losses(hidden, targets)
    assert rows == ([40] if choose_rowwise(hidden).kernels else [])
    wanted = truth(hidden, model.lm_head.weight, targets)
    assert found.dtype == torch.float32
    assert float((found.double() - wanted).pow(2).mean().sqrt()) < (0.01 if dtype == torch.bfloat16 else 0.002)
    assert float(abs(found.double().mean() - wanted.mean())) < 0.003


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", ["gemma2", "granite"])
@torch.no_grad()
def test_what_follows_the_head_is_the_models(family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A soft cap and a scale: the losses go through the model's own forward, in float32."""
    rows = counted(monkeypatch)
    model = random_model(family).to(dtype)
    after = {
        "gemma2": lambda logits: torch.tanh(logits / model.config.final_logit_softcapping) * 30.0,
        "granite": lambda logits: logits / 3.0,
    }[family]
    live, hidden, targets = read(model)
    found = live.target_losses(hidden, targets)
    assert rows == []
    assert float(abs(found.double() - truth(hidden, model.lm_head.weight, targets, after)).max()) < 1e-5


@torch.no_grad()
def test_what_precedes_the_head_is_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward that doubles the hidden states before its head, and one that adds a bias."""
    rows = counted(monkeypatch)
    model = random_model("phi3").bfloat16()

    class Doubled(type(model)):  # type: ignore[misc]
        def forward(self, inputs_embeds: Any = None, **_: Any) -> Any:
            hidden = self.model(inputs_embeds=inputs_embeds).last_hidden_state
            return SimpleNamespace(logits=self.lm_head(2 * hidden))

    _, hidden, targets = read(model)
    model.__class__ = Doubled
    found = LiveModel(model).target_losses(hidden, targets)
    assert float(abs(found.double() - truth(2 * hidden, model.lm_head.weight, targets)).max()) < 1e-5

    class InPlace(type(model)):  # type: ignore[misc]
        def forward(self, inputs_embeds: Any = None, **_: Any) -> Any:
            logits = self.lm_head(self.model(inputs_embeds=inputs_embeds).last_hidden_state)
            logits /= 3
            return SimpleNamespace(logits=logits)

    class DoubledInPlace(type(model)):  # type: ignore[misc]
        def forward(self, inputs_embeds: Any = None, **_: Any) -> Any:
            hidden = self.model(inputs_embeds=inputs_embeds).last_hidden_state
            return SimpleNamespace(logits=self.lm_head(hidden.mul_(2)))

    model.__class__ = InPlace
    found = LiveModel(model).target_losses(hidden, targets)
    assert float(abs(found.double() - truth(hidden, model.lm_head.weight, targets, lambda one: one / 3)).max()) < 1e-5
    model.__class__ = DoubledInPlace
    found = LiveModel(model).target_losses(hidden.clone(), targets)
    assert float(abs(found.double() - truth(2 * hidden, model.lm_head.weight, targets)).max()) < 1e-5
    biased = random_model("phi3").bfloat16()
    biased.lm_head.bias = torch.nn.Parameter(torch.linspace(-3, 3, 257).bfloat16())
    found = LiveModel(biased).target_losses(hidden, targets)
    wanted = truth(hidden, biased.lm_head.weight, targets, lambda logits: logits + biased.lm_head.bias.double())
    assert float(abs(found.double() - wanted).max()) < 1e-5
    assert rows == []
