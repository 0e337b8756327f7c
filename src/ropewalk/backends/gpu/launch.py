"""A launch without its tensors, kept for the next call of the same shape: a decoded token costs little host time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from triton.compiler import CompiledKernel
from triton.runtime.interpreter import InterpretedFunction

ACCESS = 16  # bytes that one thread reads or writes at a time
_KEPT = 4096  # calls of different shape that are remembered

Key = tuple[object, ...]


class LaunchPlan:
    """Grid, the kernel's arguments after its tensors, and the compiled kernel once it is known."""

    def __init__(self, kernel: Any, grid: int, values: dict[str, object], num_warps: int) -> None:
        """`values` has every argument after the tensors, by name."""
        self.kernel, self.grid, self.num_warps = kernel, (grid, 1, 1), num_warps
        self.numbers = tuple(values[name] for name in kernel.arg_names if name in values)
        self.programs_q = 0  # of the backward kernel: how many of its programs take queries
        self.run: Callable[..., None] | None = None

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current stream of the tensors' device."""
        device = tensors[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            with torch.cuda.device(device):
                self._launch(tensors)
        else:
            self._launch(tensors)

    def _launch(self, tensors: tuple[Tensor, ...]) -> None:
        """Through Triton's own dispatch until the kernel for aligned addresses is known, then directly."""
        addresses = [x.data_ptr() for x in tensors]
        aligned = True
        for address in addresses:
            aligned = aligned and not address % ACCESS
        if aligned and self.run is not None:
            self.run(*addresses, *self.numbers)
            return
        compiled = self.kernel[self.grid](*tensors, *self.numbers, num_warps=self.num_warps, enable_fp_fusion=True)
        if aligned and isinstance(compiled, CompiledKernel) and torch.version.hip is None:
            self.run = compiled[self.grid]  # ROCm compiles for the size of the storage as well, which no key names


_plans: dict[Key, LaunchPlan] = {}


def planned(key: Key) -> LaunchPlan | None:
    """The plan of an earlier call with this key, which names everything that a plan depends on."""
    return _plans.get(key)


def keep(key: Key, plan: LaunchPlan) -> LaunchPlan:
    """Remember a plan; when there are too many all are forgotten, and made again as they are needed."""
    if len(_plans) >= _KEPT:
        _plans.clear()
    _plans[key] = plan
    return plan


def is_interpreted(kernel: object) -> bool:
    """Whether Triton was imported with TRITON_INTERPRET=1: then kernels run in numpy, on CPU tensors as well."""
    return isinstance(kernel, InterpretedFunction)
