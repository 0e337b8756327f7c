"""Our contenders, and the floor that they are held against: the plain copy of the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ropewalk.bench.timing import Call
from ropewalk.bench.work import Contender, Tensors, Work
from ropewalk.rotation.rotate import rotate, rotate_qk

COPY, CLONE = "copy", "clone"
IN_PLACE, GIVEN, NEW = "ropewalk, in place", "ropewalk, given output", "ropewalk, new output"
INTERLEAVED = "ropewalk, given output, interleaved"
FORWARD, BACKWARD = "ropewalk, forward", "ropewalk, backward"


def floors(work: Work, *, clone: bool = False) -> list[Contender]:
    """`y.copy_(x)`, and `x.clone()`."""

    def copy(i: int) -> Call:
        pairs = list(zip(work.outs[i], work.inputs[i], strict=True))
        return lambda: [out.copy_(x) for out, x in pairs]

    def cloned(i: int) -> Call:
        return lambda: [x.clone() for x in work.inputs[i]]

    found = [Contender(COPY, work.each(copy))]
    return [*found, Contender(CLONE, work.each(cloned))] if clone else found


def in_place(work: Work) -> Contender:
    """Over its input."""
    spare, pairing = work.spare(), work.case.interleaved
    return Contender(IN_PLACE, work.each(lambda i: lambda: _turn(spare[i], work, pairing, inplace=True)), _as_it_is)


def new(work: Work, name: str = NEW) -> Contender:
    """Into fresh memory."""
    pairing = work.case.interleaved
    return Contender(name, work.each(lambda i: lambda: _turn(work.inputs[i], work, pairing)), _as_it_is)


def given(work: Work, *, interleaved: bool | None = None, name: str = GIVEN) -> Contender:
    """Into memory that is there, one call for each tensor."""
    pairing = work.case.interleaved if interleaved is None else interleaved

    def make(i: int) -> Call:
        todo, cos, sin = list(zip(work.inputs[i], work.outs[i], strict=True)), work.cos, work.sin
        return lambda: [rotate(x, cos, sin, interleaved=pairing, out=out) for x, out in todo]

    return Contender(name, work.each(make), _as_it_is, interleaved=pairing)


def gradients(work: Work) -> list[Contender]:
    """The forward pass under autograd, and the backward pass alone."""
    pairing, coming = work.case.interleaved, work.inputs
    leaves = [tuple(x.clone().requires_grad_() for x in tensors) for tensors in work.inputs]
    turned = [_turn(tensors, work, pairing) for tensors in leaves]

    def forward(i: int) -> Call:
        return lambda: _turn(leaves[i], work, pairing)

    def backward(i: int) -> Call:
        return lambda: torch.autograd.grad(turned[i], leaves[i], coming[i], retain_graph=True)

    return [
        Contender(FORWARD, work.each(forward), _as_it_is),
        Contender(BACKWARD, work.each(backward), _as_it_is, inverse=True),
    ]


def _turn(tensors: Tensors, work: Work, interleaved: bool, *, inplace: bool = False) -> Sequence[Tensor]:
    if len(tensors) == 2:
        return rotate_qk(*tensors, work.cos, work.sin, interleaved=interleaved, inplace=inplace)
    return (rotate(tensors[0], work.cos, work.sin, interleaved=interleaved, inplace=inplace),)


def _as_it_is(returned: Any) -> Tensors:
    return tuple(returned)
