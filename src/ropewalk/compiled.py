"""The compiled extension, or the reason why it is not there; and memory for large results."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor

_HUGE = 4 << 20  # bytes from which fresh memory is asked for in huge pages


def _load() -> tuple[ModuleType | None, str]:
    """`ropewalk._kernels`, built from backends/csrc; missing where no compiler was at hand when ropewalk was built."""
    try:
        module = importlib.import_module("ropewalk._kernels")
        module.use_exchange(Tensor.__dlpack_c_exchange_api__)
    except (ImportError, AttributeError) as error:
        return None, f"the compiled extension is missing ({error})"
    return module, ""


kernels, why_not = _load()


def new_like(x: Tensor) -> Tensor:
    """`torch.empty_like` of a plain tensor on the CPU, its memory in huge pages where it is large."""
    return fresh(torch.empty_like(x))


def fresh(out: Tensor) -> Tensor:
    """A tensor just allocated on the CPU, its memory in huge pages where it is large."""
    if out.nbytes >= _HUGE and kernels is not None:
        kernels.use_huge_pages(out)
    return out
