"""rotary-embedding-torch, which turns interleaved pairs only and forms its own angles."""

from __future__ import annotations

import torch

from ropewalk.bench.cases import THETA
from ropewalk.bench.work import Contender, Skip, Work, package

NAME = "rotary-embedding-torch"
EPS = 4.0


def build(work: Work) -> Contender:
    """Its angles are kept between calls; cos and sin it takes anew in each.

    A float32 call comes first and fills its cache of angles: for bfloat16 it would form positions in bfloat16, which
    is wrong from position 257 on.
    """
    case = work.case
    if case.offset:
        raise Skip("timed from position 0")
    module = package("rotary_embedding_torch", "rotary-embedding-torch")
    rotary = module.RotaryEmbedding(
        case.head_dim, theta=THETA, seq_before_head_dim=True, cache_max_seq_len=max(8192, case.seq)
    )
    with torch.no_grad():
        rotary.rotate_queries_or_keys(work.inputs[0][0][..., :1, :].float())
    calls = work.each(lambda i: lambda: [rotary.rotate_queries_or_keys(x) for x in work.inputs[i]])
    return Contender(NAME, calls, tuple, eps=EPS, own_angles=True, interleaved=True)
