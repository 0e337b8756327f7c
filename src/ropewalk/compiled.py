"""The compiled extension, or the reason why it is not there."""

from __future__ import annotations

import importlib
from types import ModuleType

from torch import Tensor

_HUGE = 4 << 20  # bytes from which fresh memory is asked for in huge pages


def _load() -> tuple[ModuleType | None, str]:
    """`ropewalk._kernels`, built from backends/csrc; missing where no compiler was at hand when ropewalk was built."""
    try:
        return importlib.import_module("ropewalk._kernels"), ""
    except ImportError as error:
        return None, f"the compiled extension is missing ({error})"


kernels, why_not = _load()


def fresh(out: Tensor) -> Tensor:
    """A tensor just allocated on the CPU, its memory in huge pages where it is large."""
    if out.nbytes >= _HUGE and kernels is not None:
        kernels.use_huge_pages(out.data_ptr(), out.nbytes)
    return out
