"""Losses of a live model's half-precision head, with and without something between it and the logits."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every call of the losses that read the head once."""
    rows: list[int] = []
    whole = live_model.half_losses
    monkeypatch.setattr(live_model, "slow_dtype", lambda *_: False)

    def count(hidden: Tensor, *given: Tensor) -> Tensor:
        rows.append(len(hidden))
        return whole(hidden, *given)

    monkeypatch.setattr(live_model, "half_losses", count)
    return rows


AFTER: dict[str, Any] = {
    "gemma3_text": None, "phi3": None, "mixtral": None, "granite": lambda logits: logits / 3.0,
    "gemma2": lambda logits: torch.tanh(logits / 30.0) * 30.0,
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("family", AFTER)
@torch.no_grad()
def test_a_head_alone_is_read_once(family: str, dtype: torch.dtype, rows: list[int]) -> None:
    """Its losses are float64's of the rounded states and weights, as closely as the decoder's.

    With a soft cap or a scale after it, losses go through the model's own forward, in float32.
    """
    model, after = random_model(family).to(dtype), AFTER[family]
    live, hidden, targets = read(model)
    found = live.target_losses(hidden, targets)
    off = found.double() - truth(hidden, model.lm_head.weight, targets, after or (lambda logits: logits))
    assert found.dtype == torch.float32
    assert rows == ([] if after else [40])
    if after:
        assert float(off.abs().max()) < 1e-5
    assert float(off.pow(2).mean().sqrt()) < (0.01 if dtype == torch.bfloat16 else 0.002)
    assert abs(float(off.mean())) < 0.003


def hooked(head: nn.Linear, _: Any) -> None:
    """A hook that changes what the head gives, with a weight of its own in the head's type."""
    third = torch.eye(head.out_features, dtype=head.weight.dtype) / 3
    head.register_forward_hook(lambda module, given, out: out @ third)


def own_forward(head: nn.Linear, _: Any) -> None:
    """A forward of the head's own."""
    own = head.forward
    head.forward = lambda hidden: own(hidden) / 3


def carried(head: nn.Linear, _: Any) -> None:
    """accelerate's hook, which moves weights and changes nothing."""
    accelerate = pytest.importorskip("accelerate.hooks")
    accelerate.add_hook_to_module(head, accelerate.AlignDevicesHook("cpu"))


def offloaded(head: nn.Linear, _: Any) -> None:
    """The weight is on the meta device between calls, and accelerate's hook brings it."""
    pytest.importorskip("accelerate").cpu_offload(head, execution_device=torch.device("cpu"))
    assert head.weight.is_meta


def biased(head: nn.Linear, _: Any) -> None:
    head.bias = nn.Parameter(BIAS)


def by_keywords(head: nn.Linear, _: Any) -> None:
    biased(head, _)
    head.forward = lambda hidden: nn.functional.linear(hidden, weight=head.weight, bias=head.bias)


def of_forward(between: Callable[[Any, Tensor], Tensor]) -> Callable[[nn.Linear, Any], None]:
    """A forward of the model that does something around its head."""

    def change(head: nn.Linear, model: Any) -> None:
        class Changed(type(model)):  # type: ignore[misc]
            def forward(self, inputs_embeds: Any = None, **_: Any) -> Any:
                return SimpleNamespace(logits=between(self, self.model(inputs_embeds=inputs_embeds).last_hidden_state))

        model.model.multiplier = 0.25  # a scale that lies at the layers, as in Falcon-H1
        model.__class__ = Changed

    return change


BIAS = torch.linspace(-3, 3, 257).bfloat16()
AROUND: dict[str, tuple[Any, float, Callable[[Tensor], Tensor], float]] = {
    # the change, a factor before the head, what follows it, and the bound
    "before": (of_forward(lambda model, x: model.lm_head(2 * x)), 2, lambda y: y, 1e-5),
    "before, in place": (of_forward(lambda model, x: model.lm_head(x.mul_(2))), 2, lambda y: y, 1e-5),
    "behind, in place": (of_forward(lambda model, x: model.lm_head(x).div_(3)), 1, lambda y: y / 3, 1e-5),
    "at the layers": (of_forward(lambda model, x: model.lm_head(x) * model.model.multiplier), 1, lambda y: y / 4, 1e-5),
    "hook": (hooked, 1, lambda y: y / 3, 0.02),
    "forward": (own_forward, 1, lambda y: y / 3, 1e-5),
    "accelerate's hook": (carried, 1, lambda y: y, 1e-5),
    "accelerate's offload": (offloaded, 1, lambda y: y, 1e-5),
    "bias": (biased, 1, lambda y: y + BIAS.double(), 1e-5),
    "by keywords": (by_keywords, 1, lambda y: y + BIAS.double(), 1e-5),
}


@pytest.mark.parametrize("way", AROUND)
@torch.no_grad()
def test_what_stands_around_the_head_is_the_models(way: str, rows: list[int]) -> None:
    """Something before the head, behind it or on it goes through the model's own forward, in float32."""
    change, before, after, bound = AROUND[way]
    model = random_model("phi3").bfloat16()
    _, hidden, targets = read(model)
    head, weight = model.lm_head, model.lm_head.weight.clone()
    change(head, model)
    found = LiveModel(model).target_losses(hidden.clone(), targets)
    assert float(abs(found.double() - truth(before * hidden, weight, targets, after)).max()) < bound
    assert head.weight.is_meta == (way == "accelerate's offload")
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
