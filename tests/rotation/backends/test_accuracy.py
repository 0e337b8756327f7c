"""The promised accuracy, against angles at 60 digits, from position 0 to 10,000,000: tables and kernel together."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch

import ropewalk as rw
from tests import oracle
from tests.rotation.backends import truth
from tests.rotation.backends.cases import FURTHEST

DIM, HEADS = 64, 3
POSITIONS = np.unique(np.concatenate([
    [0, 1, 2, 4095, 4096, 131_071, 2**22 - 1, 2**23 + 1, FURTHEST - 1, FURTHEST],
    np.random.default_rng(0).integers(0, FURTHEST, 22),
]))  # fmt: skip
THETAS = (10_000.0, 500_000.0)
IN_DOUBLE = 1e-8  # float64 angles: two roundings of 10,000,000 radians, times the longest pair


@lru_cache
def angles(theta: float) -> np.ndarray:
    """`[positions, 1, pairs]`, to broadcast against `[1, positions, heads, pairs]`."""
    return oracle.angles(POSITIONS, theta, DIM)[:, None]


def ulp(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The unit in the last place of each of these numbers."""
    digits, least = truth.FORMATS[dtype]
    return np.ldexp(1.0, np.maximum(np.frexp(values)[1] - 1, least) - digits + 1)


def check_promise(got: torch.Tensor, right: np.ndarray, lengths: np.ndarray) -> None:
    """float32 within 1e-6; 16 bits within half a unit of the result and 2e-7 of the pair; float64 as float64 angles."""
    found = truth.wide(got)
    off = np.abs(found - right)
    if got.dtype == torch.float64:
        assert off.max() <= IN_DOUBLE
    elif got.dtype == torch.float32:
        assert off.max() <= 1e-6
    else:
        over = off - (ulp(found, got.dtype) / 2 + truth.OF_THE_PAIR * lengths)
        at = np.unravel_index(over.argmax(), over.shape)
        assert over[at] <= 0, (at, found[at], right[at])


@pytest.mark.parametrize("tables", [True, False], ids=["tables", "phases"])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", truth.FORMATS, ids=str)
def test_the_promise(dtype, interleaved, tables, place):
    """Unit-normal features at any position, forward and backward, by tables and by integer phases."""
    shape = (1, len(POSITIONS), HEADS, DIM)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(place.device, dtype)
    positions = torch.from_numpy(POSITIONS).to(place.device)
    for theta in THETAS[interleaved:][:1] if place.interpreted else THETAS:  # one for each pairing
        rope = rw.RotaryEmbedding(rw.RopeConfig(DIM, interleaved=interleaved, theta=theta))
        cos, sin = np.cos(angles(theta)), np.sin(angles(theta))
        for inverse in (False, True):
            turned = rope.rotate(x, position_ids=positions, inverse=inverse, backend=place.backend, tables=tables)
            check_promise(turned, *truth.turn(truth.wide(x), cos, sin, interleaved=interleaved, inverse=inverse))
        leaf = torch.zeros_like(x).requires_grad_()
        there = rope.rotate(leaf, position_ids=positions, backend=place.backend, tables=tables)
        back = torch.autograd.grad(there, leaf, x)[0]
        check_promise(back, *truth.turn(truth.wide(x), cos, sin, interleaved=interleaved, inverse=True))
