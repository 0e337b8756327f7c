"""Flex attention by regions against the float64 truth, uncompiled on the CPU; its blocks, and when it is chosen."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ropewalk.rotation.backends import choose_attention, flex
from ropewalk.rotation.backends.request import Bounds
from tests.rotation.backends.attention_truth import CASES, Case, check

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
FEW = [
    Case(heads=6, kv_heads=2, batch=3, seen="ragged", queries=5, keys=40),
    Case(turned="interleaved", seen="apart", batch=2, queries=40, keys=140),
    Case(sinks=True, seen="nothing", softcap=20.0),
]


@pytest.mark.parametrize(
    ("dtype", "cases"),
    [(torch.float32, FEW), (torch.bfloat16, FEW[1:2]), pytest.param(torch.float32, CASES, marks=pytest.mark.thorough)],
    ids=["float32", "bfloat16", "every case"],
)  # fmt: skip
def test_cases(dtype: torch.dtype, cases: list[Case]) -> None:
    """Sizes, masks, memory layouts, turned keys, several regions, softcap and sinks."""
    for case in cases:
        check(case, dtype, flex.attend)


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(1, 300),
    keys=st.integers(1, 400),
    batch=st.integers(1, 3),
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(("random", "window", "all")),
)
@example(queries=300, keys=300, batch=2, seed=0, kind="window")
@example(queries=300, keys=256, batch=1, seed=0, kind="all")
def test_blocks_cover_exactly_what_is_seen(queries: int, keys: int, batch: int, seed: int, kind: str) -> None:
    """A block is whole where all queries see it; none sees one that is left out; in the others the mask decides."""
    g = torch.Generator().manual_seed(seed)
    low, high = (torch.randint(0, keys + 1, (rows, queries), generator=g) for rows in (1, batch))
    if kind == "window":  # one key more than a block
        high = torch.arange(queries).expand(batch, queries) * keys // queries + 1
        low = (high - 129).clamp(min=0)
    elif kind == "all":
        low, high = 0 * low, 0 * high + keys
    mask = flex.block_mask(Bounds(low, high), keys)
    places = torch.arange(keys)
    seen = (low[..., None] <= places) & (places < high[..., None])
    size = flex.BLOCK
    padded = torch.nn.functional.pad(seen, (0, -keys % size, 0, -queries % size))
    rows, columns = padded.shape[1] // size, padded.shape[2] // size
    tiles = padded.view(batch, rows, size, columns, size).transpose(2, 3)
    row = torch.arange(queries)
    for b in range(batch):
        drawn = mask.mask_mod(torch.tensor(b), torch.tensor(0), row[:, None], places[None])
        assert torch.equal(drawn, seen[b])
        for r in range(rows):
            whole = mask.full_kv_indices[b, 0, r, : mask.full_kv_num_blocks[b, 0, r]].tolist()
            masked = mask.kv_indices[b, 0, r, : mask.kv_num_blocks[b, 0, r]].tolist()
            real = min(size, queries - r * size)
            assert not set(whole) & set(masked)
            for c in range(columns):
                tile = tiles[b, r, c, :real]
                assert (c in whole) == bool(tile.all())
                listed = c in (*whole, *masked)
                assert listed == bool(tile.any()) or (listed and kind == "random")


def test_when_it_is_chosen() -> None:
    """On a GPU, for many queries; nowhere else, and the reason is told."""
    q = torch.zeros(1, 2, 200, 16)
    assert choose_attention(q.to("meta"), q.to("meta"), q.to("meta")).name == "reference"
    assert flex.reasons_not_to_attend(q[:, :, :128], q, q) == ["`q` is on cpu, not on a GPU, or devices differ"]
    assert "queries are small" in flex.reasons_not_to_attend(q[:, :, :5], q, q)[-1]
    assert "dtypes" in flex.reasons_not_to_attend(q.double(), q.double(), q.double())[-1]
    with torch.autograd.forward_ad.dual_level():
        assert "forward-mode" in flex.reasons_not_to_attend(q, q, q)[0]
