"""Fixtures: every place where a rotation can run, and a number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ropewalk import compiled
from tests.rotation.backends.places import KERNELS, PLACES, Place

pytest.register_assert_rewrite("tests.rotation.backends.calls", "tests.rotation.backends.norms")


# What takes Triton's interpreter, at 10 ms a program, longer than it is worth every time.
SLOW_WHEN_INTERPRETED = {
    "test_any_call", "test_any_norm", "test_any_store", "test_backward_is_the_inverse_to_the_bit",
    "test_derivatives_of_norms", "test_derivatives_of_rotations", "test_models", "test_one_of_two_gradients",
    "test_windows",
}  # fmt: skip
# Seconds each, where other tests of the kernels' source stay in `make test`.
THOROUGH_WHEN_INTERPRETED = {"test_after_fork", "test_no_pairs", "test_versions"}
# Thousands of programs, or two threads at once, for which that interpreter is not made.
NOT_INTERPRETED = {"test_large_equals_small", "test_large_in_every_layout", "test_two_python_threads"}
# Instruction sets of `make test`: the best that this processor has, and the portable one.
EVERY_TIME = {None, "portable", *(compiled.kernels.instruction_sets()[:1] if compiled.kernels is not None else ())}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the first slow there, so that `-m slow` runs them, and the second thorough; skip the third.

    Of the compiled backend's instruction sets the best and the portable one stay in `make test`.
    """
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        where = params.get("place", params.get("kernels"))
        if isinstance(where, Place) and where.instructions not in EVERY_TIME:
            item.add_marker(pytest.mark.thorough)
        if isinstance(where, Place) and where.interpreted:
            if item.originalname in THOROUGH_WHEN_INTERPRETED:
                item.add_marker(pytest.mark.thorough)
            if item.originalname in SLOW_WHEN_INTERPRETED:
                item.add_marker(pytest.mark.slow)
            if item.originalname in NOT_INTERPRETED:
                item.add_marker(pytest.mark.skip("too much for Triton's interpreter"))


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
