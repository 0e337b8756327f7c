"""flash-attention's Triton rotation, where that package can be imported."""

from __future__ import annotations

from ropewalk.bench.work import Contender, Work, package

NAME = "flash-attention"
EPS = 4.0


def build(work: Work) -> Contender:
    """In place, one launch for each tensor, on copies of the inputs; tables float32."""
    apply_rotary = package("flash_attn.ops.triton.rotary", "flash-attn").apply_rotary
    spare, cos, sin, pairing = work.spare(), work.cos, work.sin, work.case.interleaved
    calls = work.each(
        lambda i: lambda: [apply_rotary(x, cos, sin, interleaved=pairing, inplace=True) for x in spare[i]]
    )
    return Contender(NAME, calls, tuple, eps=EPS)
