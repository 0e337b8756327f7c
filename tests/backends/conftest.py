"""Fixtures: every place where a rotation can run, and a number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.backends.places import KERNELS, PLACES, Place


@pytest.fixture(params=PLACES, ids=str)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each backend that can run here; the compiled one once for each instruction set."""
    with request.param.held() as held:
        yield held


@pytest.fixture(params=KERNELS, ids=str)
def kernels(request: pytest.FixtureRequest) -> Iterator[Place]:
    """As `place`, without the reference: for what only kernels could get wrong."""
    with request.param.held() as held:
        yield held


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Two threads for this test, one for the others."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
