"""Set-up of the test run: fresh memory is full of NaN; `--shapes` checks every shape in a signature at run time.

Without a GPU the Triton kernels run in Triton's interpreter.
"""

from __future__ import annotations

import gc
import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")

if "--shapes" in sys.argv:
    os.environ["ROPEWALK_SHAPES"] = "1"  # pytest-xdist's processes have other arguments, and this environment

if "ROPEWALK_SHAPES" in os.environ:
    from jaxtyping import install_import_hook

    install_import_hook("ropewalk", "beartype.beartype")

import pytest
import torch
from hypothesis import settings

# Read when Triton is imported: its kernels run in numpy then, on CPU tensors. Shape checks do not understand kernels.
if not torch.cuda.is_available() and "ROPEWALK_SHAPES" not in os.environ:
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)  # the shapes are tiny: a second thread costs more than it brings, above all on a busy machine
settings.register_profile("ropewalk", deadline=None)  # a busy machine is not a failure
settings.load_profile("ropewalk")
# Fresh memory holds NaN, so that a kernel or a cache which reads what it never wrote is found out.
torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler
torch.utils.deterministic.fill_uninitialized_memory = True


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--shapes` puts jaxtyping's checks into the package; wrong calls, tracers and repetitions are left out."""
    parser.addoption("--shapes", action="store_true", help="check the shapes in signatures at run time")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under `--shapes` a wrong call would fail in the checker before it reaches our own message."""
    if config.getoption("--shapes"):
        marks = {"rejects", "traced", "repeats_shapes"}
        left_out = [item for item in items if marks & {mark.name for mark in item.iter_markers()}]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
    gc.freeze()  # else each full collection of garbage visits every module and test, a twentieth of the time
    gc.set_threshold(10_000)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same random state; without a GPU, torch.manual_seed would note a stack for each."""
    (torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed)(0)
