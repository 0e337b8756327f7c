"""RMSNorm of queries and keys and the rotation: fused in one call, against one step after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ropewalk.attention.norm import RMSNorm
from ropewalk.bench import oracle
from ropewalk.bench.timing import Call
from ropewalk.bench.work import Contender, Work
from ropewalk.rotation.qk_norm import qk_norm_rotate
from ropewalk.rotation.rotate import rotate_qk

NORM_EPS = 1e-6
ROUNDINGS = 8.0  # eps of the dtype: the norm's own, and where it is a step of its own one more to 16 bits
FUSED, SEPARATE = "ropewalk, qk_norm_rotate", "ropewalk, norm then rotate"
SEPARATE_IN_PLACE = "ropewalk, norm then rotate in place"


def separate(work: Work, *, inplace: bool = False) -> Contender:
    """RMSNorm of queries, of keys, then one rotation, as `Attention` does without the fused call."""
    norms = []
    for _ in work.inputs[0]:
        norms.append(RMSNorm(work.case.head_dim, eps=NORM_EPS).to(work.device, work.case.dtype).requires_grad_(False))
        norms[-1].weight.copy_(_weight(work))
    q_norm, k_norm = norms

    def make(i: int) -> Call:
        (q, k), cos, sin, pairing = work.inputs[i], work.cos, work.sin, work.case.interleaved
        return lambda: rotate_qk(q_norm(q), k_norm(k), cos, sin, interleaved=pairing, inplace=inplace)

    return _contender(SEPARATE_IN_PLACE if inplace else SEPARATE, work, make)


def fused(work: Work) -> Contender:
    """The same in one pass."""
    weight = _weight(work)

    def make(i: int) -> Call:
        (q, k), cos, sin, pairing = work.inputs[i], work.cos, work.sin, work.case.interleaved
        return lambda: qk_norm_rotate(q, k, weight, weight, cos, sin, eps=NORM_EPS, interleaved=pairing)

    return _contender(FUSED, work, make)


def _contender(name: str, work: Work, make: Callable[[int], Call]) -> Contender:
    weight = _weight(work).double().cpu().numpy()

    def before(number: int, x: oracle.Array) -> oracle.Array:
        return oracle.rms_norm(x, weight, NORM_EPS)

    return Contender(name, work.each(make), tuple, eps=ROUNDINGS, before=before)


def _weight(work: Work) -> torch.Tensor:
    """A weight that is no constant, so that a norm which forgets it is found out."""
    return torch.linspace(0.5, 1.5, work.case.head_dim).to(work.device, work.case.dtype)
