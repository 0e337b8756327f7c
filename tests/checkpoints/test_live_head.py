"""Losses of a live model's half-precision head, with and without something between it and the logits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk.checkpoints import live_model
from ropewalk.checkpoints.live_model import LiveModel, cache_argument
from tests.checkpoints.random_models import random_model

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
    whole = live_model.half_losses
    monkeypatch.setattr(live_model, "slow_dtype", lambda *_: False)

    def count(hidden: Tensor, *given: Tensor) -> Tensor:
        rows.append(len(hidden))
        return whole(hidden, *given)

    monkeypatch.setattr(live_model, "half_losses", count)
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
    assert rows == [40]
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


def doubled(model: Any, hidden: Tensor) -> Tensor:
    """Something before the head."""
    found: Tensor = model.lm_head(2 * hidden)
    return found


def doubled_in_place(model: Any, hidden: Tensor) -> Tensor:
    """The same, in the tensor that was given."""
    found: Tensor = model.lm_head(hidden.mul_(2))
    return found


def divided_in_place(model: Any, hidden: Tensor) -> Tensor:
    """Something behind the head, in the tensor that it gave."""
    found: Tensor = model.lm_head(hidden)
    return found.div_(3)


def scaled_by_the_layers(model: Any, hidden: Tensor) -> Tensor:
    """A scale that lies at the layers, as in Falcon-H1."""
    found: Tensor = model.lm_head(hidden) * model.model.multiplier
    return found


@pytest.mark.parametrize(
    ("head", "before", "after"),
    [(doubled, 2, 1), (doubled_in_place, 2, 1), (divided_in_place, 1, 1 / 3), (scaled_by_the_layers, 1, 0.25)],
)
@torch.no_grad()
def test_what_stands_around_the_head_is_the_models(
    head: Any, before: float, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward that does something before its head or behind it, also in place: read as it is."""
    rows = counted(monkeypatch)
    model = random_model("phi3").bfloat16()
    model.model.multiplier = 0.25

    class Changed(type(model)):  # type: ignore[misc]
        def forward(self, inputs_embeds: Any = None, **_: Any) -> Any:
            return SimpleNamespace(logits=head(self, self.model(inputs_embeds=inputs_embeds).last_hidden_state))

    _, hidden, targets = read(model)
    model.__class__ = Changed
    found = LiveModel(model).target_losses(hidden.clone(), targets)
    wanted = truth(before * hidden, model.lm_head.weight, targets, lambda logits: logits * after)
    assert float(abs(found.double() - wanted).max()) < 1e-5
    assert rows == []


@pytest.mark.parametrize("how", ["hook", "forward", "accelerate's hook"])
@torch.no_grad()
def test_a_head_that_is_not_plain_is_called(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook of the head, or a forward of its own; accelerate's hook moves weights, and the product stays wide."""
    rows = counted(monkeypatch)
    model = random_model("phi3").bfloat16()
    _, hidden, targets = read(model)
    head, own = model.lm_head, model.lm_head.forward
    if how == "hook":
        head.register_forward_hook(lambda module, given, out: out / 3)
    elif how == "forward":
        head.forward = lambda hidden: own(hidden) / 3
    else:
        accelerate = pytest.importorskip("accelerate.hooks")
        accelerate.add_hook_to_module(head, accelerate.AlignDevicesHook("cpu"))
    live = LiveModel(model)
    found = live.target_losses(hidden.clone(), targets)
    if how == "accelerate's hook":
        wanted, bound = truth(hidden, head.weight, targets), 1e-5
    else:
        wanted, bound = truth(hidden, head.weight, targets, lambda logits: (logits.bfloat16() / 3).double()), 0.02
    assert float(abs(found.double() - wanted).max()) < bound
    assert rows == []


@torch.no_grad()
def test_the_cache_has_the_name_that_the_layers_give_it() -> None:
    """Layers with `cache` instead of `past_key_values`, as from transformers 5.24 on, which warns for the old name."""
    model = random_model("phi3")

    class Renamed(type(model.model)):  # type: ignore[misc]
        def forward(self, input_ids: Any = None, *, cache: Any = None, use_cache: bool, **more: Any) -> Any:
            assert more.pop("past_key_values", None) is None
            return super().forward(input_ids, **({} if cache is None else {own: cache}), use_cache=use_cache, **more)

    ids = torch.randint(3, 250, (1, 12), generator=torch.Generator().manual_seed(1))
    whole = LiveModel(model).hidden(ids, None, 0)
    own = cache_argument(model.model)
    model.model.__class__ = Renamed
    assert cache_argument(model.model) == "cache"
    live = LiveModel(model)
    live.check()
    cache = live_model.new_cache(model.config, 12)
    parts = torch.cat([live.hidden(ids[:, :7], cache, 0), live.hidden(ids[:, 7:], cache, 7)], 1)
    torch.testing.assert_close(parts, whole, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_bias_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head with a bias goes through the model's own forward, in float32."""
    rows = counted(monkeypatch)
    model = random_model("phi3").bfloat16()
    model.lm_head.bias = torch.nn.Parameter(torch.linspace(-3, 3, 257).bfloat16())
    live, hidden, targets = read(model)
    found = live.target_losses(hidden, targets)
    wanted = truth(hidden, model.lm_head.weight, targets, lambda logits: logits + model.lm_head.bias.double())
    assert float(abs(found.double() - wanted).max()) < 1e-5
    assert rows == []


@torch.no_grad()
def test_a_head_that_accelerate_offloads_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its weight is on the meta device between calls: its hook brings it, and the losses are in float32."""
    accelerate = pytest.importorskip("accelerate")
    rows = counted(monkeypatch)
    model = random_model("phi3").bfloat16()
    weight = model.lm_head.weight.clone()
    accelerate.cpu_offload(model.lm_head, execution_device=torch.device("cpu"))
    assert model.lm_head.weight.is_meta
    live, hidden, targets = read(model)
    found = live.target_losses(hidden, targets)
    assert float(abs(found.double() - truth(hidden, weight, targets)).max()) < 1e-5
    assert model.lm_head.weight.is_meta
    assert rows == []
