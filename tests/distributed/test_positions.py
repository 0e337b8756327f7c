"""Positions of each rank against definitions that were written anew, torch's own balancer, and the union of ranks."""

from __future__ import annotations

import pytest
import torch

import ropewalk as rw
from ropewalk.positions import LAYOUTS, positions_for_rank

CP = [1, 2, 4, 8, 64]


def owner_of(layout: str, token: int, tokens: int, cp: int) -> int:
    """The rank of a token."""
    if layout != "head-tail":
        return token // (tokens // cp)
    part = token // (tokens // (2 * cp))
    return min(part, 2 * cp - 1 - part)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cp", CP)
def test_each_rank_and_their_union(layout, cp):
    """Every rank has what the definition says, and all ranks together every token once."""
    tokens = 2 * cp * 3
    for rank in range(cp):
        found = positions_for_rank(layout, tokens, rank=rank, cp=cp)
        assert found.dtype == torch.int64
        assert found.tolist() == [token for token in range(tokens) if owner_of(layout, token, tokens, cp) == rank]


@pytest.mark.parametrize("cp", CP)
def test_head_tail_is_torchs(cp):
    """The balancer of torch's own context parallelism deals out the same tokens, in the same order."""
    module = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    tokens = 2 * cp * 5
    indices = module._HeadTailLoadBalancer(tokens, cp, "cpu")._generate_indices()[0]
    ours = [positions_for_rank("head-tail", tokens, rank=rank, cp=cp) for rank in range(cp)]
    assert torch.equal(torch.cat(ours), indices)


@pytest.mark.parametrize("cp", CP)
def test_llama3_positions_begin_again_in_each_document(cp):
    """The ranks one after the other give the packed documents' positions, whichever documents a cut goes through."""
    lengths = [cp * 3 - 1, 1, cp * 2, cp * 3]
    ends = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    tokens = sum(lengths)
    ranks = [positions_for_rank("llama3", tokens, rank=rank, cp=cp, cu_seqlens=ends) for rank in range(cp)]
    assert torch.cat(ranks).tolist() == [position for length in lengths for position in range(length)]


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("call", "rule"),
    [
        ({"layout": "spiral"}, "unknown layout"),
        ({"layout": "head-tail", "tokens": 6}, "4 equal parts"),
        ({"layout": "contiguous", "tokens": 7}, "2 equal parts"),
        ({"rank": 2}, "from 0 to 1"),
        ({"rank": -1}, "from 0 to 1"),
        ({"tokens": 0}, "from 1 to"),
        ({"cu_seqlens": torch.tensor([0, 8])}, "ignores documents"),
    ],
)
def test_refusals(call, rule):
    """What cannot be dealt out equally, or would be ignored, is refused."""
    given = {"layout": "contiguous", "tokens": 8, "rank": 0, "cp": 2, **call}
    with pytest.raises(rw.RopeError, match=rule):
        positions_for_rank(given.pop("layout"), given.pop("tokens"), **given)
