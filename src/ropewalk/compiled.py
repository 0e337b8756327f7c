"""The compiled extension, or the reason why it is not there."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

_DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}  # as csrc/job.h numbers them
_HUGE = 4 << 20  # bytes from which fresh memory is asked for in huge pages


def _load() -> tuple[ModuleType | None, str]:
    """`ropewalk._kernels`, built from backends/csrc; missing where no compiler was at hand when ropewalk was built."""
    try:
        return importlib.import_module("ropewalk._kernels"), ""
    except ImportError as error:
        return None, f"the compiled extension is missing ({error})"


kernels, why_not = _load()


def new_like(x: Tensor) -> Tensor:
    """`torch.empty_like` of a plain tensor on the CPU; large ones from memory that an earlier result has left.

    Up to 256 MiB of such memory are kept, in huge pages, for the system to take back whenever it is short.
    """
    if x.nbytes < _HUGE or kernels is None:
        return torch.empty_like(x)
    strides = x.stride() if x.is_contiguous() else torch.empty_like(x, device="meta").stride()
    capsule = kernels.new_result(_DTYPES[x.dtype], x.shape, strides)
    if capsule is None:
        return fresh(torch.empty_like(x))
    out: Tensor = from_dlpack(capsule)
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    if filled and torch.are_deterministic_algorithms_enabled():
        out.fill_(float("nan"))
    return out


def fresh(out: Tensor) -> Tensor:
    """A tensor just allocated on the CPU, its memory in huge pages where it is large."""
    if out.nbytes >= _HUGE and kernels is not None:
        kernels.use_huge_pages(out.data_ptr(), out.nbytes)
    return out
