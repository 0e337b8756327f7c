"""Work on several processes: `joined` shares measurements out, `positions_for_rank` deals a sequence out to ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.processes import Launch, joined
from ropewalk.rope.positions import positions_from
from ropewalk.rope.values import as_whole
from ropewalk.shapes import Int

__all__ = ["LAYOUTS", "Launch", "joined", "positions_for_rank"]

_Layout = Callable[[Tensor, int, int, int], Tensor]
"""From all positions, the rank, the ring's size and the Ulysses degree to the rank's own."""


def positions_for_rank(
    layout: str,
    tokens: int,
    *,
    rank: int,
    cp: int,
    ulysses: int = 1,
    cu_seqlens: Int[Tensor, " ends"] | None = None,
    device: torch.device | str = "cpu",
) -> Int[Tensor, " local"]:
    """The positions of the tokens that one rank of a context-parallel group holds, in its order.

    - `layout`: how the sequence is dealt out, a key of `LAYOUTS`:
      - "contiguous": rank r has the r-th of cp equal parts (torch's context parallelism without a load balancer).
      - "head-tail": of 2 cp parts, parts r and 2 cp - 1 - r, so that causal attention costs each rank the same (torch's
        `_HeadTailLoadBalancer`, Megatron-LM's `get_pos_emb_on_this_cp_rank`, zigzag ring attention; Llama 3,
        arXiv:2407.21783, section 3.3.2).
      - "striped": tokens r, r + cp, r + 2 cp, ... (Striped Attention, arXiv:2311.09431; SGLang's round robin).
      - "zigzag-ulysses": head-tail over the cp / `ulysses` ranks of a ring, and each of its shares in `ulysses` equal
        parts; rank = ring rank * ulysses + Ulysses rank (USP, arXiv:2405.07719: yunchang's `zigzag_extract_local`).
      - "llama3": contiguous parts of a packed buffer (ring-flash-attention's `llama3_flash_attn_varlen_func`): with
        `cu_seqlens` each token stands at its position in its own document.
    - `tokens`: of the whole sequence. `rank`: 0 .. cp - 1 within the group. `cp`: how many ranks share the sequence.
    - `ulysses`: ranks of one Ulysses group, of "zigzag-ulysses" alone. `cu_seqlens`: int32 or int64 `[documents + 1]`,
      of "llama3" alone; for packed tokens in another layout index `rw.positions_from(cu_seqlens)` with what this gives.

    Returns int64 `[tokens / cp]`: without `cu_seqlens` also the tokens' indices, and over all ranks a permutation of
    0 .. tokens - 1. Raises `RopeError` for an unknown layout, and where the parts would not be equal: torch falls back
    to contiguous parts there without a word (pytorch#183968).

    >>> [positions_for_rank("head-tail", 8, rank=rank, cp=2).tolist() for rank in (0, 1)]
    [[0, 1, 6, 7], [2, 3, 4, 5]]
    >>> positions_for_rank("llama3", 6, rank=1, cp=2, cu_seqlens=torch.tensor([0, 4, 6])).tolist()
    [3, 0, 1]
    """
    if layout not in LAYOUTS:
        raise RopeError(
            "positions_for_rank: there is no such layout.",
            facts={"layout": layout},
            cure=f"Choose from {', '.join(LAYOUTS)}.",
        )
    deal, parts = LAYOUTS[layout]
    sizes = {"tokens": tokens, "rank": rank, "cp": cp, "ulysses": ulysses}
    if any(as_whole(size) is None for size in sizes.values()) or min(tokens, cp, ulysses) < 1 or not 0 <= rank < cp:
        raise RopeError(
            "positions_for_rank: sizes are whole numbers of at least 1, and a rank is one of 0 .. cp - 1.",
            facts=sizes,
            cure="Pass the tokens of the whole sequence, and the rank within its context-parallel group.",
        )
    _check_used(layout, cp, ulysses, cu_seqlens)
    if tokens % (parts * cp):
        raise RopeError(
            f"positions_for_rank: {layout} deals out {parts * cp} equal parts.",
            facts={"tokens": tokens, "cp": cp},
            cure=f"Pad the sequence to a multiple of {parts * cp} tokens.",
        )
    if cu_seqlens is None:
        every = torch.arange(tokens, device=device)
    else:
        every = positions_from(cu_seqlens.to(device), tokens=tokens)
    return deal(every, rank, cp // ulysses, ulysses)


def _contiguous(every: Tensor, rank: int, ring: int, ulysses: int) -> Tensor:
    return every.view(ring, -1)[rank]


def _head_tail(every: Tensor, rank: int, ring: int, ulysses: int) -> Tensor:
    ring_rank, of_ulysses = divmod(rank, ulysses)
    parts = every.view(2 * ring, -1)
    return torch.cat([parts[ring_rank], parts[2 * ring - 1 - ring_rank]]).view(ulysses, -1)[of_ulysses]


def _striped(every: Tensor, rank: int, ring: int, ulysses: int) -> Tensor:
    return every[rank::ring]


LAYOUTS: dict[str, tuple[_Layout, int]] = {
    "contiguous": (_contiguous, 1),
    "head-tail": (_head_tail, 2),
    "striped": (_striped, 1),
    "zigzag-ulysses": (_head_tail, 2),
    "llama3": (_contiguous, 1),
}
"""How each layout deals out the tokens, and by how many parts for each rank their number must divide."""


def _check_used(layout: str, cp: int, ulysses: int, cu_seqlens: Tensor | None) -> None:
    """No argument that the layout would ignore, and a Ulysses degree that divides the group."""
    if ulysses != 1 and layout != "zigzag-ulysses":
        raise RopeError(
            f"positions_for_rank: {layout} has no Ulysses groups.",
            facts={"ulysses": ulysses},
            cure='Leave it out, or choose "zigzag-ulysses".',
        )
    if cp % ulysses:
        raise RopeError(
            "positions_for_rank: `ulysses` must divide `cp`.",
            facts={"cp": cp, "ulysses": ulysses},
            cure="cp is the size of a ring times that of a Ulysses group.",
        )
    if cu_seqlens is not None and layout != "llama3":
        raise RopeError(
            f"positions_for_rank: {layout} deals out tokens by their index, whatever documents they are of.",
            facts={"cu_seqlens": cu_seqlens},
            cure="Index the documents' positions: rw.positions_from(cu_seqlens)[positions_for_rank(...)].",
        )
