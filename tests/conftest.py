"""Set-up of the test run: shapes in signatures are checked at run time, and fresh memory is full of NaN."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

if "--no-shapes" not in sys.argv:
    from jaxtyping import install_import_hook

    install_import_hook("ropewalk", "beartype.beartype")

import pytest
import torch

torch.set_num_threads(2)
# Fresh memory holds NaN, so that a kernel or a cache which reads what it never wrote is found out.
torch.use_deterministic_algorithms(True, warn_only=False)
torch.utils.deterministic.fill_uninitialized_memory = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--no-shapes` leaves the package without run-time shape checks, as tracers need it."""
    parser.addoption("--no-shapes", action="store_true", help="do not check shapes at run time")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same random state."""
    torch.manual_seed(0)
