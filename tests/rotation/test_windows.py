"""A window inside the head, and half-split inside each axis's own features."""

from __future__ import annotations

import pytest
import torch
from transformers.models.deepseek_v3.modeling_deepseek_v3 import apply_rotary_pos_emb_interleave

import ropewalk as rw

ROPE = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=True))
IDS = torch.tensor([0, 7, 300])
AXES = rw.positions.axes_from_sections([2, 2])
VISION = rw.RopeConfig(8, interleaved=False, axes=AXES, axes_restart=True, axis_blocks=True)
PLACES = torch.tensor([[0, 3], [2, 1], [9, 5]])


def some(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def test_deepseek_in_one_call():
    """Multi-head latent attention: queries turn at their end, and the shared key is that part alone; then halves."""
    q, k = some(2, 3, 4, 12).float(), some(2, 3, 1, 8).float()
    of_both = ROPE(q, k, position_ids=IDS, rotary_offset=(4, 0))
    parts = of_both[0][..., 4:], of_both[1]
    halves = [rw.convert_pairing(x, to="half") for x in parts]
    found = torch.cat([of_both[0][..., :4], halves[0]], -1), halves[1]
    cos, sin = (torch.cat([table, table], -1)[None] for table in ROPE.cos_sin(IDS))
    heads_first = q[..., 4:].transpose(1, 2), k.transpose(1, 2)
    of_q, of_k = (x.transpose(1, 2) for x in apply_rotary_pos_emb_interleave(*heads_first, cos, sin))
    torch.testing.assert_close(found[0], torch.cat([q[..., :4], of_q], -1), atol=1e-6, rtol=0)
    torch.testing.assert_close(found[1], of_k, atol=1e-6, rtol=0)


def test_blocks_are_each_axis_alone():
    """Each axis turns its own features, half-split, as if they were a head by themselves."""
    rope, x = rw.RotaryEmbedding(VISION), some(1, 3, 2, 8)
    found = rope.rotate(x, position_ids=PLACES)
    one = rw.RotaryEmbedding(rw.RopeConfig(4, interleaved=False))
    alone = [one.rotate(part, position_ids=PLACES[:, axis]) for axis, part in enumerate(x.split(4, -1))]
    torch.testing.assert_close(found, torch.cat(alone, -1), atol=1e-14, rtol=0)
    both = rope(x, x[:, :, :1], PLACES)
    assert torch.equal(both[0], found)
    assert torch.equal(both[1], found[:, :, :1])
    place = torch.empty_like(x)
    assert torch.equal(rope.rotate(x, PLACES, out=place), found)
    assert torch.equal(place, found)
    copy = x.clone()
    assert rope.rotate(copy, PLACES, inplace=True) is copy
    assert torch.equal(copy, found)
    learned = rw.rotation.LearnedFrequencies(VISION, mixed=False)
    torch.testing.assert_close(learned(x, x, PLACES)[0], found, atol=1e-6, rtol=0)
    with pytest.raises(rw.RopeError, match="paired by themselves"):
        rw.Attention(16, 2, rope=VISION)
    assert hash(VISION) != hash(rw.RopeConfig(8, interleaved=False, axes=AXES, axes_restart=True))
    assert rw.RopeConfig(8, interleaved=False, axes=AXES, axes_restart=True) != VISION
    whole = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=False, axes=AXES, axes_restart=True))
    assert not torch.allclose(whole.rotate(x, position_ids=PLACES), found)


@pytest.mark.rejects
@pytest.mark.parametrize(
    "changes", [{"interleaved": True}, {"axes": None, "axes_restart": False}, {"axes": (0, 1, 0, 1)}]
)
def test_blocks_refused(changes):
    """Blocks need half-split pairs of several axes, each in a row."""
    fields = {"interleaved": False, "axes": AXES, "axes_restart": True, "axis_blocks": True, **changes}
    with pytest.raises(rw.RopeError, match="`axis_blocks` needs half-split pairs"):
        rw.RopeConfig(8, **fields)
