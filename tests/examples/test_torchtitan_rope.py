"""examples/torchtitan_rope.py: against complex multiplication in float64, and as DTensors, without torchtitan."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ropewalk.errors import RopeError
from tests.examples.loading import example
from tests.oracle import ladder, llama3, yarn

OURS = example("torchtitan_rope")
rope_of_titan, rotate_titan = OURS.rope_of_titan, OURS.rotate_titan

FIELDS: dict[str, Any] = {
    "dim": 16, "max_seq_len": 256, "theta": 5e5, "scaling": "none", "scaling_factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64, "rope_factor": 4.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "original_seq_len": 64, "truncate": True, "method": "", "target": 0, "trained_length": 0,
}  # fmt: skip
"""torchtitan 0.3's fields of a `RoPE.Config` and their defaults, and the override's."""


def titan(**changes: Any) -> SimpleNamespace:
    """A config as torchtitan has it."""
    return SimpleNamespace(**{**FIELDS, **changes})


def frequencies(config: SimpleNamespace) -> Tensor:
    """The inverse frequencies by the formulas of Llama 3.1 and of YaRN as DeepSeek has it, in float64."""
    block = vars(config) | {"factor": config.rope_factor if config.scaling == "yarn" else config.scaling_factor}
    found = {
        "none": lambda: ladder(config.theta, config.dim),
        "llama": lambda: llama3(config.theta, config.dim, block),
        "yarn": lambda: yarn(config.theta, config.dim, block, config.original_seq_len, config.truncate),
    }[config.scaling]()
    return torch.from_numpy(found)


def turned(x: Tensor, positions: Tensor, config: SimpleNamespace, interleaved: bool) -> Tensor:
    """Each pair as a complex number, times e^(i position frequency)."""
    half = x.shape[-1] // 2
    pairs = x.double().unflatten(-1, (half, 2)) if interleaved else torch.stack(x.double().split(half, -1), -1)
    angles = positions.double()[..., None] * frequencies(config)
    out = torch.view_as_real(
        torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)[:, :, None]
    )
    return out.flatten(-2) if interleaved else torch.cat(out.unbind(-1), -1)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(
    "changes", [{}, {"scaling": "llama"}, {"scaling": "yarn"}, {"scaling": "yarn", "truncate": False}]
)
def test_it_is_complex_multiplication(changes, interleaved):
    """At packed positions, at one row for all, at none, and far beyond max_seq_len; gradients turn back."""
    config = titan(**changes)
    rope = rope_of_titan(config, interleaved=interleaved)
    q, k = torch.randn(2, 20, 4, 16, requires_grad=True), torch.randn(2, 20, 2, 16)
    packed = torch.cat((torch.arange(12), torch.arange(8))).expand(2, -1) + torch.tensor([[0], [200]])
    for positions in (packed, packed[1:], packed + 10_000_000, None):
        rows = torch.arange(20)[None] if positions is None else positions
        found = rotate_titan(q, k, positions, rope)
        for x, one in zip((q, k), found, strict=True):
            assert float((one - turned(x, rows, config, interleaved)).abs().max().detach()) < 2e-6
    found[0].square().sum().backward()
    assert q.grad is not None
    assert float((q.grad - 2 * q.detach()).abs().max()) < 1e-5  # a rotation keeps the square


def test_yarns_attention_factor_stays_in_the_models_softmax():
    """torchtitan's models multiply their softmax scale by it; a method of ours has it in the rotation."""
    assert rope_of_titan(titan(scaling="yarn"), interleaved=True).scaling.attention_factor == 1.0
    rope = rope_of_titan(titan(method="yarn", trained_length=64, target=256), interleaved=True)
    q, _ = rotate_titan(torch.ones(1, 3, 1, 16), torch.ones(1, 3, 1, 16), None, rope)
    assert float(q.norm(dim=-1)[0, 0]) == pytest.approx(4 * (0.1 * math.log(4) + 1), rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scaling": "longrope"}, "not known"),
        ({"method": "dca", "trained_length": 64, "target": 256}, "only on frequencies"),
        ({"method": "yarn", "target": 256}, "two lengths"),
        ({"method": "dynamic", "trained_length": 64, "target": 256}, "length of each text"),
        ({"scaling": "yarn", "method": "pi", "trained_length": 64, "target": 256}, "softmax scale"),
    ],
)
def test_what_it_cannot_do_is_refused(changes, words):
    """With the reason."""
    with pytest.raises(RopeError, match=words):
        rope_of_titan(titan(**changes), interleaved=True)


def test_shards_are_rotated_by_their_own_positions(tmp_path):
    """Heads sharded on a mesh of one: a DTensor with the same placements; sharded features are refused."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    rope = rope_of_titan(titan(), interleaved=True)
    q, k, positions = torch.randn(1, 8, 4, 16), torch.randn(1, 8, 2, 16), torch.arange(8)[None] + 5
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1
    )
    try:
        mesh = init_device_mesh("cpu", (1,))
        sharded = [DTensor.from_local(x.clone().requires_grad_(), mesh, [Shard(2)]) for x in (q, k)]
        found = rotate_titan(*sharded, positions, rope)
        for one, expected in zip(found, rotate_titan(q, k, positions, rope), strict=True):
            assert one.placements == (Shard(2),)
            assert bool((one.to_local() == expected).all())
        found[0].to_local().sum().backward()
        with pytest.raises(RopeError, match="whole heads"):
            rotate_titan(DTensor.from_local(q, mesh, [Shard(3)]), k, positions, rope)
        with pytest.raises(RopeError, match="whole heads"):
            rotate_titan(DTensor.from_local(q, mesh, [Shard(1)]), k, None, rope)
    finally:
        distributed.destroy_process_group()
