"""Learned frequencies: dense, per head, trained, and safe from casts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor

import ropewalk as rw
from tests.launch.ranks import run_forked

CONFIG = rw.RopeConfig(
    16, interleaved=True, theta=10.0, axes=rw.positions.axes_from_sections([4, 4]), axes_restart=True
)


def test_unmixed_start_is_the_axial_rotation():
    """Before training and without mixing it is the fixed axial embedding, shared by all heads."""
    ids = torch.randint(0, 14, (2, 9, 2))
    learned = rw.rotation.LearnedFrequencies(CONFIG, mixed=False).cos_sin(ids)
    fixed = rw.RotaryEmbedding(CONFIG).cos_sin(ids)
    for a, b in zip(learned, fixed, strict=True):
        torch.testing.assert_close(a[:, :, 0], b, rtol=0, atol=1e-5)  # the parameter itself is float32


def rope_vit(dim: int, num_heads: int, theta: float) -> torch.Tensor:
    """`init_random_2d_freqs` of naver-ai/rope-vit (Heo et al. 2024), `[heads, axes, pairs]`."""
    mag = 1 / (theta ** (torch.arange(0, dim, 4)[: dim // 4].float() / dim))
    freqs = []
    for _ in range(num_heads):
        angle = torch.rand(1) * 2 * torch.pi
        fx = torch.cat([mag * torch.cos(angle), mag * torch.cos(torch.pi / 2 + angle)])
        fy = torch.cat([mag * torch.sin(angle), mag * torch.sin(torch.pi / 2 + angle)])
        freqs.append(torch.stack([fx, fy]))
    return torch.stack(freqs)


def test_mixed_start_is_rope_vits():
    """On two axes the start is rope-vit's, from the same random numbers."""
    torch.manual_seed(5)
    right = rope_vit(16, 12, 10.0)
    torch.manual_seed(5)
    learned = rw.rotation.LearnedFrequencies(CONFIG, num_heads=12)
    torch.testing.assert_close(learned.freqs.detach(), right, rtol=0, atol=1e-6)


@pytest.mark.parametrize("axes", [2, 3, 4])
def test_a_mixed_start_is_a_rotation(axes):
    """The axes of each head are turned, never reflected, and every direction is as likely as its opposite."""
    config = rw.RopeConfig(2 * axes, interleaved=True, theta=10.0, axes=tuple(range(axes)), axes_restart=True)
    turns = (
        rw.rotation.LearnedFrequencies(config, num_heads=2000).freqs.detach().double()
    )  # one pair an axis, of frequency 1
    torch.testing.assert_close(
        turns @ turns.mT, torch.eye(axes, dtype=torch.float64).expand_as(turns), rtol=0, atol=1e-6
    )
    torch.testing.assert_close(torch.linalg.det(turns), torch.ones(2000, dtype=torch.float64), rtol=0, atol=1e-6)
    # the mean of 2000 numbers of variance 1/axes: five of its standard deviations
    assert turns.mean(0).abs().max() < 5 / (2000 * axes) ** 0.5


def test_a_mixed_pair_follows_the_diagonal():
    """The angle is the dense product positions @ frequencies, in float64, for each head."""
    learned, ids = rw.rotation.LearnedFrequencies(CONFIG, num_heads=3), torch.rand(1, 9, 2) * 100
    cos, sin = learned.cos_sin(ids)
    angle = torch.einsum("bsa,hap->bshp", ids.double(), learned.freqs.detach().double())
    torch.testing.assert_close(cos, angle.cos().float(), rtol=0, atol=1e-7)
    torch.testing.assert_close(sin, angle.sin().float(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_casts_leave_float32(cast):
    """The parameter stays float32, with its value, and stays the same Parameter for the optimizer."""
    learned = rw.rotation.LearnedFrequencies(CONFIG, num_heads=2)
    parameter, before = learned.freqs, learned.freqs.detach().clone()
    torch.nn.Sequential(learned, torch.nn.Linear(2, 2)).to(cast)
    assert learned.freqs is parameter
    assert learned.freqs.dtype == torch.float32
    assert torch.equal(learned.freqs, before)


def test_meta_then_reset():
    """Built on meta and materialised, reset_parameters starts it again."""
    with torch.device("meta"):
        learned = rw.rotation.LearnedFrequencies(CONFIG, mixed=False)
    learned = learned.to_empty(device="cpu")
    learned.reset_parameters()
    torch.testing.assert_close(learned.freqs, rw.rotation.LearnedFrequencies(CONFIG, mixed=False).freqs)
    assert torch.equal(copy.deepcopy(learned).freqs, learned.freqs)


def test_a_16_bit_checkpoint_is_widened():
    """Assigning 16-bit weights to a module made on meta leaves a float32 parameter, also through another cast."""
    with torch.device("meta"):
        learned = rw.rotation.LearnedFrequencies(CONFIG, mixed=False)
    state = {"freqs": torch.rand(1, 2, 8).bfloat16()}
    learned.load_state_dict(state, assign=True)
    assert learned.freqs.dtype == torch.float32
    assert torch.equal(learned.freqs, state["freqs"].float())
    assert learned.half().freqs.dtype == torch.float32


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
def test_called_like_a_rope(layout):
    """On the axes and before training it rotates as `RotaryEmbedding`, with its factor, in every layout."""
    config = rw.RopeConfig(16, interleaved=False, rotary_dim=8, scaling=rw.scaling.YaRN(4.0, 64))
    learned, rope, ids = rw.rotation.LearnedFrequencies(config), rw.RotaryEmbedding(config), torch.arange(7) * 100
    q, k = (torch.randn(1, 7, heads, 16) for heads in (4, 2))
    q, k = {"bshd": (q, k), "bhsd": (q.transpose(1, 2), k.transpose(1, 2)), "thd": (q[0], k[0])}[layout]
    for got, wanted in zip(learned(q, k, ids, layout=layout), rope(q, k, ids, layout=layout), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-3)  # the parameter itself is float32
    for missing in ((q,), (q, k), (q, None, ids)):
        with pytest.raises(rw.RopeError, match="keys or positions are missing"):
            learned(*missing, layout=layout)
    state = torch.get_rng_state()
    rw.rotation.LearnedFrequencies(config)  # one axis has no directions to draw
    assert torch.equal(torch.get_rng_state(), state)


class Model(torch.nn.Module):
    """Frequencies beside a layer that a policy casts."""

    def __init__(self) -> None:
        super().__init__()
        self.learned = rw.rotation.LearnedFrequencies(CONFIG, mixed=False)
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        assert self.layer.weight.dtype == torch.bfloat16
        return self.learned(x, x, ids)[0]


def sharded(rank: int) -> None:
    """A policy of 16 bits for the whole model is refused; frequencies that are sharded first are exact and learn."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=False)
    x, ids, mesh = torch.randn(1, 6, 1, 16), torch.randint(1000, 4000, (6, 2)), init_device_mesh("cpu", (1,))
    wanted = rw.RotaryEmbedding(CONFIG).rotate(x, ids)
    with pytest.raises(rw.RopeError, match=r"(?s)must be float32.*fully_shard on this module first"):
        fully_shard(Model(), mesh=mesh, mp_policy=policy)(x, ids)
    model = Model()
    fully_shard(model.learned, mesh=mesh)
    got = fully_shard(model, mesh=mesh, mp_policy=policy)(x, ids)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-3)
    got.square().sum().backward()
    assert model.learned.freqs.grad is not None
    replicated = rw.RotaryEmbedding(CONFIG).rotate(distribute_tensor(x, mesh, [Replicate()]), ids)
    torch.testing.assert_close(replicated.full_tensor(), wanted)


def test_fsdp_with_16_bits(tmp_path):
    """Law 3 under a policy that casts parameters for each forward pass."""
    run_forked(sharded, 1, tmp_path)


@pytest.mark.rejects
def test_bad_input():
    """Coordinates without their axes, and no heads, are refused."""
    with pytest.raises(rw.RopeError, match="wrong shape"):
        rw.rotation.LearnedFrequencies(CONFIG).cos_sin(torch.zeros(9))
    with pytest.raises(rw.RopeError, match="`num_heads` must be a whole number from 1"):
        rw.rotation.LearnedFrequencies(CONFIG, num_heads=0)
    assert len(rw.rotation.LearnedFrequencies(CONFIG, num_heads=1).freqs) == 1
