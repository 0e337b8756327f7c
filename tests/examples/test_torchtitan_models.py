"""torchtitan's Llama debug model with our rotation in its layers; skipped where torchtitan is not installed."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("torchtitan", reason="torchtitan is not a dependency: pip install torchtitan==0.3.0")

from torchtitan.config.override import OverrideConfig, apply_overrides
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.llama3 import model_registry

from ropewalk.errors import RopeError
from tests.examples.loading import example

OURS = example("torchtitan_rope")
TOKENS = 48


def spec():
    """The debug model with torch's own attention: FlexAttention has no backward pass on a CPU."""
    made = model_registry("debugmodel")
    for layer in made.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return made


def built(changes: dict | None = None, *, override: bool, meta: bool = False) -> torch.nn.Module:
    """The model with the same weights each time; `changes` are the override's."""
    made = spec()
    if override:
        lines = apply_overrides(OverrideConfig(imports=[("torchtitan_rope.complex_rope", changes or {})]), _Tree(made))
        assert len(lines) == len(made.model.layers) == 6
        assert all(
            type(layer.attention.rope).__qualname__ == "RopewalkComplexRoPE.Config" for layer in made.model.layers
        )
    with torch.device("meta" if meta else "cpu"):
        model = made.model.build()
    if meta:
        model.to_empty(device="cpu")
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights()
        for weight in model.parameters():  # large enough that attention is sharp
            if weight.ndim > 1:
                weight.normal_(std=1.5 / weight.shape[-1] ** 0.5)
    return model


class _Tree:
    """The part of a Trainer.Config that `apply_overrides` walks."""

    def __init__(self, made) -> None:
        self.made = made

    def traverse(self, target):
        return self.made.traverse(target)


def read(model: torch.nn.Module, start: int = 0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Logits, and the gradients of a sum over them."""
    tokens = torch.randint(0, 2048, (2, TOKENS), generator=torch.Generator().manual_seed(1))
    positions = (torch.arange(TOKENS) + start).expand(2, -1)
    logits = model(tokens, positions)
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2))
    model.zero_grad()
    (logits * weights).mean().backward()
    return logits.detach(), {name: weight.grad.clone() for name, weight in model.named_parameters()}


def apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference, of the largest number."""
    return float((one - other).abs().max() / one.abs().max())


def test_the_debug_model_gives_what_it_gave():
    """Six layers replaced: logits and gradients within float32's rounding, and shifted far better than its own."""
    theirs, ours = built(override=False), built(override=True)
    assert not [name for name, _ in ours.named_buffers()]
    expected, gradients = read(theirs)
    found, of_ours = read(ours)
    assert apart(expected, found) < 2e-5
    assert gradients.keys() == of_ours.keys()
    size = max(float(x.abs().max()) for x in gradients.values())
    assert max(float((gradients[name] - of_ours[name]).abs().max()) for name in gradients) / size < 2e-5
    moved, moved_ours = apart(expected, read(theirs, 131_000)[0]), apart(found, read(ours, 131_000)[0])
    assert moved_ours < 5e-5
    assert moved > 20 * moved_ours
    assert apart(found, read(ours, 10_000_000)[0]) < 1e-4  # its own has no table there


def test_built_on_meta_it_is_right():
    """The trainer's way: meta device, to_empty, init_weights."""
    assert apart(read(built(override=True))[0], read(built(override=True, meta=True))[0]) == 0.0


def test_a_method_of_the_override():
    """YaRN by the override's own arguments; without its lengths it is refused."""
    lengths = {"trained_length": 2048, "target": 8192}
    plain, extended = built(override=True), built({"method": "yarn", **lengths}, override=True)
    assert apart(read(plain)[0], read(extended)[0]) > 0.01
    with pytest.raises(RopeError, match="needs two lengths"):
        built({"method": "yarn"}, override=True)
