"""MHRoPE: heads that each follow one axis, against loops in float64 written out here."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import ropewalk as rw

CONFIG = rw.RopeConfig(16, interleaved=False, theta=5e6)
HEADS = (0, 1, 1, 2, None)


def pictures() -> torch.Tensor:
    """Positions of text, an image, and text: three axes that differ."""
    ids, _ = rw.positions.mrope_positions(torch.tensor([[0, 0, *([1] * 6), 0, 0]]), images=[(1, 4, 6)])
    return ids


def turned(x: np.ndarray, position: np.ndarray, axis: int | None) -> np.ndarray:
    """One head `[16]`: every pair turns by its axis's coordinate times its own frequency of the whole ladder."""
    out = x.copy()
    for pair in range(8 if axis is not None else 0):
        angle = float(position[axis]) * 5e6 ** (-pair / 8)
        out[pair] = x[pair] * math.cos(angle) - x[pair + 8] * math.sin(angle)
        out[pair + 8] = x[pair + 8] * math.cos(angle) + x[pair] * math.sin(angle)
    return out


@pytest.mark.parametrize("queries", [None, 15])
def test_each_head_follows_its_axis(queries):
    """Key heads by their axes, three queries with each; the last key head does not turn."""
    ids = pictures()
    assert (ids[0, :, 0] != ids[0, :, 1]).any()
    x = torch.randn(1, ids.shape[1], queries or 5, 16, dtype=torch.float64)
    rope = rw.RotaryEmbedding(CONFIG)
    cos, sin = rope.cos_sin_by_head(ids, HEADS, num_heads=queries, dtype=torch.float64)
    found = rw.rotate(x, cos, sin, interleaved=False)
    for seq, head in np.ndindex(x.shape[1], x.shape[2]):
        axis = HEADS[head // 3 if queries else head]
        right = turned(x[0, seq, head].numpy(), ids[0, seq].numpy(), axis)
        np.testing.assert_allclose(found[0, seq, head], right, rtol=0, atol=1e-12)


def test_text_is_plain_rope():
    """Where the axes agree every head is the text model's, with its scaling and its lengths."""
    config = rw.RopeConfig(16, interleaved=True, scaling=rw.scaling.DynamicNTK(4.0), max_position_embeddings=8)
    rope, ids = rw.RotaryEmbedding(config), torch.arange(30)
    cos, sin = rope.cos_sin_by_head(ids[:, None].expand(30, 3), rw.positions.axes_from_sections([2, 3, 3]), seq_len=30)
    expected = rope.cos_sin(ids, 30)
    for table, right in zip((cos, sin), expected, strict=True):
        assert table.shape == (1, 30, 8, 8)
        assert torch.equal(table, right[None, :, None].expand_as(table))


def test_it_is_the_product_with_a_matrix_for_each_head():
    """The same angles from learned frequencies that start with each head's row of the ladder and are zero elsewhere."""
    axes = rw.RopeConfig(16, interleaved=False, theta=5e6, axes=(0, 1, 2, 0, 1, 2, 0, 0))
    learned = rw.rotation.LearnedFrequencies(axes, num_heads=5, mixed=False)
    with torch.no_grad():
        learned.freqs.zero_()
        for head, axis in enumerate(HEADS):
            if axis is not None:
                learned.freqs[head, axis] = rw.inverse_frequencies(CONFIG).inv_freq[0].float()
    ids = pictures()
    for dense, by_head in zip(learned(ids), rw.RotaryEmbedding(CONFIG).cos_sin_by_head(ids, HEADS), strict=True):
        torch.testing.assert_close(dense, by_head, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("positions", "heads", "options", "words"),
    [
        (torch.zeros(4, 3), (0, 3), {}, "an axis of the positions"),
        (torch.zeros(4, 3), (), {}, "an axis of the positions"),
        (torch.zeros(4), (0,), {}, "an axis of the positions"),
        (torch.zeros(4, 3), (0, 1), {"num_heads": 3}, "multiple of the key heads"),
        (torch.zeros(4, 3), (0, 1), {"num_heads": 0}, "multiple of the key heads"),
    ],
)
@pytest.mark.rejects
def test_what_does_not_fit_is_refused(positions, heads, options, words):
    """Axes that are not there, and queries that no key head serves."""
    with pytest.raises(rw.RopeError, match=words):
        rw.RotaryEmbedding(CONFIG).cos_sin_by_head(positions, heads, **options)


@pytest.mark.traced
def test_it_compiles():
    """In one graph, with the numbers of the eager call."""
    rope, ids = rw.RotaryEmbedding(CONFIG), pictures()
    compiled = torch.compile(lambda at: rope.cos_sin_by_head(at, HEADS, num_heads=10), fullgraph=True, backend="eager")
    for ours, right in zip(compiled(ids), rope.cos_sin_by_head(ids, HEADS, num_heads=10), strict=True):
        torch.testing.assert_close(ours, right, rtol=0, atol=1e-7)
