"""Positions: packed and padded batches, patches of a grid, images, videos, against loops and the models' own code."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig
from transformers.models.dinov3_vit.modeling_dinov3_vit import get_patches_center_coordinates
from transformers.models.glm4v.modeling_glm4v import Glm4vModel
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel
from transformers.vision_utils import get_vision_position_ids

import ropewalk as rw
from tests.rope.models import Model

sequences = st.lists(st.tuples(st.integers(0, 7), st.integers(-3, 100_000)), min_size=1, max_size=6)


@given(sequences, st.integers(0, 3), st.sampled_from([torch.int32, torch.int64]))
def test_packed(rows, spare, dtype):
    """Every token counts from its sequence's offset, empty sequences too; spare tokens are at 0."""
    lengths, offsets = zip(*rows, strict=True)
    expected = [offset + i for length, offset in rows for i in range(length)]
    ends = torch.tensor([sum(lengths[:n]) for n in range(len(rows) + 1)], dtype=dtype)
    tensor = torch.tensor(offsets, dtype=dtype)
    found = rw.positions.positions_from(ends, offsets=tensor, max_seqlen=max(lengths))
    assert found.dtype == torch.int64
    assert found.tolist() == expected
    longer = rw.positions.positions_from(ends, offsets=tensor, tokens=sum(lengths) + spare)
    assert longer.tolist() == expected + [0] * spare
    alike = [offsets[0] + i for length in lengths for i in range(length)]
    assert rw.positions.positions_from(ends, offsets=offsets[0]).tolist() == alike


@given(st.lists(st.integers(-3, 2**40), min_size=1, max_size=4), st.integers(0, 5))
def test_padded(offsets, longest):
    """Every row counts from its own offset."""
    found = rw.positions.positions_from(offsets=torch.tensor(offsets), max_seqlen=longest)
    assert found.tolist() == [[offset + i for i in range(longest)] for offset in offsets]
    assert rw.positions.positions_from(offsets=offsets[0], max_seqlen=longest).tolist() == found[0].tolist()


@pytest.mark.traced
def test_compiled_and_exported():
    """One graph serves other boundaries and offsets, and the sizes that change."""
    ends, offsets, x = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([7, 0]), torch.zeros(6, 1)
    later = torch.tensor([0, 4, 4], dtype=torch.int32)

    class ModelRopes(torch.nn.Module):
        def forward(self, ends, offsets, x):
            packed = rw.positions.positions_from(ends, offsets=offsets, tokens=x.shape[0], max_seqlen=4)
            return packed, rw.positions.positions_from(offsets=offsets, max_seqlen=x.shape[0])

    compiled = torch.compile(ModelRopes(), backend="eager", fullgraph=True)
    exported = torch.export.export(ModelRopes(), (ends, offsets, x)).module()
    for module in (compiled, exported):
        for those in (ends, later):
            for found, expected in zip(module(those, offsets, x), ModelRopes()(those, offsets, x), strict=True):
                assert torch.equal(found, expected)
        with pytest.raises(RuntimeError, match="does not fit"):
            module(torch.tensor([0, 5, 5], dtype=torch.int32), offsets, x)
    assert torch.equal(compiled(ends, offsets, torch.zeros(9, 1))[0], ModelRopes()(ends, offsets, torch.zeros(9, 1))[0])


# --- patches of a grid


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (7, 2)])
def test_rows_and_columns(height: int, width: int) -> None:
    """Row by row, as transformers numbers the patches of one image."""
    expected = get_vision_position_ids(torch.tensor([[1, height, width]]), 1)
    assert torch.equal(rw.positions.grid_positions(height, width), expected)
    assert torch.equal(rw.positions.grid_positions(height, width, start=1), expected + 1)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (14, 2)])
def test_normalized(height: int, width: int) -> None:
    """DINOv3's centres of patches, times 2 pi."""
    expected = get_patches_center_coordinates(height, width, torch.float64, torch.device("cpu"))
    actual = rw.positions.grid_positions(height, width, normalized=True)  # in float64
    torch.testing.assert_close(actual, 2 * torch.pi * expected, rtol=1e-14, atol=1e-14)


def test_merged_blocks():
    """Row by row of blocks, and in each block row by row, by a plain loop; Qwen2-VL's tower has the same."""
    rows = [(2 * i + a, 2 * j + b) for i in range(2) for j in range(3) for a in range(2) for b in range(2)]
    assert rw.positions.grid_positions(4, 6, merge=2).tolist() == [list(row) for row in rows]
    assert rw.positions.grid_positions(4, 6, merge=2, start=1).tolist() == [[h + 1, w + 1] for h, w in rows]
    assert torch.equal(rw.positions.grid_positions(4, 6, merge=1), rw.positions.grid_positions(4, 6))
    assert torch.equal(
        rw.positions.grid_positions(4, 6, merge=2), get_vision_position_ids(torch.tensor([[1, 4, 6]]), 2)
    )


# --- M-RoPE: text with images and videos, against each model's own get_rope_index

MODELS = {
    Qwen2VLModel: {}, Qwen2_5_VLModel: {"timed": True}, Qwen3VLModel: {"split": True},
    Qwen3_5Model: {"split": True}, Glm4vModel: {"split": True},
}  # fmt: skip


def batch(seed: int, merge: int, split: bool) -> tuple[torch.Tensor, torch.Tensor, list, list]:
    """Token types and a mask of rows of text, images and videos, padded on either side, and their grids."""
    chance = random.Random(seed)
    rows, images, videos = [], [], []
    for _ in range(3):
        row = [0] * chance.randint(1, 4)
        for kind in chance.choices([1, 2], k=chance.randint(0, 3)):
            grid = [1 if kind == 1 else chance.randint(1, 4), *(merge * chance.randint(1, 4) for _ in range(2))]
            (images if kind == 1 else videos).append(grid)
            pictures = grid[0] if split else 1
            tokens = grid[0] // pictures * grid[1] * grid[2] // merge**2
            for _ in range(pictures):
                row += [kind] * tokens + [0] * chance.randint(1, 3)
        rows.append(row)
    longest = max(map(len, rows)) + 1
    left = chance.random() < 0.5
    types, mask = [], []
    for row in rows:
        padding = [0] * (longest - len(row))
        types.append(padding + row if left else row + padding)
        mask.append(padding + [1] * len(row) if left else [1] * len(row) + padding)
    return torch.tensor(types), torch.tensor(mask), images, videos


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_like_the_model(model):
    """Twenty random batches each: every position and every delta is the model's."""
    timed, split = MODELS[model].get("timed", False), MODELS[model].get("split", False)
    for seed in range(20):
        merge = (1, 2, 3)[seed % 3]
        types, mask, images, videos = batch(seed, merge, split)
        vision = SimpleNamespace(spatial_merge_size=merge, tokens_per_second=2)
        theirs = SimpleNamespace(config=SimpleNamespace(vision_config=vision))
        theirs.get_vision_position_ids = lambda *a, theirs=theirs, **k: model.get_vision_position_ids(theirs, *a, **k)
        seconds = torch.tensor([0.3 + 0.45 * n for n in range(len(videos))])
        grids = [torch.tensor(grid).reshape(-1, 3) if grid else None for grid in (images, videos)]
        further = {"second_per_grid_ts": seconds} if timed else {}
        expected, deltas = model.get_rope_index(theirs, types, types, *grids, attention_mask=mask, **further)
        found, next_at = rw.positions.mrope_positions(
            types, images=images, videos=videos, spatial_merge_size=merge, split_frames=split, attention_mask=mask,
            frame_intervals=(2 * seconds) if timed else 1.0,
        )  # fmt: skip
        assert torch.equal(found, expected.movedim(0, -1)), seed
        assert torch.equal(next_at, deltas[:, 0]), seed


@pytest.mark.parametrize("split", [False, True])
def test_packed_sequences(split):
    """Packed text, images and videos have the positions of separate calls, also with an empty sequence and a tail."""
    for seed in range(20):
        types, mask, images, videos = batch(seed, 2, split)
        rows = [row[seen.bool()] for row, seen in zip(types, mask, strict=True)]
        rows.insert(1, rows[0][:0])
        whole = {"images": images, "videos": videos, "split_frames": split, "frame_intervals": 1.0 if split else 1.5}
        of_rows, of_deltas = rw.positions.mrope_positions(types, attention_mask=mask, **whole)
        ends = torch.tensor([0, *torch.tensor([len(row) for row in rows]).cumsum(0).tolist()], dtype=torch.int32)
        packed = torch.cat([*rows, torch.zeros(2, dtype=torch.int64)])
        found, deltas = rw.positions.mrope_positions(packed, cu_seqlens=ends, **whole)
        apart = torch.cat([each[seen.bool()] for each, seen in zip(of_rows, mask, strict=True)])
        assert torch.equal(found, torch.cat([apart, apart.new_zeros(2, 3)])), seed
        assert deltas.tolist() == [of_deltas[0], 0, *of_deltas[1:]], seed


def test_no_token_types():
    """No tokens in a row, or no rows."""
    for shape in ((0,), (2, 0), (0, 3)):
        positions, deltas = rw.positions.mrope_positions(torch.zeros(shape, dtype=torch.int64))
        assert (positions.shape, deltas.shape) == ((*shape, 3), shape[:-1])


INTERLEAVED = {
    "qwen3_vl_text": ({"head_dim": 64}, {"mrope_section": [14, 9, 9], "mrope_interleaved": True}),
    "qwen3_5_text": ({"head_dim": 64}, {"mrope_section": [4, 2, 2], "partial_rotary_factor": 0.25}),
    "qwen3_5_moe_text": ({"head_dim": 128}, {"mrope_section": [6, 5, 5], "partial_rotary_factor": 0.25}),
}


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    """Token types, and positions of text, an image of 2 by 3 tokens, text, a video of two frames, text."""
    row = [0, 0, *([1] * 6), 0, *([2] * 4), 0, 0, *([2] * 4), 0]
    types = torch.tensor([row, [0] * len(row)])
    return types, rw.positions.mrope_positions(types, images=[(1, 4, 6)], videos=[(2, 4, 4)], split_frames=True)[0]


@pytest.mark.parametrize("family", INTERLEAVED)
def test_the_live_class_with_pictures(family):
    """Interleaved M-RoPE at positions whose axes differ: each model's own module and function."""
    sizes, block = INTERLEAVED[family]
    block = {"rope_type": "default", "rope_theta": 1e6, **block}
    config = AutoConfig.for_model(family, hidden_size=256, num_attention_heads=4, rope_parameters=block, **sizes)
    rope = rw.RopeConfig.from_hf(config)
    _, ids = pictures()
    q = torch.randn(2, ids.shape[1], 3, rope.head_dim)
    turned = Model(config).rotate(q.transpose(1, 2), ids.movedim(-1, 0)).transpose(1, 2)
    found = rw.RotaryEmbedding(rope).rotate(q, position_ids=ids)
    torch.testing.assert_close(found, turned, rtol=0, atol=2e-5)
    contiguous = replace(rope, axes=rw.positions.axes_from_sections(block["mrope_section"]))
    assert (rw.RotaryEmbedding(contiguous).rotate(q, position_ids=ids) - turned)[0].abs().max() > 0.1


def test_text_and_touching_images():
    """Text alone is at equal coordinates, and needs no grids; images may follow each other."""
    positions, deltas = rw.positions.mrope_positions(torch.tensor([[0, 1, 1, 0], [0] * 4]), images=[(1, 2, 4)])
    assert torch.equal(positions[1], rw.positions.text_positions(torch.arange(4), 3))
    assert deltas.tolist() == [0, 0]
    touching = rw.positions.mrope_positions(torch.tensor([1, 1, 1]), images=[(1, 2, 2), (1, 2, 4)])[0]
    assert touching.tolist() == [[0, 0, 0], [1, 1, 1], [1, 1, 2]]


# --- what is refused


def packed(*ends: float, **options: Any) -> Any:
    return rw.positions.positions_from(torch.tensor(ends), **options)


def image(types: list[float] | torch.Tensor, *grid: int, **options: Any) -> Any:
    types = types if isinstance(types, torch.Tensor) else torch.tensor(types)
    return rw.positions.mrope_positions(types, images=[grid] if grid else (), **options)


def video(**options: Any) -> Any:
    return rw.positions.mrope_positions(torch.tensor([2]), videos=[(1, 2, 2)], **options)


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: packed(0, 3, 2), "never decrease"),
        (lambda: packed(1, 3), "start at 0"),
        (lambda: packed(0, 3, max_seqlen=2), "within `max_seqlen`"),
        (lambda: packed(0, 3, tokens=2), "within `max_seqlen` and `tokens`"),
        (lambda: packed(0), r"\[sequences \+ 1\]"),
        (lambda: packed(0.0, 3.0), "int32 or int64"),
        (lambda: packed(0, 3, offsets=torch.tensor([1, 2])), "`offsets` must be"),
        (lambda: packed(0, 3, offsets=torch.tensor([0.5])), "`offsets` must be"),
        (lambda: packed(0, 3, max_seqlen="3"), "`max_seqlen` must be"),
        (lambda: packed(0, 3, tokens=-1), "`tokens` must be"),
        (lambda: rw.positions.positions_from(), "pass `max_seqlen`"),
        (lambda: rw.positions.positions_from(max_seqlen=3, tokens=3), "leave `tokens` out"),
        (lambda: torch.compile(rw.positions.positions_from, backend="eager")(torch.tensor([0, 3])), "cannot read the"),
        (lambda: rw.positions.grid_positions(0, 3), "whole number from 1"),
        (lambda: rw.positions.grid_positions(2, 2.5), "whole number from 1"),
        (lambda: rw.positions.grid_positions(2, 2, start=0.5), "a whole number"),
        (lambda: rw.positions.grid_positions(2, 2, start=1, normalized=True), "`start` and `normalized` are mutually"),
        (lambda: rw.positions.grid_positions(3, 5, merge=2), "`merge` must be a number"),
        (lambda: rw.positions.grid_positions(3, 5, merge=0), "`merge` must be a number"),
        (lambda: image([0, 1, 1], 1, 4, 4), "do not fill the next grid"),
        (lambda: image([0, 1, 1, 1], 1, 2, 4), "do not fill the next grid"),
        (lambda: image([0, 1]), "do not fill the next grid"),
        (lambda: image([0, 0], 1, 2, 2), "more grids than images"),
        (lambda: image([0, 3]), "of 0, 1 and 2"),
        (lambda: image([0.5]), "of 0, 1 and 2"),
        (lambda: image([1], 1, 3, 2), "merge evenly"),
        (lambda: image([1], 1, 2), "needs \\(frames, height, width\\)"),
        (lambda: image([1], 1, 2, 2, spatial_merge_size=0), "`spatial_merge_size` must be"),
        (lambda: image([0], attention_mask=torch.ones(2)), "`attention_mask` must have its shape"),
        (lambda: video(frame_intervals=[1.0, 2.0]), "`frame_intervals` must be a number"),
        (lambda: video(frame_intervals=-1.0), "`frame_intervals` must be a number"),
        (lambda: video(frame_intervals=2.0, split_frames=True), "`frame_intervals` must be a number"),
        (
            lambda: image(torch.zeros(1, 4).long(), 1, 4, 4, cu_seqlens=torch.tensor([0, 4])),
            r"(?s)packed tokens have no batch.*token_types\[0\]",
        ),
        (lambda: image([0] * 4, 1, 4, 4, cu_seqlens=torch.tensor([0, 5])), "within `max_seqlen` and `tokens`"),
        (lambda: image([0] * 4, 1, 4, 4, cu_seqlens=torch.tensor([0.0, 4.0])), "`cu_seqlens` must be int32 or int64"),
        (lambda: image([1] * 4, 1, 4, 4, cu_seqlens=torch.tensor([0, 2, 4])), "do not fill the next grid"),
    ],
)
def test_refused(call, message):
    """Boundaries, offsets, sizes, tokens and grids that do not fit each other, with the rule."""
    with pytest.raises(rw.RopeError, match=message):
        call()
